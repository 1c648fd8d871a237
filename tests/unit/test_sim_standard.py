"""Standard cases, the clairvoyant oracle, and the production planner as an autoscaler."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import ServiceLaw
from servingslo_lab.sim.bounds.oracle import find_oracle, schedule
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import DynamicBatching, SlowPods
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.replicas.backend import compiled_backend
from servingslo_lab.sim.standard import CASE_NAMES, Case, standard_case
from servingslo_lab.sim.traces.trace import read_trace

TRACES = Path(__file__).parents[2] / "examples" / "traces"
CONVERSATION = read_trace(TRACES / "azure_llm_2023_conversation.csv")


def ramp() -> Case:
    """Eighteen minutes of the small card's ramp."""
    return standard_case("ramp", "l4-small", CONVERSATION, seed=1, part=0.5)


@pytest.mark.parametrize("name", CASE_NAMES)
def test_standard_case_is_the_same_for_the_same_seed(name):
    """Cases are data: nothing but name, card and seed decides what arrives."""
    one, again, other = (
        standard_case(name, "l4-small", CONVERSATION, seed=seed, part=0.2).trace
        for seed in (1, 1, 2)
    )

    assert np.array_equal(one.arrival_seconds, again.arrival_seconds)
    assert np.array_equal(one.prompt_tokens, again.prompt_tokens)
    assert not np.array_equal(one.arrival_seconds, other.arrival_seconds)


def test_unknown_case_is_refused():
    """The message lists the cases."""
    with pytest.raises(InvalidInputError, match="azure-conv"):
        standard_case("monday", "l4-small", CONVERSATION, seed=1)


def test_schedule_never_falls_below_the_work_of_its_interval():
    """Whole replicas, at least one, and slow to fall."""
    work = np.array([0.0, 3.0, 1.0, 1.0, 0.1])

    assert schedule(work, 1.0) == (1, 3, 2, 1, 1)
    assert schedule(work, 0.5) == (1, 6, 4, 2, 2)


def test_oracle_meets_the_share_with_fewer_replicas_than_its_peak_held():
    """Knowing the future is cheaper than holding the peak."""
    case = ramp()
    oracle = find_oracle(case.fleet(), case.trace, backend=compiled_backend())

    assert oracle is not None
    assert oracle.result.share_in_slo(1.0, 0.05) >= 0.99
    assert oracle.result.replica_seconds < oracle.peak * case.trace.duration_seconds


def test_impossible_share_has_no_oracle():
    """No count of replicas makes a prefill shorter than its own step."""
    case = ramp()
    oracle = find_oracle(case.fleet(), case.trace, ttft_seconds=1e-6, backend=compiled_backend())

    assert oracle is None


def test_production_planner_follows_a_ramp_on_the_virtual_clock():
    """The very plan() of the operator scales the simulated fleet up and says why each time."""
    case = ramp()
    planner = Production(benchmark_targets(max_replicas=40))
    fleet = replace(case.fleet(), initial_replicas=3, max_replicas=40)
    result = simulate(fleet, case.trace, planner, seed=1, backend=compiled_backend())

    assert len(planner.decisions) == len(result.ticks)
    assert result.ticks[-1].desired > 2 * result.ticks[0].desired
    assert result.share_in_slo(1.0, 0.05) > 0.9


def test_oracle_serves_by_the_engines_of_its_fleet():
    """Only friction is taken away: engines, queues and clients stay what they are."""
    case = standard_case("ramp", "l4-small", CONVERSATION, seed=1, part=0.15)
    slow = replace(
        case.fleet(), dynamic_batching=DynamicBatching(), slow_pods=SlowPods(share_ratio=1.0),
        law=ServiceLaw(
            step_fixed_seconds=0.05, step_per_sequence_seconds=0.05, prefill_per_token_seconds=0.0
        ),
    )  # fmt: skip
    oracle = find_oracle(slow, case.trace, ttft_seconds=1.0, backend=compiled_backend())

    assert oracle is not None
    # A batch answers at once and as a whole; one request alone takes 0.1 s.
    assert oracle.result.tpot_seconds.max() == 0.0
    assert oracle.result.ttft_seconds.min() == pytest.approx(0.1)
