"""Percentiles as observed where servers tell means alone: the law's, moved to the observed mean."""

from dataclasses import replace

import pytest

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.pods.batch_limits import StatedLimits
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.models.waits.dynamic_batches import BatchTimes
from servingslo.policy.inputs import Limits, Observation, ReplicaTargets, ScaleTarget, Targets
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Action, Reason

LAW = ServiceLaw(
    step_fixed_seconds=0.06, step_per_sequence_seconds=0.01, prefill_per_token_seconds=0.0
)
BATCHER = DynamicBatcher(largest_batch=8, window_seconds=0.02)
RATE = 40.0
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="rank"),
    objectives=(Objective(metric=LatencyMetric.LATENCY, percentile=95.0, threshold_seconds=0.2),),
    replicas=ReplicaTargets(minimum=1, maximum=8),
    service_law=LAW,
    stated_limits=StatedLimits(batcher=BATCHER),
)


def pod(seconds: float, slowness: float = 1.0, **summaries: object) -> PodSample:
    """A server after so many seconds of its load, whose times are so much longer than the law."""
    times = BatchTimes(LAW, BATCHER, RATE)
    done = RATE * seconds
    wait = float(times.weight @ times.wait_seconds) * slowness
    latency = float(times.weight @ times.latency_seconds) * slowness
    engine = EngineSample(
        engine="rank",
        runtime="triton",
        gauges_age_seconds=0.0,
        counters_age_seconds=0.0,
        waiting=2.0,
        generation_tokens_total=done,
        finished_total={"": done},
        executions_total=done / times.batch_mean,
        request_seconds_total=done * latency,
        queued_seconds_total=done * wait,
        **summaries,
    )
    return PodSample(
        name="a", ready=True, age_seconds=1e4, ready_for_seconds=1e4, engines=(engine,)
    )


def decided(slowness: float = 1.0, **summaries: object):
    """The decision after a few scrapes of one server."""
    state = PlannerState()
    for number in range(12):
        now = 15.0 * number
        seen = Observation(
            time_seconds=now, namespace="team", name="rank", desired_replicas=1,
            current_replicas=1, runtime="triton", pods=(pod(1000.0 + now, slowness, **summaries),),
        )  # fmt: skip
        decision, state = plan(seen, TARGETS, Limits(), state, now)
    return decision


def told(decision) -> set[Reason]:
    """Reasons of its steps."""
    return {step.reason for step in decision.steps}


@pytest.mark.parametrize("slowness", [1.0, 1.2])
def test_observed_percentile_is_that_of_the_law_at_the_observed_mean(slowness):
    """Told beside the prediction, with what is behind it; a fit of one load has a law near it."""
    decision = decided(slowness)
    times = BatchTimes(LAW, BATCHER, RATE)
    expected = slowness * times.quantile(times.latency_seconds, 0.95)
    assert decision.objectives[0].observed_seconds == pytest.approx(expected, rel=0.15)
    assert Reason.LATENCY_FROM_MEANS in told(decision)


def test_summaries_are_told_in_their_place():
    """Where a server exports them they are what was observed."""
    decision = decided(latency_quantiles={"0.5": 0.1, "0.95": 0.31, "0.99": 0.4})
    assert decision.objectives[0].observed_seconds == pytest.approx(0.31)
    assert Reason.LATENCY_OF_WORST_POD in told(decision)


def test_a_server_of_batches_is_sized_to_its_percentile():
    """One server at 40 per second has a p95 of 244 ms, so that 200 ms ask for more."""
    decision = decided()
    assert decision.action is Action.SCALE_UP
    assert decision.model.trusted
    needed = {need.constraint.value: need.replicas for need in decision.needs}
    assert needed["latency"] == decision.replicas_after >= 2


def test_what_the_batcher_states_is_for_servers_of_batches_alone():
    """Another runtime with the same statement is estimated as ever."""
    sample = FleetSample(
        time_seconds=0.0, pods=(pod(1000.0),), stated_limits=TARGETS.stated_limits, runtime="vllm"
    )
    _, estimate = update(EstimatorState(), sample)
    assert estimate.limits is None
    _, estimate = update(EstimatorState(), replace(sample, runtime="triton"))
    assert estimate.limits is not None
    assert estimate.limits.batcher == BATCHER
