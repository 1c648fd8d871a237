"""One process on a root folder in its own namespaces, as a container runtime would start it.

Root is not needed: without it the process runs in a user namespace, where its user is mapped to the
one that starts it. With it the process has the user's real number. The network is the machine's.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servingslo_lab.errors import RigError

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One more mount in the container.

    source: a file or folder of this machine, shown read-only; None: an empty folder in memory.
    size_bytes: of the folder in memory.
    """

    target: str
    source: Path | None = None
    size_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What runs where.

    user: numbers of user and group. capabilities: whether a process of user 0 keeps its own.
    no_new_privileges: no program gains rights by its file's owner.
    """

    root: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    user: tuple[int, int] = (0, 0)
    working_directory: str = "/"
    hostname: str = "container"
    read_only: bool = False
    capabilities: bool = True
    no_new_privileges: bool = False
    mounts: Sequence[Mount] = field(default_factory=tuple)

    def start_command(self) -> list[str]:
        """The command that starts it and ends with it, with the same exit status.

        SIGTERM to its process group reaches the container's first process.
        """
        namespaces = ["--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        if not _is_root():
            namespaces += ["--user", "--map-root-user"]
        return ["unshare", *namespaces, "sh", "-euc", self._script()]

    def make_mount_points(self) -> None:
        """Make the files and folders that the mounts need, as a runtime does before the start."""
        for name in ("proc", "dev", *(mount.target.lstrip("/") for mount in self.mounts)):
            place = _inside(self.root, name)
            if place.exists():
                continue
            source = next((m.source for m in self.mounts if m.target.lstrip("/") == name), None)
            if source is not None and source.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
            else:
                place.mkdir(parents=True)

    def _script(self) -> str:
        root = shlex.quote(str(self.root))
        lines = [f"mount --bind {root} {root}", f"cd {root}", f"hostname {self.hostname}"]
        lines += ["mount -t proc proc proc", "mount -t tmpfs -o mode=755 tmpfs dev"]
        lines += ["mkdir -m 1777 dev/shm"]
        for name in _DEVICES:
            lines += [f": > dev/{name}", f"mount --bind /dev/{name} dev/{name}"]
        lines += [f"ln -s {target} dev/{name}" for name, target in _LINKS.items()]
        for mount in self.mounts:
            place = shlex.quote(str(_inside(self.root, mount.target)))
            if mount.source is None:
                size = f"mode=1777,size={mount.size_bytes}"
                lines.append(f"mount -t tmpfs -o {size} tmpfs {place}")
            else:
                lines.append(f"mount --bind {shlex.quote(str(mount.source))} {place}")
                lines.append(f"mount -o remount,bind,ro {place}")
        if self.read_only:
            lines += ["mount -o remount,bind,ro dev", f"mount -o remount,bind,ro {root}"]
        lines += ["cd .", "pivot_root . .", "umount -l .", f"cd {self.working_directory}"]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        command = [*self._as_user(), "/usr/bin/env", "-i", *variables, *self.command]
        return "\n".join([*lines, f"exec {shlex.join(command)}"])

    def _as_user(self) -> list[str]:
        """The image's own programs that change the user and drop rights."""
        user, group = self.user
        rights = ["--no-new-privs"] if self.no_new_privileges else []
        if not self.capabilities:
            rights += ["--bounding-set=-all", "--inh-caps=-all"]
        if user == 0:
            return ["/usr/bin/setpriv", *rights] if rights else []
        if _is_root():
            numbers = [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
            return ["/usr/bin/setpriv", *numbers, *rights]
        mapped = ["--user", f"--map-user={user}", f"--map-group={group}"]
        inner = ["/usr/bin/setpriv", *rights] if rights else []
        return ["/usr/bin/unshare", *mapped, *inner]


def _is_root() -> bool:
    return os.geteuid() == 0


def _inside(root: Path, target: str) -> Path:
    """The place of a path in the container, links followed within its root."""
    place = root
    for part in Path(target.lstrip("/")).parts:
        place = place / part
        if place.is_symlink():
            link = place.readlink()
            if ".." in link.parts:
                raise RigError(f"{place}: a link upwards is not followed")
            start = root if link.is_absolute() else place.parent
            place = start / str(link).lstrip("/")
    return place
