"""What sleepers are worth: a flash crowd without a bound, and its price."""

import math

import pytest
from tests.benchmarks.matrix import TRACE
from tests.features.warm_replicas.warm_world import Played, played

from servingslo.features.warm_replicas.call import WarmTargets, warm_of
from servingslo.features.warm_replicas.knob import PART
from servingslo.features.warm_replicas.mix import WarmMemory
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.scoring import Objectives, score
from servingslo_lab.sim.standard import standard_case
from servingslo_lab.sim.traces.trace import read_trace

OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
# For a crowd that nothing foretells: as many on call as it needs, at a tenth of the price.
INSURED = WarmTargets(least=10, most=12, cost_ratio=0.1)


def crowd(stated: WarmTargets | None) -> tuple[float, Played]:
    """The share of the requests within the objectives in the standard flash crowd, and the run."""
    trace = standard_case("flash", "h100-8b", read_trace(TRACE), seed=61).trace
    fleet = FleetSpec(
        engine="h100-8b", cold_start=ColdStart(mean_seconds=90.0), initial_replicas=2,
        max_replicas=16,
    )  # fmt: skip
    run = played(fleet, trace, stated)
    found = score(run.result, OBJECTIVES, dollars_per_hour=1.0, oracle_hours=None)
    return found.share_ratio, run


@pytest.mark.slow("servingslo.features.warm_replicas", "servingslo.policy")
def test_sleepers_serve_a_flash_crowd_that_orders_come_too_late_for() -> None:
    """Without a bound at the gateway; at most a fifth dearer than the orders that came too late."""
    without, plain = crowd(None)
    share, run = crowd(INSURED)
    assert without < 0.93
    assert share >= 0.96
    assert run.most_asleep >= 8
    assert run.price_hours < 1.2 * plain.price_hours
    told = {one.reason for each in run.decisions if (one := warm_of(each.knobs))}
    assert told >= {Reason.ENGINES_PUT_TO_SLEEP, Reason.ENGINES_WOKEN}


def test_stored_memory_has_no_time_of_the_future() -> None:
    """A clock was ahead: otherwise all replicas would be kept until its time has come."""
    assert PART.load({"wake": 5.0, "needed": 900.0}, 100.0) == WarmMemory(
        wake_seconds=5.0, needed_seconds=100.0
    )
    for bad in ({"wake": math.nan, "needed": 1.0}, {"wake": 5.0, "needed": math.inf}):
        assert PART.load(bad, 100.0) is None
