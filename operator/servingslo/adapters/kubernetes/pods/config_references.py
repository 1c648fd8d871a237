"""ConfigMaps and keys that a container's command line refers to; no ConfigMap is read here.

Source: Kubernetes, core/v1 EnvVar, EnvFromSource, Volume and VolumeMount. Secrets are not read: a
variable or file from a Secret counts as unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.runtimes.launch.command_line import TOO_LONG, expanded, references
from servingslo.runtimes.launch.config_file import CONFIG_FLAG
from servingslo.runtimes.shell.words import LONGEST_LINE_CHARACTERS

# Variables of vLLM's own that choose an engine with other defaults.
_CHOOSING = frozenset({"VLLM_USE_V1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A ConfigMap volume that is mounted in a container.

    items: path in the volume to key; None if every key is a file of its name.
    sub_path: the one path of the volume that is mounted at `path`; '' for all of it.
    """

    path: PurePosixPath
    config_map: str
    items: Mapping[str, str] | None = None
    sub_path: str = ""

    def key_of(self, file: PurePosixPath) -> str | None:
        """The key of this file; None if the file is not in this volume."""
        if not file.is_relative_to(self.path):
            return None
        inside = str(PurePosixPath(self.sub_path) / file.relative_to(self.path))
        if self.items is None:
            return inside if "/" not in inside else None
        return self.items.get(inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMapUse:
    """A container's references to ConfigMaps.

    variables: name to (ConfigMap, key). whole: (prefix, ConfigMap) of envFrom, in its order.
    elsewhere: variables set from a source that is not read; whole maps do not set them.
    others: variables that only whole maps may set. files: in the order of the mounts. directory:
    the base of relative paths, '' if unknown.
    """

    variables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    whole: tuple[tuple[str, str], ...] = ()
    elsewhere: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    files: tuple[Mounted, ...] = ()
    directory: str = ""


def literal_variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Literal variables that command or args refer to, or that choose an engine.

    The others would waste memory. A value may refer to earlier variables; Kubernetes expands them.
    Raises: ArgumentsNotUnderstoodError if they are too long, together with command and args.
    """
    room = LONGEST_LINE_CHARACTERS - sum(map(len, words_of(container)))
    names = _names_referred(container) | _CHOOSING if room >= 0 else ()
    known: dict[str, str] = {}
    for variable in container.get("env") or ():
        name, value = variable["name"], variable.get("value")
        if variable.get("valueFrom") or name not in names:
            known.pop(name, None)
        else:
            known[name] = expanded([value or ""], known)[0]
            room -= len(name) + len(known[name])
        if room < 0:
            break
    if room < 0:
        raise ArgumentsNotUnderstoodError(TOO_LONG)
    return known


def unset_variables(container: Mapping[str, Any]) -> frozenset[str]:
    """Variables that command or args refer to and that nothing in the pod sets."""
    if container.get("envFrom"):
        return frozenset()
    return _names_referred(container) - _names_set(container)


def _names_set(container: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(variable["name"] for variable in container.get("env") or ())


def _names_referred(container: Mapping[str, Any]) -> frozenset[str]:
    """Names in command and args, and in the values of variables with those names."""
    values = {
        variable["name"]: variable.get("value") or "" for variable in container.get("env") or ()
    }
    found: set[str] = set()
    ahead = set(references(words_of(container)))
    while ahead:
        found |= ahead
        inside = [values[name] for name in ahead if "$(" in values.get(name, "")]
        ahead = set(references(inside)) - found
    return frozenset(found)


def config_map_use(
    container: Mapping[str, Any], volumes: Sequence[Mapping[str, Any]]
) -> ConfigMapUse | None:
    """The references of command and args to ConfigMaps; None if there are none."""
    words = words_of(container)
    refers = _names_referred(container)
    reads_file = any(CONFIG_FLAG in word.split() for word in words)
    if not refers and not reads_file:
        return None
    named = [v for v in container.get("env") or () if v["name"] in refers and v.get("valueFrom")]
    sources = {v["name"]: v["valueFrom"].get("configMapKeyRef") for v in named}
    whole = container.get("envFrom") or () if refers else ()
    found = ConfigMapUse(
        variables={
            name: (source.get("name", ""), source["key"])
            for name, source in sources.items()
            if source
        },
        whole=tuple(
            (entry.get("prefix") or "", entry["configMapRef"].get("name", ""))
            for entry in whole
            if entry.get("configMapRef")
        ),
        elsewhere=frozenset(name for name, source in sources.items() if not source),
        others=refers - _names_set(container)
        if all(entry.get("configMapRef") for entry in whole)
        else frozenset(),
        files=tuple(_mounted(container, volumes)) if reads_file else (),
        directory=container.get("workingDir") or "",
    )
    nothing = not (found.variables or found.whole or reads_file)
    return None if nothing else found


def words_of(container: Mapping[str, Any]) -> list[str]:
    """The words of a container's command and args."""
    return [*(container.get("command") or ()), *(container.get("args") or ())]


def _mounted(
    container: Mapping[str, Any], volumes: Sequence[Mapping[str, Any]]
) -> Iterator[Mounted]:
    sources = {volume["name"]: list(_config_maps_of(volume)) for volume in volumes}
    for mount in container.get("volumeMounts") or ():
        for source in sources.get(mount["name"], ()):
            items = source.get("items")
            yield Mounted(
                path=PurePosixPath(mount["mountPath"]),
                config_map=source.get("name", ""),
                items=None if items is None else {item["path"]: item["key"] for item in items},
                sub_path=mount.get("subPath") or "",
            )


def _config_maps_of(volume: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The ConfigMaps of a volume: one, or those of a projected one."""
    if volume.get("configMap"):
        yield volume["configMap"]
    for source in (volume.get("projected") or {}).get("sources") or ():
        if source.get("configMap"):
            yield source["configMap"]
