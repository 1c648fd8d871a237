"""The optimum over intervals in hindsight equals brute force over all schedules."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from tests.variant_choices import BY_LOAD, EVEN, by_weights, choice, every, h100, l4, pooling

from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.cases import pool_case
from servingslo_lab.sim.pools.cheapest_schedule import cheapest_schedule
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.pools.variant_choice import choice_of, demand_of
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"

HOUR = 3600.0


def brute_force(pools, demand, seconds, share):
    """The least price over all schedules that miss no more than allowed."""
    counts = every(pools)
    carried = [pools.carried_per_second(one) for one in counts]
    prices = [pools.price_hourly(one) * seconds / HOUR for one in counts]
    allowed = (1.0 - share) * sum(demand)
    found = [
        sum(prices[i] for i in schedule)
        for schedule in itertools.product(range(len(counts)), repeat=len(demand))
        if sum(max(d - carried[i], 0.0) for d, i in zip(demand, schedule, strict=True))
        <= allowed + 1e-9
    ]
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rule", [BY_LOAD, EVEN, by_weights(h100=0.7, l4=0.3)])
def test_it_equals_brute_force(rule, seed):
    """All schedules of four intervals, for several shares."""
    rng = np.random.default_rng(seed)
    pools = choice(
        h100(maximum=2, rate_of=pooling(10.0, 0.2)),
        l4(maximum=3, rate_of=pooling(4.0, 0.2)),
        split=rule,
        gpus_max=4,
    )
    demand = rng.uniform(0.0, 12.0, size=4).tolist()
    share = float(rng.choice([0.9, 0.97, 1.0]))
    found = cheapest_schedule(pools, demand, interval_seconds=60.0, share=share)
    expected = brute_force(pools, demand, 60.0, share)
    if expected is None:
        assert found is None
        return
    assert found.price == pytest.approx(expected, rel=1e-3)
    assert found.bound <= expected * (1 + 1e-9)
    assert found.missed_ratio <= 1.0 - share + 1e-6


class TestSimulatedPools:
    """An h100-8b carries about 14/s of conversation for 4.0, an l4-small 2.5/s for 0.8."""

    @staticmethod
    def schedule(trace, pools, **gateway):
        """The cheapest schedule of five minutes each, with 1 % missed."""
        spec = VariantsSpec(pools={name: FleetSpec(engine=name) for name in pools}, **gateway)
        objectives = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
        pools = choice_of(spec, trace, objectives, most=40)
        demand = demand_of(trace, 300.0)
        return cheapest_schedule(pools, demand, interval_seconds=300.0, share=0.99)

    def test_both_cards_are_cheaper_than_the_better_one(self):
        """By load; evenly by pod they are as dear, by weights dearer."""
        trace = pool_case("variants-diurnal", read_trace(TRACE), seed=1)
        both = self.schedule(trace, ["h100-8b", "l4-small"])
        single = min(self.schedule(trace, [name]).price for name in ("h100-8b", "l4-small"))
        assert both.price < single
        even = self.schedule(trace, ["h100-8b", "l4-small"], routing=Routing.ROUND_ROBIN)
        assert both.price < even.price <= single * (1 + 1e-3)
        weights = self.schedule(
            trace, ["h100-8b", "l4-small"], weights={"h100-8b": 0.5, "l4-small": 0.5}
        )
        assert weights.price > both.price

    def test_demand_is_the_mean_of_each_interval(self):
        """All requests, in the order of the intervals."""
        trace = pool_case("variants-diurnal", read_trace(TRACE), seed=1)
        demand = demand_of(trace, 300.0)
        assert len(demand) == 12
        assert sum(demand) * 300.0 == pytest.approx(len(trace))
