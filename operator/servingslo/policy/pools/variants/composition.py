"""The least price at which variants carry a demand together: integer counts, exactly.

A composition is how many replicas each pool has. It holds if it carries the demand, and with the
stated number of failures in any one pool too. `search` finds the
cheapest: by `enumeration` with bounds, or as an `integer_program` on tabulated rates.

Two pools at 2.5 and 0.8 an hour carry 10/s and 3/s a replica. A demand of 32/s costs 10.0 on the
first alone and 8.8 on the second; two and four carry it for 8.2 if the split is by load.
"""

from dataclasses import dataclass, field, replace

from servingslo.policy.pools.variants.split import (
    Counts,
    RateOf,
    Rates,
    Split,
    carried_rate_per_second,
    remembered,
)
from servingslo.units import SECONDS_PER_HOUR


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
        cost = self.price_hourly * count
        if self.present is not None and count > self.present:
            new = count - self.present
            cost += self.price_hourly * new * self.cold_start_seconds / SECONDS_PER_HOUR
        return cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pools to compose, who splits the traffic, and the bound on GPUs (None is unbounded).

    rate_of: what so many replicas of each pool carry. Rates, and what counts keep, are remembered:
    a search asks for the same many times.
    """

    variants: tuple[Variant, ...]
    split: Split = field(default_factory=Split)
    gpus_max: int | None = None
    rate_of: Rates = field(init=False, repr=False, compare=False)
    _kept: dict[tuple[int, ...], float] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        variants = tuple(replace(one, rate_of=remembered(one.rate_of)) for one in self.variants)
        object.__setattr__(self, "variants", variants)
        object.__setattr__(self, "rate_of", {one.name: one.rate_of for one in variants})

    def carried_per_second(self, counts: Counts) -> float:
        """The greatest demand that these counts carry without failures."""
        return carried_rate_per_second(self.split, counts, self.rate_of)

    def kept_per_second(self, counts: Counts) -> float:
        """The greatest demand that is carried with the tolerated failures in any pool."""
        key = tuple(counts[one.name] for one in self.variants)
        if key not in self._kept:
            self._kept[key] = min(self.carried_per_second(left) for left in self.left_of(counts))
        return self._kept[key]

    def left_of(self, counts: Counts) -> list[Counts]:
        """The counts that serve: all, and with the failures of each pool."""
        return [counts] + [
            {**counts, one.name: max(counts[one.name] - one.tolerated_failures, 0)}
            for one in self.variants
            if one.tolerated_failures and counts[one.name] > 0
        ]

    def price_hourly(self, counts: Counts) -> float:
        """Price of an hour, without cold starts."""
        return sum(one.price_hourly * counts[one.name] for one in self.variants)

    def cost(self, counts: Counts) -> float:
        """Price of an hour, with the cold starts of replicas that are not present."""
        return sum(one.cost(counts[one.name]) for one in self.variants)

    def gpus(self, counts: Counts) -> int:
        """GPUs of these counts."""
        return sum(one.gpus_per_replica * counts[one.name] for one in self.variants)

    def within_gpus(self, counts: Counts) -> bool:
        """Whether the bound on GPUs allows these counts."""
        return self.gpus_max is None or self.gpus(counts) <= self.gpus_max

    def bounded(self, *, least: Counts | None = None, most: Counts | None = None) -> "Choice":
        """The same pools with at least and at most these counts, by pool."""
        return replace(
            self,
            variants=tuple(
                replace(
                    one,
                    minimum=(least or {}).get(one.name, one.minimum),
                    maximum=(most or {}).get(one.name, one.maximum),
                )
                for one in self.variants
            ),
        )

    def without_reserve(self) -> "Choice":
        """The same pools without tolerated failures."""
        return replace(
            self, variants=tuple(replace(one, tolerated_failures=0) for one in self.variants)
        )
