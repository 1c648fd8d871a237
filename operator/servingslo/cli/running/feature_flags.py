"""What features add to `servingslo run`: flags, and what is started while they are switched on."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from servingslo.cli.flags import Command, spread
from servingslo.plugins import Aspect

if TYPE_CHECKING:
    from servingslo.adapters.kubernetes.api.client import KubeClient
    from servingslo.adapters.kubernetes.pods.inventory import Inventory
    from servingslo.controller.grants import MakeGrants
    from servingslo.controller.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a feature may use of the running operator.

    handed_over: the count that a resource's last decision hands over, by namespace, name and pool;
    None while nothing is known. leads: whether this process decides. stack: closes what was
    started.
    """

    client: "KubeClient"
    namespaces: tuple[str, ...]
    inventory: "Inventory"
    registry: "Registry"
    handed_over: Callable[[str, str, str], int | None]
    leads: Callable[[], bool]
    stack: AsyncExitStack


class RunPart(Protocol):
    """The flags of one feature: fields of a dataclass, each annotated as a Typer option."""

    @property
    def flags(self) -> type[Any]:
        """The dataclass; a field's name is the flag's."""
        ...

    @property
    def gives_counts(self) -> bool:
        """Whether other autoscalers get counts from it."""
        ...

    def options(self, flags: Any, shards: int, /) -> object:
        """What is started; None if it is switched off. Raises: InvalidInputError."""
        ...

    async def start(self, options: Any, serving: Serving, /) -> "MakeGrants | None":
        """Start it; what shares GPUs, if it does. Raises: InvalidInputError if that cannot be."""
        ...


class Started(NamedTuple):
    """A feature that is switched on."""

    part: RunPart
    options: object


RUN: Aspect[RunPart] = Aspect("run")
Flags = Mapping[str, Any]


def asks_features(command: Command) -> Command:
    """Give a command the flags of all features in place of its parameter `features`."""
    rows = {one.name: one for part in RUN.parts() for one in fields(part.flags)}
    return spread(command, "features", rows, dict)


def started(stated: Flags, shards: int) -> tuple[Started, ...]:
    """The features that are switched on. Raises: InvalidInputError."""
    found = (
        (part, part.flags(**{one.name: stated[one.name] for one in fields(part.flags)}))
        for part in RUN.parts()
    )
    every = (Started(part, part.options(flags, shards)) for part, flags in found)
    return tuple(one for one in every if one.options is not None)
