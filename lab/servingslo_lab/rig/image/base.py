"""The base image without a registry: Debian's own packages, unpacked, and a Python of this machine.

Docker's `python:X.Y.Z-slim-SUITE` is Debian's minimal system with a CPython in /usr/local. Here the
packages come from a Debian mirror by apt, checked by Debian's keys, and no root is needed: they are
unpacked, and what their scripts would write is written here as far as programs need it.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from servingslo_lab.errors import RigError
from servingslo_lab.rig.programs.cache import cache_directory
from servingslo_lab.rig.programs.commands import without_addresses

_REFERENCE = re.compile(r"python:(?P<version>\d+\.\d+\.\d+)-slim-(?P<suite>[a-z]+)")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR = "http://deb.debian.org"
# debian:SUITE-slim is debootstrap's minbase: packages of priority required, and apt. The rest is
# what docker-library/python's Dockerfile of the slim variant adds, and the libraries that it keeps.
_PACKAGES = (
    "?essential", "apt", "mount", "passwd", "usr-is-merged", "ca-certificates", "netbase", "tzdata",
    "libbz2-1.0", "libdb5.3", "libffi8", "libgdbm6", "liblzma5", "libncursesw6", "libreadline8",
    "libsqlite3-0", "libssl3", "libuuid1", "zlib1g",
)  # fmt: skip
_MERGED = ("bin", "sbin", "lib", "lib64")
_APT_SECONDS = 300.0
# What the slim variant removes from CPython, and what needs libraries that it does not have.
_NOT_IN_SLIM = ("test", "tests", "idlelib", "tkinter", "turtledemo", "site-packages", "__pycache__")
_ABOUT = (
    "import json, sys, sysconfig as s; v = s.get_config_var; print(json.dumps({"
    "'version': '.'.join(map(str, sys.version_info[:3])), 'stdlib': s.get_path('stdlib'),"
    "'library': (v('LIBDIR') + '/' + v('INSTSONAME')) if v('Py_ENABLE_SHARED') else '',"
    "'program': getattr(sys, '_base_executable', sys.executable)}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image in a folder.

    python: the version that took the place of the one in the reference; usually the same.
    """

    reference: str
    python: str
    environment: dict[str, str]


def make_base(reference: str, root: Path) -> Base:
    """Make the base image of this reference in a new folder.

    Raises: RigError for another kind of image, without apt, a mirror or a fitting Python.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise RigError(f"{reference}: only python:X.Y.Z-slim-SUITE can be made without a registry")
    root.mkdir(parents=True)
    _unpack(_packages(match["suite"]), root)
    _configure(root)
    python = _copy_python(match["version"], root)
    namespace = ("unshare", "--map-root-user")
    _run("the linker's cache", *namespace, "/sbin/ldconfig", "-r", str(root))
    environment = {
        "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHON_VERSION": python,
    }
    return Base(reference=reference, python=python, environment=environment)


def _packages(suite: str) -> list[Path]:
    """The packages of the base, as they are today on the mirror."""
    if shutil.which("apt-get") is None or not Path(_KEYRING).exists():
        raise RigError(f"Debian's packages need apt-get and {_KEYRING} (debian-archive-keyring)")
    home = cache_directory() / f"debian-{suite}"
    # Those of another day may be of other versions.
    shutil.rmtree(home / "archives", ignore_errors=True)
    for name in ("lists/partial", "archives/partial"):
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / "status").touch()
    sources = home / "sources.list"
    signed = f"deb [signed-by={_KEYRING}] {_MIRROR}"
    sources.write_text(
        f"{signed}/debian {suite} main\n{signed}/debian-security {suite}-security main\n",
        encoding="utf-8",
    )
    options = {
        "Dir::State": home,
        "Dir::State::status": home / "status",
        "Dir::State::lists": home / "lists",
        "Dir::Cache": home,
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Debug::NoLocking": 1,
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-qq", *(f"--option={name}={value}" for name, value in options.items())]
    _run("Debian's lists", *apt, "update")
    fetch = ("--yes", "--no-install-recommends", "--download-only", "install")
    _run("Debian's packages", *apt, *fetch, *_PACKAGES)
    return sorted((home / "archives").glob("*.deb"))


def _unpack(packages: list[Path], root: Path) -> None:
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    shell = ("bash", "-euo", "pipefail", "-c")
    tar = 'tar -x --keep-directory-symlink --no-same-owner -C "$2"'
    for package in packages:
        _run(package.name, *shell, f'dpkg-deb --fsys-tarfile "$1" | {tar}', "bash", package, root)


def _configure(root: Path) -> None:
    """What the scripts of the packages would write, as far as a program reads it."""
    for name in ("passwd", "group"):
        shutil.copy(root / "usr/share/base-passwd" / f"{name}.master", root / "etc" / name)
    shutil.copy(root / "usr/share/libc-bin/nsswitch.conf", root / "etc")
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(one.read_text() for one in authorities), encoding="utf-8")
    shutil.rmtree(root / "var/run")
    (root / "var/run").symlink_to("/run")


def _copy_python(version: str, root: Path) -> str:
    """Put a CPython of this machine into /usr/local, with pip; returns its version."""
    about = _about_python(version)
    minor = ".".join(about["version"].split(".")[:2])
    local = root / "usr/local"
    for name in ("bin", "lib"):
        (local / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(about["program"], local / "bin" / f"python{minor}")
    for name in ("python3", "python"):
        (local / "bin" / name).symlink_to(f"python{minor}")
    if about["library"]:
        shutil.copy(about["library"], local / "lib")
    shutil.copytree(
        about["stdlib"],
        local / "lib" / f"python{minor}",
        symlinks=True,
        ignore=shutil.ignore_patterns(*_NOT_IN_SLIM, "config-*", "_tkinter*"),
    )
    (local / "lib" / f"python{minor}" / "site-packages").mkdir()
    return about["version"]


def _about_python(version: str) -> dict[str, str]:
    """Where the files of the nearest Python are: of this minor version, or else this program's."""
    minor = ".".join(version.split(".")[:2])
    pyenv = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))) / "versions"
    built = [str(path) for path in pyenv.glob(f"{minor}.*/bin/python{minor}")]
    for program in (shutil.which(f"python{minor}"), *built, shutil.which("python3")):
        if program is None:
            continue
        done = subprocess.run(
            [program, "-c", f"import ensurepip; {_ABOUT}"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            timeout=60,
        )
        if done.returncode == 0:
            found: dict[str, str] = json.loads(done.stdout)
            return found
    raise RigError(f"no Python {minor} with ensurepip on this machine")


def _run(what: str, *command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        timeout=_APT_SECONDS,
    )
    if done.returncode != 0:
        raise RigError(f"{what}: {without_addresses(done.stderr.strip() or done.stdout.strip())}")
    return done.stdout
