"""Pools of unequal cards, the demand that counts of them carry together, and how it is split."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.plugins import Key
from servingslo.policy.pools.division import Counts, RateOf, carried_rate_per_second
from servingslo.units import SECONDS_PER_HOUR

# A replica in a larger pool carries at least as much, up to this part: a frontier is known to
# 0.02 % of a rate, and pooling only helps.
UNEVENNESS_RATIO = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitUse:
    """How variants share the traffic.

    rule: 'EvenByPod', or 'Observed' while a law is missing. shares_ratio: of the demand, by pool,
    at the counts decided. lacking: replicas that sold-out pools would have, by pool. extra_hourly:
    what the others cost more an hour for it; None without, and if they do not carry it.
    """

    rule: str
    shares_ratio: Mapping[str, float] = field(default_factory=dict)
    lacking: Mapping[str, int] = field(default_factory=dict)
    extra_hourly: float | None = None


SPLIT: Key[SplitUse] = Key("split", SplitUse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One pool as a choice.

    price_hourly: of one replica. rate_of: what so many replicas carry, requests per second; rises
    with the count, and a replica carries no less in a larger pool, up to a thousandth.
    minimum, maximum: of its count. tolerated_failures: replicas of this pool that may be lost.
    present: replicas that exist or were ordered; each one beyond them costs its cold start as well,
    which has to pay within an hour. None: the cold start is not counted.
    """

    name: str
    price_hourly: float
    rate_of: RateOf
    maximum: int
    minimum: int = 0
    tolerated_failures: int = 0
    gpus_per_replica: int = 1
    present: int | None = None
    cold_start_seconds: float = 0.0

    def cost(self, count: int) -> float:
        """Price of an hour of so many replicas, with the cold starts of those not present."""
        new = 0 if self.present is None else max(count - self.present, 0)
        return self.price_hourly * (count + new * self.cold_start_seconds / SECONDS_PER_HOUR)

    def kept_each_per_second(self, count: int) -> float:
        """What a replica carries when the tolerated failures have left the others."""
        left = max(count - self.tolerated_failures, 1)
        return self.rate_of(left) / left


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pools to compose, and the bound on their GPUs (None is unbounded)."""

    variants: tuple[Variant, ...]
    gpus_max: int | None = None

    def carried_per_second(self, counts: Counts) -> float:
        """The greatest demand that these counts carry without failures."""
        return carried_rate_per_second(counts, {one.name: one.rate_of for one in self.variants})

    def kept_per_second(self, counts: Counts) -> float:
        """The greatest demand that is carried with the tolerated failures in any one pool."""
        used = [one for one in self.variants if counts[one.name] > 0]
        lost = max((min(one.tolerated_failures, counts[one.name]) for one in used), default=0)
        each = min((one.kept_each_per_second(counts[one.name]) for one in used), default=0.0)
        return (sum(counts.values()) - lost) * each

    def keeps(self, counts: Counts, demand: float) -> bool:
        """Whether a demand is carried with the tolerated failures, to the error of a rate."""
        return self.kept_per_second(counts) >= demand * (1.0 - UNEVENNESS_RATIO)

    def price_hourly(self, counts: Counts) -> float:
        """Price of an hour, without cold starts."""
        return sum(one.price_hourly * counts[one.name] for one in self.variants)

    def gpus(self, counts: Counts) -> int:
        """GPUs of these counts."""
        return sum(one.gpus_per_replica * counts[one.name] for one in self.variants)

    def within_gpus(self, counts: Counts) -> bool:
        """Whether the bound on GPUs allows these counts."""
        return self.gpus_max is None or self.gpus(counts) <= self.gpus_max

    def bounded(self, *, least: Counts | None = None, most: Counts | None = None) -> "Choice":
        """The same pools with at least and at most these counts, by pool."""
        variants = tuple(
            replace(
                one,
                minimum=(least or {}).get(one.name, one.minimum),
                maximum=(most or {}).get(one.name, one.maximum),
            )
            for one in self.variants
        )
        return replace(self, variants=variants)


def shares(counts: Counts) -> dict[str, float]:
    """Share of the demand that each pool gets, evenly by pod; all 0 without replicas."""
    whole = sum(counts.values())
    return {pool: count / whole if whole else 0.0 for pool, count in counts.items()}
