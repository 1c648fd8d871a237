"""Memory of the bound in flight."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWrite:
    """A bound of each proxy: the replicas that it was for, and when it was ordered."""

    limit: int
    serving: int
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitMemory:
    """The bound that was written last, and whether load has shown that it holds.

    pending: until it is known whether it is in force. held: None until load was near it.
    over_since_seconds: since when more requests are in flight than it allows. above_since_seconds:
    since when it is more than replicas need. below_since_seconds: since when it is less than they
    could serve. Nothing of it survives a restart.
    """

    written: LimitWrite | None = None
    pending: LimitWrite | None = None
    held: bool | None = None
    over_since_seconds: float | None = None
    above_since_seconds: float | None = None
    below_since_seconds: float | None = None
