"""What features add to `servingslo run`: flags, and what is started while they are switched on."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from servingslo.cli.flags import Command, spread
from servingslo.plugins import Aspect

if TYPE_CHECKING:
    from servingslo.adapters.kubernetes.api.client import KubeClient
    from servingslo.adapters.kubernetes.pods.inventory import Inventory
    from servingslo.controller.grants import MakeGrants
    from servingslo.controller.lease.election import Election
    from servingslo.controller.lease.leadership import Leadership
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

    def options(self, flags: Any, deciders: int, /) -> object:
        """What is started; None if it is switched off. Raises: InvalidInputError.

        deciders: how many processes decide at once.
        """
        ...

    async def start(self, options: Any, serving: Serving, /) -> "MakeGrants | None":
        """Start it; what shares GPUs, if it does. Raises: InvalidInputError if that cannot be."""
        ...


# Makes a candidate for the Lease of the release whose name has this end, with these annotations.
ElectionOf = Callable[[str, Mapping[str, str | None]], "Election"]
MakeLeadership = Callable[..., "Leadership"]


def _one_lease(election: ElectionOf, _busy: Callable[[int], bool]) -> MakeLeadership:
    from servingslo.controller.lease.leadership import Leadership  # noqa: PLC0415  imports clients

    return partial(Leadership, release=election("", {}))


@dataclass(frozen=True, kw_only=True)
class Deciders:
    """How many processes of a release decide at once, and how they are elected.

    leadership: by what makes an election, and whether a write under a Lease is under way. note:
    adds to a line of the log which of them wrote it.
    """

    count: int = 1
    leadership: Callable[[ElectionOf, Callable[[int], bool]], MakeLeadership] = _one_lease
    note: Callable[[logging.LogRecord], bool] | None = None


ONE_DECIDER = Deciders()


class LeadPart(Protocol):
    """A feature by which several processes decide. At most one is in force."""

    @property
    def flags(self) -> type[Any]:
        """The dataclass; a field's name is the flag's."""
        ...

    def deciders(self, flags: Any, /, *, alone: bool) -> Deciders:
        """Who decides. alone: there is no Lease. Raises: InvalidInputError."""
        ...


class Started(NamedTuple):
    """A feature that is switched on."""

    part: RunPart
    options: object


RUN: Aspect[RunPart] = Aspect("run")
LEAD: Aspect[LeadPart] = Aspect("lead")
Flags = Mapping[str, Any]


def asks_features(command: Command) -> Command:
    """Give a command the flags of all features in place of its parameter `features`."""
    owned = [part.flags for part in LEAD.parts()] + [part.flags for part in RUN.parts()]
    rows = {one.name: one for flags in owned for one in fields(flags)}
    return spread(command, "features", rows, dict)


def deciders(stated: Flags, *, alone: bool) -> Deciders:
    """Who decides. alone: there is no Lease. Raises: InvalidInputError."""
    found = (part.deciders(_own(part.flags, stated), alone=alone) for part in LEAD.parts())
    return next(found, ONE_DECIDER)


def started(stated: Flags, deciders: int) -> tuple[Started, ...]:
    """The features that are switched on. Raises: InvalidInputError."""
    every = (
        Started(part, part.options(_own(part.flags, stated), deciders)) for part in RUN.parts()
    )
    return tuple(one for one in every if one.options is not None)


def _own(flags: type[Any], stated: Flags) -> Any:
    return flags(**{one.name: stated[one.name] for one in fields(flags)})
