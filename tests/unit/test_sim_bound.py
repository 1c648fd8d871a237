"""The lower bound on cost: by hand, and never above a schedule that was run."""

from dataclasses import replace

import numpy as np
import pytest

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.bounds.bound import least_replica_hours, least_work_seconds
from servingslo_lab.sim.bounds.oracle import find_oracle
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import flash_crowd, generated, uniform_lengths

LAW = ServiceLaw(
    step_fixed_seconds=0.01, step_per_sequence_seconds=0.001,
    prefill_per_token_seconds=1e-4, context_per_token_seconds=1e-6,
)  # fmt: skip
LIMITS = EngineLimits(max_num_seqs=10, max_num_batched_tokens=2000, kv_capacity_tokens=4000)
FLEET = FleetSpec(law=LAW, limits=LIMITS)
OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.5)


def trace(*lengths: tuple[int, int], duration_seconds: float = 100.0) -> Trace:
    """Requests a second apart."""
    return Trace(
        arrival_seconds=np.arange(len(lengths), dtype=np.float64),
        prompt_tokens=np.array([p for p, _ in lengths]),
        output_tokens=np.array([o for _, o in lengths]),
        duration_seconds=duration_seconds,
    )


@pytest.mark.parametrize(
    ("part", "fixed"),
    [
        # 0.01 × 11/10; attended: 10 × (100 + 5.5) = 1055 of 4000 tokens.
        pytest.param(1.0, 0.011, id="shared by ten sequences"),
        pytest.param(0.0, 0.01 * 1055 / 4000, id="shared by the cache"),
    ],
)
def test_the_least_work_is_that_of_the_law(part, fixed):
    """100 tokens in, 11 out: 10 ms of prefill, 11 ms of sequences, 1.055 ms of context."""
    found = least_work_seconds(FLEET, trace((100, 11)), part)
    assert found == pytest.approx([fixed + 0.010 + 0.011 + 0.001055])


def test_the_requests_with_the_most_work_may_miss():
    """Half of four: the two short ones remain."""
    both = least_replica_hours(FLEET, trace((100, 11), (100, 11), (900, 90), (900, 90)), OBJECTIVES)
    each = least_replica_hours(FLEET, trace((100, 11), (100, 11)), replace(OBJECTIVES, share=1.0))
    assert both == pytest.approx(each)
    assert each == pytest.approx(2 * (0.011 + 0.010 + 0.011 + 0.001055) / 3600)


@pytest.mark.parametrize("engine", ["h100-8b", "l4-small"])
@pytest.mark.parametrize("share", [0.9, 0.99])
def test_no_schedule_is_cheaper(engine, share):
    """The oracle pays more on a crowd, whatever the share."""
    course = flash_crowd(
        9.0, 4.0, at_seconds=60.0, rise_seconds=20.0, hold_seconds=60.0, duration_seconds=240.0
    )
    lengths = uniform_lengths((100, 900), (20, 200))
    requests = generated(course, lengths, np.random.default_rng(4))
    fleet = FleetSpec(engine=engine)
    objectives = replace(OBJECTIVES, share=share)
    oracle = find_oracle(fleet, requests, share=share)

    assert oracle is not None
    assert 0.0 < least_replica_hours(fleet, requests, objectives) < oracle.result.replica_hours
