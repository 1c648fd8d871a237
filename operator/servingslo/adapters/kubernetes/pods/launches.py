"""What the command lines of pods say; each distinct one is read once.

All pods of a template have one command line, and it does not change while they run. Reading it as a
shell would takes longer than everything else about a pod.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from servingslo.adapters.kubernetes.pods.config_maps import (
    ConfigMapData,
    StartedWith,
    started_with,
)
from servingslo.adapters.kubernetes.pods.engine_container import engine_container, sidecar_refused
from servingslo.adapters.kubernetes.pods.records import ContainerRecord
from servingslo.estimation.sample import EngineLaunch
from servingslo.policy.inputs import LIMIT_FIELDS
from servingslo.policy.ports import EngineArguments
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.arguments import batch_arguments, change_refused, command_words
from servingslo.runtimes.launch.command_line import command_line
from servingslo.runtimes.launch.programs import start_unseen
from servingslo.runtimes.launch.settings import (
    launch_arguments,
    metrics_switched_off,
    parse_launch_arguments,
)
from servingslo.runtimes.launch.write_refusals import write_refused
from servingslo.runtimes.profile import RuntimeProfile

T = TypeVar("T")
# Unread parts of command lines that are listed; of the rest only the number is reported.
_MOST_TOLD = 4
# Answers kept: a few for each workload of one operator. Beyond, all are read again.
_MOST_KEPT = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a pod's command line says. arguments: None while the runtime is not known."""

    launch: EngineLaunch | None = None
    arguments: EngineArguments | None = None
    metrics_off: str = ""

    @property
    def of_replica(self) -> "Launch":
        """The same, of a pod that stands for all nodes of its engine."""
        if self.launch is None or not self.launch.node:
            return self
        unread = self.launch.unread.removeprefix(self.launch.node).removeprefix("; ")
        return replace(self, launch=replace(self.launch, node="", unread=unread))


_NOTHING = Launch()


class Launches:
    """Reads command lines; for one operator, whose runtimes do not change."""

    def __init__(self, config_maps: ConfigMapData) -> None:
        self._config_maps = config_maps
        self._kept: dict[Hashable, object] = {}

    def engine(
        self,
        containers: tuple[ContainerRecord, ...],
        name: str | None,
        runtime: str | None,
        *,
        scraped_ports: frozenset[int] = frozenset(),
        among: Collection[str] = (),
    ) -> ContainerRecord | None:
        """The engine's container, see `engine_container`."""
        among = frozenset(among)
        return self._once(
            ("engine", containers, name, runtime, scraped_ports, among),
            lambda: engine_container(
                containers, name, runtime=runtime, scraped_ports=scraped_ports, among=among
            ),
        )

    async def of(
        self,
        engine: ContainerRecord | None,
        namespace: str,
        started_seconds: float | None,
        profile: RuntimeProfile | None,
    ) -> Launch:
        """What the engine's container was started with, and what that says.

        started_seconds: when its container started, None if unknown.
        """
        if engine is None:
            return _NOTHING
        key: Hashable = ("launch", engine, None if profile is None else profile.name)
        # Without ConfigMaps the pod itself says everything.
        if engine.config_maps is None and key in self._kept:
            return cast("Launch", self._kept[key])
        started = await started_with(
            engine,
            namespace,
            self._config_maps,
            started_seconds,
            has_file=profile is None or bool(profile.launch.config),
        )
        if engine.config_maps is not None:
            key = key, started
        return self._once(key, lambda: read_launch(engine, started, profile))

    def change_refused(self, container: ContainerRecord, profile: RuntimeProfile) -> str:
        """Why the limits in a template's container cannot be changed; '' if they can."""
        return self._once(
            ("change", container, profile.name), lambda: _change_refused(container, profile)
        )

    def _once(self, key: Hashable, read: Callable[[], T]) -> T:
        if key not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = read()
        return cast("T", self._kept[key])


def read_launch(
    engine: ContainerRecord, started: StartedWith, profile: RuntimeProfile | None
) -> Launch:
    """What an engine's container says that was started with this."""
    own = command_words(started.command, started.args, started.environment)
    words = (*own, *started.config)
    off = metrics_switched_off(words, catalogue.known() if profile is None else (profile,))
    if profile is None:
        return Launch(metrics_off=off)
    known_image = profile.starts_in_image is not None and profile.starts_in_image(engine.image)
    environment = replace(started.environment, closed=known_image)
    line = command_line(started.command, started.args, profile.starts, environment, started.given)
    limits = batch_arguments(line, profile, started.config)
    found = launch_arguments(line, profile, started.config)
    given = parse_launch_arguments(engine.command, engine.args, profile)
    unseen = (
        start_unseen(started.command, started.args, engine.image, profile) if engine.name else ""
    )
    other = ""
    if profile.other_defaults and None in (limits.max_num_seqs, limits.max_num_batched_tokens):
        around = (f"{name}={value}" for name, value in engine.environment.items())
        other = profile.other_defaults(engine.image, (*started.command, *started.args, *around))
    told = (found.node, started.unread, unseen, other, *limits.unread, *found.unread)
    is_read = engine.name and not engine.unread and not unseen and not other and not line.unread
    launch = EngineLaunch(
        flags=given.flags,
        accelerator=engine.accelerator or engine.part,
        part_of_card=engine.part,
        throughput_mode=found.throughput_mode,
        chunked_prefill=found.chunked_prefill,
        max_model_len=found.max_model_len,
        api_server_count=found.api_server_count,
        node=found.node,
        unread=_told([one for one in told if one]),
        # For an ambiguous engine, a start command that is not seen, an engine with other defaults,
        # or a script or program that is not read, no limit is assumed.
        unread_limits=limits.unread_limits if is_read else LIMIT_FIELDS,
    )
    arguments = EngineArguments(
        max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens
    )
    return Launch(launch=launch, arguments=arguments, metrics_off=off)


def _told(unread: Sequence[str]) -> str:
    """The unread parts, in one line of bounded length."""
    several = tuple(dict.fromkeys(unread))
    more = len(several) - _MOST_TOLD
    return "; ".join([*several[:_MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])


def _change_refused(chosen: ContainerRecord, profile: RuntimeProfile) -> str:
    return (
        chosen.unread
        or sidecar_refused(chosen)
        or write_refused(
            chosen.command, chosen.args, profile, chosen.environment, image=chosen.image
        )
        or change_refused(chosen.command, chosen.args, profile, chosen.environment)
    )
