"""A trial of a new setting: what the comparison of two groups of pods can and cannot say."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.knobs.trial.comparison import (
    CONFIDENCE_DEVIATIONS,
    LEAST_REQUESTS,
    SLOWER_RATIO,
    Sample,
    requests_needed,
    worse_in_words,
)
from servingslo.policy.knobs.trial.stages import (
    COMPARED_WITHIN_SECONDS,
    FirstPod,
    Stage,
    judge_first_pod,
    refuse,
)
from servingslo.reasons import Reason

OBJECTIVES = (Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),)
REQUESTS = st.integers(LEAST_REQUESTS, 100_000)
SHARES = st.floats(0.0, 1.0)
EFFECTS = st.floats(1.0, 64.0)
LIMITS = st.tuples(st.integers(1, 1024), st.integers(1, 16_384))


def _counted(requests: int, failed: float, seconds: float, effect: float = 1.0) -> Sample:
    """Requests of one pod whose latency is known by its mean alone."""
    lost = round(failed * requests)
    return Sample(
        answered=requests - lost,
        failed=lost,
        mean_seconds=seconds,
        engines=1,
        design_effect=effect,
    )


def _pod(new: Sample, old: Sample, needed: int) -> FirstPod[None]:
    return FirstPod(
        since_seconds=0.0,
        start_seconds=0.0,
        serves=True,
        settled=True,
        comparable=True,
        counters={},
        new=new,
        old=old,
        needed=needed,
    )


@given(requests=REQUESTS, failed=SHARES, late=SHARES, seconds=st.floats(0.001, 100.0))
def test_pods_that_serve_alike_are_never_told_apart(requests, failed, late, seconds) -> None:
    """Whatever they serve, as long as both do."""
    counted = _counted(requests, failed, seconds)
    assert worse_in_words(OBJECTIVES, counted, counted) == ""
    misses = late * requests
    ttft = HistogramDelta(upper_bounds=(1.0,), counts=(requests - misses, misses), sum=1.0)
    sample = replace(counted, deltas={LatencyMetric.TTFT: ttft})
    assert worse_in_words(OBJECTIVES, sample, sample) == ""


@given(ratio=st.floats(1.0, 8.0), effect=EFFECTS, seconds=st.floats(0.01, 10.0))
def test_a_slower_pod_is_seen_by_as_many_requests_as_were_asked_for(ratio, effect, seconds) -> None:
    """Beyond the stated error it is taken back, and within it never."""
    assume(abs(ratio - SLOWER_RATIO) > 1e-6)
    needed = max(requests_needed(1.0, SLOWER_RATIO - 1.0, effect), LEAST_REQUESTS)
    new, old = (_counted(needed, 0.0, one, effect) for one in (ratio * seconds, seconds))
    assert bool(worse_in_words(OBJECTIVES, new, old)) is (ratio > SLOWER_RATIO)


@given(error=st.floats(0.01, 0.5), effect=EFFECTS)
def test_half_the_error_takes_four_times_the_requests(error, effect) -> None:
    """And requests that vary together take as many more as vary like one."""
    whole = requests_needed(1.0, error, effect)
    assert abs(requests_needed(1.0, error / 2.0, effect) - 4 * whole) <= 4
    independent = 2.0 * (CONFIDENCE_DEVIATIONS / error) ** 2
    assert effect * independent <= whole <= effect * independent + 1.0


@given(new=st.integers(0, 400), old=st.integers(0, 400), needed=st.integers(30, 300))
def test_a_trial_ends_in_time(new, old, needed) -> None:
    """Too few requests are no verdict: the setting goes back."""
    pod = _pod(_counted(new, 0.0, 1.0), _counted(old, 0.0, 1.0), needed)
    began = judge_first_pod(_pod(Sample(), Sample(), needed), None, OBJECTIVES, 0.0).began
    assert began is not None
    now = judge_first_pod(pod, began, OBJECTIVES, 1.0)
    late = judge_first_pod(pod, began, OBJECTIVES, COMPARED_WITHIN_SECONDS)
    few = min(new, old) < LEAST_REQUESTS
    waits = few or max(new, old) < needed
    assert now.stage is (Stage.FIRST_POD if waits else Stage.EVERYWHERE)
    assert late.stage is (Stage.BACK if few else Stage.EVERYWHERE)
    assert (late.reason is Reason.BATCHING_CANARY_NOT_COMPARED) is few


@given(current=LIMITS, refused=LIMITS, wanted=LIMITS)
def test_a_refusal_holds_in_its_direction_and_for_its_time(current, refused, wanted) -> None:
    """The same setting is refused, and none on the other side of the current one."""
    refusal = refuse(refused, 0.0)
    assert refusal.forbids(current, refused, 0.0) is (refused != current)
    mirrored = tuple(2 * now - no for now, no in zip(current, refused, strict=True))
    assert not refusal.forbids(current, mirrored, 0.0)
    assert not refusal.forbids(current, wanted, refusal.until_seconds)
