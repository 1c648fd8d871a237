"""The pools of variants as they are at a tick, and the demand that is expected of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from servingslo.policy.pools.variants.composition import Choice
from servingslo.policy.pools.variants.split import Counts, SplitRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A pool as it is: replicas ordered, and those of them that serve.

    Those that start are taken to need a whole cold start. placeable: whether new pods find a place
    now.
    """

    ordered: int
    serving: int
    placeable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandAhead:
    """Demand to plan for, requests per second: now, and when a replica of each pool would serve."""

    now_per_second: float
    at_lead_per_second: Mapping[str, float]

    @property
    def greatest_per_second(self) -> float:
        """The greatest of all these times."""
        return max([self.now_per_second, *self.at_lead_per_second.values()])


@dataclass(frozen=True, slots=True)
class PresentFleet:
    """The pools at this tick.

    choice: with the ordered replicas as present ones. bare: without tolerated failures, for what
    really serves. ordered, serving: counts by pool.
    """

    choice: Choice
    bare: Choice
    demand: DemandAhead
    ordered: dict[str, int] = field(default_factory=dict)
    serving: dict[str, int] = field(default_factory=dict)

    def ready_by(self, seconds: float) -> dict[str, int]:
        """Replicas of those ordered that serve after so many seconds."""
        soon = {one.name for one in self.choice.variants if one.cold_start_seconds <= seconds}
        return {**self.serving, **{name: self.ordered[name] for name in soon}}

    def least_carried(self, low: Counts, high: Counts) -> float:
        """The least demand that any counts between these carry, bounds included.

        Pods start and leave in any order. Where rates add up, the fewest carry least. Where pods
        share the traffic, one pod of a pool that was empty may carry less than none.
        """
        if self.choice.split.sums_rates or self.choice.split.rule is SplitRule.FIXED_WEIGHTS:
            return self.bare.carried_per_second(low)
        corners = [
            sorted({low[name], max(low[name], min(high[name], 1))})
            for name in (one.name for one in self.choice.variants)
        ]
        names = [one.name for one in self.choice.variants]
        return min(
            self.bare.carried_per_second(dict(zip(names, corner, strict=True)))
            for corner in product(*corners)
        )
