"""Stories of a workload about which anything may be true, and targets for it."""

import math

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    FallbackBehavior,
    FallbackTargets,
    Mode,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.reasons import Reason

OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.6),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.03),
    Objective(metric=LatencyMetric.QUEUE_TIME, percentile=99.0, threshold_seconds=0.2),
)
TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama")
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def histograms(draw):
    """A cumulative histogram of few observations."""
    counts = draw(st.lists(st.integers(0, 50), min_size=4, max_size=4))
    places = ((0.01, 0.1), (0.11, 1.0), (1.1, 100.0), (101.0, 1000.0))
    cumulative = [float(sum(counts[: i + 1])) for i in range(4)]
    return HistogramSample(
        upper_bounds=(0.1, 1.0, 100.0, math.inf),
        cumulative_counts=tuple(cumulative),
        # Where in its bucket each observation lies is open, that it lies there is not.
        sum=sum(c * draw(st.floats(*ends)) for c, ends in zip(counts, places, strict=True)),
        count=cumulative[-1],
    )


@st.composite
def engines(draw):
    """An engine of which anything may be unknown."""
    gauge = st.one_of(st.none(), st.floats(0.0, 500.0))
    counter = st.one_of(st.none(), st.floats(0.0, 1e7))
    age = st.one_of(st.none(), st.floats(0.0, 400.0))
    histogram = st.one_of(st.none(), histograms())
    limit = st.one_of(st.none(), st.integers(1, 512))
    return EngineSample(
        engine="0",
        gauges_age_seconds=draw(age),
        counters_age_seconds=draw(age),
        histograms_age_seconds=draw(age),
        running=draw(gauge),
        waiting=draw(gauge),
        kv_usage_ratio=draw(st.one_of(st.none(), st.floats(0.0, 1.0))),
        kv_capacity_tokens=draw(st.one_of(st.none(), st.floats(1.0, 1e6))),
        max_num_seqs=draw(limit),
        max_num_batched_tokens=draw(st.one_of(st.none(), st.integers(16, 16384))),
        prompt_tokens_total=draw(counter),
        generation_tokens_total=draw(counter),
        finished_total=draw(st.dictionaries(st.sampled_from(["stop", "abort"]), st.floats(0, 1e6))),
        preempted_total=draw(counter),
        ttft_seconds=draw(histogram),
        inter_token_seconds=draw(histogram),
        time_per_output_token_seconds=draw(histogram),
        queue_seconds=draw(histogram),
        prompt_tokens=draw(histogram),
        output_tokens=draw(histogram),
        iteration_tokens=draw(histogram),
        nan_metrics=draw(st.sampled_from([(), ("vllm:num_requests_running",)])),
    )


@st.composite
def pods(draw, name):
    """A pod in any condition."""
    ready = draw(st.booleans())
    return PodSample(
        name=name,
        template_hash="a",
        ready=ready,
        deleting=draw(st.booleans()),
        age_seconds=draw(st.one_of(st.none(), st.floats(0.0, 1e5))),
        ready_after_seconds=draw(st.one_of(st.none(), st.floats(1.0, 500.0))),
        ready_for_seconds=draw(st.one_of(st.none(), st.floats(0.0, 1e5))) if ready else None,
        restarts=draw(st.integers(0, 2)),
        failing_reason=draw(st.sampled_from([None, "CrashLoopBackOff after OOMKilled"])),
        unready_for_seconds=None if ready else draw(st.one_of(st.none(), st.floats(0.0, 1e5))),
        unschedulable_reason=draw(st.sampled_from([None, "Insufficient nvidia.com/gpu"])),
        engines=tuple(draw(st.lists(engines(), max_size=2))),
    )


@st.composite
def histories(draw):
    """A past with a season, without one, too short or empty, and with gaps."""
    days = draw(st.integers(0, 10))
    hours = np.arange(24 * days)
    wave = 1.0 + draw(st.sampled_from([0.0, 0.9])) * np.sin(2.0 * np.pi * hours / 24.0)
    peak = draw(st.floats(0.0, 1e4))
    gap = draw(st.integers(2, 50))
    return RateHistory(
        start_seconds=-86400.0 * days,
        bin_seconds=3600.0,
        rates_per_second=tuple(
            None if hour % gap == 1 else float(peak * rate)
            for hour, rate in zip(hours, wave, strict=True)
        ),
    )


PROBLEMS = (
    Reason.PROMETHEUS_UNAVAILABLE,
    Reason.METRICS_PARTIAL,
    Reason.SCALER_CONFLICT,
    Reason.TARGET_NOT_FOUND,
)


@st.composite
def stories(draw):
    """A few ticks of a workload about which anything may be true."""
    ticks = draw(st.integers(1, 6))
    names = draw(st.lists(st.sampled_from(["p0", "p1", "p2"]), unique=True, max_size=3))
    desired = draw(st.one_of(st.none(), st.integers(0, 12)))
    known_at = draw(st.integers(0, ticks))
    return tuple(
        Observation(
            time_seconds=15.0 * tick,
            namespace="inference",
            name="llama",
            desired_replicas=desired,
            current_replicas=desired,
            rollout_in_progress=draw(st.booleans()),
            pods=tuple(draw(pods(name)) for name in names),
            problems=tuple(
                SignalProblem(reason=reason)
                for reason in draw(st.lists(st.sampled_from(PROBLEMS), max_size=1))
            ),
            history=draw(histories()) if tick == known_at else None,
        )
        for tick in range(1, ticks + 1)
    )


@st.composite
def all_targets(draw):
    """Valid targets."""
    low, high = sorted(draw(st.tuples(st.integers(1, 10), st.integers(1, 10))))
    return Targets(
        target=TARGET,
        objectives=OBJECTIVES[: draw(st.integers(1, 3))],
        mode=draw(st.sampled_from(Mode)),
        replicas=ReplicaTargets(
            minimum=low, maximum=high, tolerated_failures=draw(st.integers(0, 2))
        ),
        fallback=FallbackTargets(
            behavior=draw(st.sampled_from(FallbackBehavior)),
            replicas=draw(st.one_of(st.none(), st.integers(1, 20))),
            stale_after_seconds=60.0,
        ),
    )
