"""The cheapest schedule of variants with the trace known.

1. Without costs of starts each interval has the cheapest counts that an enumeration finds.
2. Starts that cost make the schedule smoother.
3. The schedule meets the share for less than the best constant counts.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from servingslo_lab.sim.bounds.oracle import interval_work
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.pools.hindsight import best_counts
from servingslo_lab.sim.pools.optimum import counts_of, optimum
from servingslo_lab.sim.pools.replay import costs_of
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.workloads import flash_crowd, generated, uniform_lengths

AT_ONCE = ColdStart(mean_seconds=0.0, variation_ratio=0.0)
PRICES = {"fast": 4.0, "slow": 1.4}
POOLS = {
    "fast": FleetSpec(engine="h100-8b", price_per_hour=4.0, cold_start=AT_ONCE),
    "slow": FleetSpec(engine="l4-small", price_per_hour=1.4, cold_start=AT_ONCE),
}
OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
WORK = 0.5


def crowd():
    """Five minutes with four times the rate in the middle."""
    course = flash_crowd(
        15.0, 4.0, at_seconds=90.0, rise_seconds=20.0, hold_seconds=80.0, duration_seconds=300.0
    )
    rng = np.random.default_rng(1)
    return generated(course, uniform_lengths((50, 800), (10, 200)), rng)


def needs(offered) -> dict[str, np.ndarray]:
    """Replicas that each pool needs alone, not rounded."""
    found = {}
    for name, fleet in POOLS.items():
        work = interval_work(fleet, offered)
        before = np.concatenate([work[:1], work[:-1]])
        found[name] = np.maximum(work, (work + before) / 2) / WORK
    return found


@pytest.mark.parametrize("rule", ["load", "pod", "weights"])
def test_each_interval_has_the_cheapest_counts(rule):
    """As an enumeration of all counts finds them, whatever the gateway's rule."""
    offered = crowd()
    spec = VariantsSpec(
        pools=POOLS,
        routing=Routing.ROUND_ROBIN if rule == "pod" else Routing.LEAST_LOADED,
        weights={"fast": 1.0, "slow": 1.0} if rule == "weights" else {},
    )
    counts = counts_of(spec, offered, WORK)
    assert counts is not None
    needed = needs(offered)
    for t in range(counts.shape[1]):
        fast, slow = needed["fast"][t], needed["slow"][t]

        def enough(n: int, m: int, fast: float = fast, slow: float = slow) -> bool:
            if rule == "load":
                return n / fast + m / slow >= 1.0
            if rule == "weights":
                return n >= fast / 2 and m >= slow / 2
            return n + m >= max(fast if n else 1.0, slow if m else 1.0)

        prices = [
            PRICES["fast"] * n + PRICES["slow"] * m
            for n, m in product(range(40), range(60))
            if enough(n, m)
        ]
        found = [int(count) for count in counts[:, t]]
        assert enough(*found)
        assert PRICES["fast"] * found[0] + PRICES["slow"] * found[1] == pytest.approx(min(prices))


def test_the_schedule_meets_the_share_for_less_than_constant_counts():
    """It follows the crowd; constant counts are there all the time."""
    offered = crowd()
    spec = VariantsSpec(
        pools={n: replace(f, cold_start=ColdStart(mean_seconds=5.0)) for n, f in POOLS.items()}
    )
    best = optimum(spec, offered, OBJECTIVES)
    static = best_counts(spec, offered, OBJECTIVES, most={"fast": 20, "slow": 40}, seed=1)
    assert best is not None
    assert static is not None
    assert OBJECTIVES.share_of(best.result) >= 0.99
    cheapest, constant = (
        sum(one.dollars for one in costs_of(spec, result)) for result in (best, static.result)
    )
    assert cheapest < constant
