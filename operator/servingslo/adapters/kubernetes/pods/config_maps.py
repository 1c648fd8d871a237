"""ConfigMaps used in a container's command line, if the administrator allows reading them.

A container takes its variables and its file when it starts. So the ConfigMap's content at that time
counts. Secrets are never read.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.adapters.kubernetes.pods.config_references import ConfigMapUse
from servingslo.adapters.kubernetes.pods.records import ContainerRecord
from servingslo.errors import ClusterError, InvalidNameError
from servingslo.runtimes.launch.arguments import command_words
from servingslo.runtimes.launch.command_line import expanded, in_use
from servingslo.runtimes.launch.config_file import config_file, config_path
from servingslo.runtimes.shell.words import LONGEST_LINE_CHARACTERS, NO_VARIABLES, Environment
from servingslo.units import seconds_from_timestamp

# A change affects only pods that start after it, so a minute's delay is acceptable.
READ_AGAIN_SECONDS = 60.0
# A ConfigMap that was not used for this long is dropped: its workload is gone.
FORGOTTEN_SECONDS = 3600.0
# Contents kept of one ConfigMap: in a rollout, pods of this many may run at once.
_VERSIONS_KEPT = 4
# Characters kept for one namespace, so that no tenant fills the memory: enough for a thousand
# workloads with a file of flags each.
MOST_CHARACTERS = 8 << 20
# ConfigMaps read for the variables of one container; each costs a request a minute.
MOST_OF_A_CONTAINER = 32
NOT_ALLOWED = "the operator may not read ConfigMaps (--read-config-maps)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWith:
    """A container's command line as the engine received it.

    config: words of the file that it names. unread: which parts are not known, and why; '' if all
    are. It contains names of ConfigMaps and keys, never a content. environment: for the script of
    a shell. given: command and args as in the pod.
    """

    command: tuple[str, ...]
    args: tuple[str, ...]
    environment: Environment = field(default=NO_VARIABLES, hash=False)
    given: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    unread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The content of a ConfigMap, and since when it is valid; None if not known."""

    data: Mapping[str, str]
    since_seconds: float | None
    characters: int


@dataclass(slots=True)
class _Known:
    """The cache entry of one ConfigMap: contents, oldest first, or why there is none."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    read_seconds: float | None = None
    asked_seconds: float = 0.0
    versions: tuple[_Version, ...] = ()
    problem: str = ""


class ConfigMapData(Protocol):
    """Contents of ConfigMaps."""

    async def data(
        self, namespace: str, name: str, at_seconds: float | None
    ) -> Mapping[str, str] | str:
        """The content at a time, seconds since the epoch; None for now. A string is a problem."""
        ...


class ConfigMaps:
    """Reads each ConfigMap at most once a minute, for all callers together."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], _Known] = {}
        self._held: Counter[str] = Counter()
        self._forgot_seconds = 0.0

    async def data(
        self, namespace: str, name: str, at_seconds: float | None
    ) -> Mapping[str, str] | str:
        """The content at a time, or why it is not known; a refusal is cached like a content."""
        try:
            path = api_path("v1", "configmaps", namespace=namespace, name=name)
        except InvalidNameError as error:
            return str(error)
        now = SystemClock.elapsed_seconds()
        known = self._known.setdefault((namespace, name), _Known())
        known.asked_seconds = now
        async with known.lock:
            if known.read_seconds is None or now - known.read_seconds >= READ_AGAIN_SECONDS:
                await self._read(path, namespace, known)
                known.read_seconds = now
                self._forget(now)
        if known.problem:
            return known.problem
        for version in reversed(known.versions):
            since = version.since_seconds
            if at_seconds is None or since is None or since <= at_seconds:
                return version.data
        return "it was changed after the container started"

    async def _read(self, path: ApiPath, namespace: str, known: _Known) -> None:
        try:
            item = await self._client.get(path)
        except ClusterError as error:
            # Earlier contents are still valid for the containers that started with them.
            known.problem = "" if known.versions else str(error)
            return
        known.problem = ""
        # A too long value is not used, in a variable or a file: keep only that it is too long.
        data = {
            key: value[: LONGEST_LINE_CHARACTERS + 1]
            for key, value in (item.get("data") or {}).items()
        }
        if not known.versions or known.versions[-1].data != data:
            version = _Version(
                data=data,
                since_seconds=_changed_seconds(item),
                characters=sum(len(key) + len(value) for key, value in data.items()),
            )
            self._keep(namespace, known, (*known.versions, version)[-_VERSIONS_KEPT:])

    def _keep(self, namespace: str, known: _Known, versions: tuple[_Version, ...]) -> None:
        """Keep these contents, or only the last, or none, as the namespace's limit allows."""
        others = self._held[namespace] - _characters(known.versions)
        fitting = (
            some
            for some in (versions, versions[-1:], ())
            if not some or others + _characters(some) <= MOST_CHARACTERS
        )
        known.versions = next(fitting)
        self._held[namespace] = others + _characters(known.versions)
        if versions and not known.versions:
            known.problem = f"those of this namespace hold more than {MOST_CHARACTERS} characters"

    def _forget(self, now: float) -> None:
        if now - self._forgot_seconds < READ_AGAIN_SECONDS:
            return
        self._forgot_seconds = now
        for key, known in list(self._known.items()):
            if now - known.asked_seconds > FORGOTTEN_SECONDS:
                self._keep(key[0], known, ())
                del self._known[key]
        self._held = +self._held


class NoConfigMaps:
    """ConfigMaps if the operator may not read them."""

    async def data(
        self, _namespace: str, _name: str, _at_seconds: float | None
    ) -> Mapping[str, str] | str:
        """Return why they are not read."""
        return NOT_ALLOWED


async def started_with(
    container: ContainerRecord,
    namespace: str,
    config_maps: ConfigMapData,
    at_seconds: float | None,
    *,
    has_file: bool,
) -> StartedWith:
    """A container's command line with its variables and its file, as they were at a time.

    at_seconds: when it started, since the epoch; None for now. has_file: its runtime takes flags
    from a file, as vLLM does; files of other runtimes are not read.
    """
    use = container.config_maps or ConfigMapUse()
    known, problems = await _variables(container, use, namespace, config_maps, at_seconds)
    unset = container.unset | (frozenset() if problems else use.others - known.keys())
    problems = [*([container.unread] if container.unread else []), *problems]
    command, args = expanded(container.command, known), expanded(container.args, known)
    environment = Environment(known=in_use((*command, *args), known), unset=unset)
    words: tuple[str, ...] = ()
    if has_file:
        path = config_path(command_words(command, args, environment))
        if path is not None:
            words, problem = await _file(path, use, namespace, config_maps, at_seconds)
            problems.extend([problem] if problem else [])
    return StartedWith(
        command=command,
        args=args,
        environment=environment,
        given=(*container.command, *container.args),
        config=words,
        unread="; ".join(problems),
    )


async def _variables(
    container: ContainerRecord,
    use: ConfigMapUse,
    namespace: str,
    config_maps: ConfigMapData,
    at_seconds: float | None,
) -> tuple[dict[str, str], list[str]]:
    """The known variables, in Kubernetes' order: whole maps, the later one first, then env."""
    names = {name for _, name in use.whole} | {name for name, _ in use.variables.values()}
    if len(names) > MOST_OF_A_CONTAINER:
        problem = (
            f"variables are taken from {len(names)} ConfigMaps, more than {MOST_OF_A_CONTAINER}"
        )
        return {**container.environment}, [problem]
    known: dict[str, str] = {}
    problems = []
    for prefix, name in use.whole:
        data = await config_maps.data(namespace, name, at_seconds)
        if isinstance(data, str):
            problems.append(f"ConfigMap {name}: {data}")
            continue
        known.update({f"{prefix}{key}": value for key, value in data.items()})
    for variable in use.elsewhere:
        known.pop(variable, None)
    for variable, (name, key) in use.variables.items():
        known.pop(variable, None)
        data = await config_maps.data(namespace, name, at_seconds)
        if isinstance(data, str):
            problems.append(f"ConfigMap {name}: {data}")
        elif key in data:
            known[variable] = data[key]
        else:
            problems.append(f"ConfigMap {name} has no key {key}")
    for variable, value in container.environment.items():
        known[variable] = expanded([value], known)[0]
    return known, list(dict.fromkeys(problems))


async def _file(
    path: str,
    use: ConfigMapUse,
    namespace: str,
    config_maps: ConfigMapData,
    at_seconds: float | None,
) -> tuple[tuple[str, ...], str]:
    """The words of a container's file, and why there are none; '' if they are known."""
    file = PurePosixPath(use.directory) / path
    # Of two volumes at nested paths, the inner one is visible; at one path, the last source.
    sources = sorted(use.files, key=lambda one: len(one.path.parts))
    found = [(one.config_map, key) for one in sources if (key := one.key_of(file)) is not None]
    if not found:
        return (), "the file of --config is in no ConfigMap"
    name, key = found[-1]
    data = await config_maps.data(namespace, name, at_seconds)
    if isinstance(data, str):
        return (), f"ConfigMap {name}: {data}"
    if key not in data:
        return (), f"ConfigMap {name} has no key {key}"
    read = config_file(data[key])
    return read.words, f"key {key} of ConfigMap {name} {read.problem}" if read.problem else ""


def _characters(versions: tuple[_Version, ...]) -> int:
    return sum(version.characters for version in versions)


def _changed_seconds(item: KubeObject) -> float | None:
    """Time of the last write to a ConfigMap, since the epoch; None if not recorded."""
    metadata = item["metadata"]
    times = [entry.get("time") for entry in metadata.get("managedFields") or ()]
    told = [seconds_from_timestamp(time) for time in (*times, metadata.get("creationTimestamp"))]
    return max((time for time in told if time is not None), default=None)
