"""The questions of the control loop about leadership, and their answers without any Lease."""

from collections.abc import Collection, Iterable
from typing import Protocol

# The term of a process without a Lease of the release: it leads by itself.
ALONE_TERM = "alone"


class Lead(Protocol):
    """The questions of the control loop about leadership."""

    def process_term(self) -> str | None:
        """The term of this process as leader; None while it is not the leader of any shard."""
        ...

    def held(self) -> Collection[int]:
        """The shards that this process holds now."""
        ...

    def term(self, namespace: str, shard: int) -> str | None:
        """The term in which this process acts on a shard in a namespace; None while it does not."""
        ...

    async def claim(self, namespaces: Iterable[str], shards: Iterable[int]) -> None:
        """Claim these namespaces and release all others. shards: those of all resources."""
        ...

    def shards(self) -> int | None:
        """How many shards share the resources; None while each has to stay where it is."""
        ...

    def surplus(self) -> int | None:
        """The shard to give back to another process, if any."""
        ...

    async def give_back(self, shard: int) -> None:
        """Give a shard back; nothing more is decided for its resources."""
        ...


class Alone:
    """A process without other operators next to it, as in a recording or a test."""

    def __init__(self) -> None:
        self._used: frozenset[int] = frozenset({0})

    def process_term(self) -> str | None:
        """The same term at all times."""
        return ALONE_TERM

    def held(self) -> Collection[int]:
        """All shards of resources."""
        return self._used

    def term(self, namespace: str, shard: int) -> str | None:
        """The same term in every namespace."""
        del shard
        return ALONE_TERM if namespace else None

    async def claim(self, namespaces: Iterable[str], shards: Iterable[int]) -> None:
        """Claim no namespace."""
        del namespaces
        self._used = frozenset({0, *shards})

    def shards(self) -> int | None:
        """Nothing is moved."""
        return None

    def surplus(self) -> int | None:
        """Nothing is given back."""
        return None

    async def give_back(self, shard: int) -> None:
        """Nothing is given back."""
