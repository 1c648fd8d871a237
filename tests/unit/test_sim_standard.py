"""Standard cases, the clairvoyant oracle, and the production planner as an autoscaler."""

from pathlib import Path

import numpy as np
import pytest

from servingslo_lab.sim.bounds.oracle import find_oracle
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


def test_oracle_meets_the_share_with_fewer_replicas_than_its_peak_held():
    """Knowing the future is cheaper than holding the peak."""
    case = ramp()
    oracle = find_oracle(case.fleet(), case.trace, backend=compiled_backend())

    assert oracle is not None
    assert oracle.result.share_in_slo(1.0, 0.05) >= 0.99
    assert oracle.result.replica_seconds < oracle.peak * case.trace.duration_seconds
