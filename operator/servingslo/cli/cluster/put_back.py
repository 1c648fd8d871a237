"""Puts back what stands on the cluster, one object after another, and says so."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import typer

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.api.owned_fields import Owned, OwnedObject, OwnedValues, Value
from servingslo.cli.flags import Command, spread
from servingslo.errors import ClusterError, NotFoundError, WriteConflictError
from servingslo.plugins import Aspect

# Another writer may come in between a reading and the write after it.
_ATTEMPTS = 5
One = TypeVar("One", bound=OwnedObject[Any])


class ReleasePart(Protocol):
    """What one feature puts back. flags: a dataclass of one flag, annotated as a Typer option."""

    @property
    def flags(self) -> type[Any]:
        """The flag's name is the field's; what is put back only while it is on."""
        ...

    async def put_back(self, client: KubeClient, namespaces: tuple[str, ...], /) -> list[str]:
        """Put it back and say so; what could not be, in words."""
        ...


RELEASE: Aspect[ReleasePart] = Aspect("release")


def asks_features(command: Command) -> Command:
    """Give a command the flags of all features in place of its parameter `features`."""
    rows = {one.name: one for part in RELEASE.parts() for one in fields(part.flags)}
    return spread(command, "features", rows, dict)


async def put_back_each(
    kind: str,
    standing: Awaitable[Sequence[One]],
    end: Callable[[One], Awaitable[str]],
    again: Callable[[One], Awaitable[One]],
) -> tuple[int, list[str]]:
    """End each of them, and say so; how many, and what could not be.

    end: what was done, in words. again: the same, read again.
    """
    put_back, failed = 0, list[str]()
    try:
        found = await standing
    except ClusterError as error:
        return 0, [f"{kind}: {error}"]
    for one in found:
        where = f"{one.kind} {one.namespace}/{one.name}"
        try:
            typer.echo(f"{where}: {await _ended(one, end, again)}")
            put_back += 1
        except ClusterError as error:
            failed.append(f"{where}: {error}")
    return put_back, failed


async def put_back_fields(
    kind: str, field: OwnedValues[Value, Owned], told: Callable[[Value], str]
) -> tuple[int, list[str]]:
    """Put the field back in each object of a kind; how many, and what could not be."""

    async def end(one: Value) -> str:
        await field.put_back(one, released=True)
        return told(one)

    async def again(one: Value) -> Value:
        return await field.read(one.namespace, one.name)

    return await put_back_each(kind, field.owned(), end, again)


async def _ended(
    one: One, end: Callable[[One], Awaitable[str]], again: Callable[[One], Awaitable[One]]
) -> str:
    """What was done, in words. Raises: ClusterError where it could not be."""
    for attempt in range(_ATTEMPTS):
        if one.owner is None:
            return "put back by another client"
        try:
            return await end(one)
        except NotFoundError:
            return "gone"
        except WriteConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
            one = await again(one)
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRelease:
    """A field that a feature puts back in every object of a kind.

    search: of a client and namespaces. said: what was done to one.
    """

    flags: type[Any]
    kind: str
    search: Callable[..., OwnedValues[Any, Any]]
    said: str

    async def put_back(self, client: KubeClient, namespaces: tuple[str, ...]) -> list[str]:
        """Restore each; what could not be."""
        found = self.search(client, namespaces=namespaces)
        return (await put_back_fields(self.kind, found, lambda _: self.said))[1]
