"""The questions of the control loop about leadership, and their answers without any Lease."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.controller.adapters import Adapters
from servingslo.controller.registry import Registry, Resource

# The term of a process without a Lease of the release: it leads by itself.
ALONE_TERM = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """The resources of a process, and what it takes to hand one over.

    joined: what joins each resource with others of one process, by uid; None if not known. learned:
    the fields of a status with what a resource has learnt. hand_over: writes a status with fields,
    if the resource is as known.
    """

    adapters: Adapters
    registry: Registry
    joined: Callable[[Sequence[Resource]], Mapping[str, Sequence[str]] | None]
    learned: Callable[[str], Mapping[str, Any]]
    hand_over: Callable[[ResourceRecord, Mapping[str, Any]], Awaitable[ResourceRecord]]


@dataclass(kw_only=True)
class Lead:
    """Which resources are of this process: all, because it is alone. Others override it."""

    _used: frozenset[int] = field(default=frozenset({0}), init=False)

    def process_term(self) -> str | None:
        """The term of this process as leader; None while it holds no Lease of its release."""
        return ALONE_TERM

    def held(self) -> Collection[int]:
        """The Leases of its release that this process holds now."""
        return self._used

    def holds_all(self) -> bool:
        """Whether no other process of the release decides."""
        return True

    def term(self, namespace: str, lease: int = 0) -> str | None:
        """The term in which it decides what is under a Lease in a namespace; None if not."""
        del lease
        return ALONE_TERM if namespace else None

    async def claim(self, namespaces: Iterable[str], leases: Iterable[int] = (0,)) -> None:
        """Claim these namespaces and release all others. leases: those of all resources."""
        del namespaces
        self._used = frozenset({0, *leases})

    def is_placed(self, resource: Resource) -> bool:
        """Whether it is known under which Lease a resource is."""
        del resource
        return True

    async def arrange(
        self, holdings: Holdings, acts: Callable[[Resource], bool], *, listed: bool
    ) -> Collection[Resource]:
        """Hand over what another process should decide; return what this one decides no longer.

        acts: whether this process decides a resource. listed: whether all resources are known.
        """
        del holdings, acts, listed
        return ()
