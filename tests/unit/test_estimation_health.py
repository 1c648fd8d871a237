"""Pods that lie and metrics that do not speak."""

from dataclasses import replace

import pytest
from tests.unit.estimation_fleet import page_of

from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.sample import EngineSample, GPUSample, PodSample
from servingslo.estimation.windows.freshness import assess


def _pod(name: str, *engines: EngineSample, xid_error: int = 0) -> PodSample:
    return PodSample(
        name=name,
        ready=True,
        age_seconds=1000.0,
        ready_for_seconds=900.0,
        engines=engines,
        gpus=(GPUSample(gpu="0", age_seconds=1.0, xid_error=xid_error),),
    )


def _after_ticks(count: int, sick: EngineSample | None, *, xid_error: int = 0) -> Estimate:
    """A healthy pod that serves 30 a tick beside a sick one that does not change."""
    state, estimate = EstimatorState(), None
    for number in range(count):
        pods = (
            _pod("well", page_of(100.0 + 30.0 * number)),
            _pod("sick", *([sick] if sick else []), xid_error=xid_error),
        )
        state, estimate = update(state, FleetSample(time_seconds=15.0 * number, pods=pods))
    assert estimate is not None
    return estimate


@pytest.mark.parametrize(
    ("sick", "why"),
    [
        pytest.param(page_of(50.0, waiting=9.0), "serving-nothing", id="queue-does-not-move"),
        pytest.param(
            page_of(50.0, running=0.0, waiting=3.0), "serving-nothing", id="waiting-none-running"
        ),
        pytest.param(page_of(50.0, running=7.0), "zero-throughput", id="running-without-tokens"),
        pytest.param(page_of(50.0, running=0.0), "receiving-nothing", id="no-request-ever-comes"),
        pytest.param(None, "metrics-missing", id="no-metrics"),
        pytest.param(page_of(50.0, age=500.0), "metrics-stale", id="old-metrics"),
    ],
)
def test_ready_pod_that_serves_nothing_is_no_capacity(sick: EngineSample | None, why: str) -> None:
    """Readiness is the pod's own word; throughput is not."""
    estimate = _after_ticks(6, sick)
    assert estimate.unreliable_pods == (("sick", why),)


def test_one_silent_window_is_not_proof() -> None:
    """A long prefill may span a scrape interval."""
    assert _after_ticks(2, page_of(50.0, running=7.0)).unreliable_pods == ()


@pytest.mark.parametrize(
    ("xid_error", "lies"),
    [
        pytest.param(79, True, id="fallen-off-the-bus"),
        pytest.param(13, False, id="application-error"),
        pytest.param(0, False, id="none"),
    ],
)
def test_fatal_gpu_errors_exclude_a_pod(xid_error: int, *, lies: bool) -> None:
    """Errors that need a reset exclude the pod, those of an application do not."""
    estimate = _after_ticks(1, page_of(50.0), xid_error=xid_error)
    assert estimate.unreliable_pods == ((("sick", f"xid-error-{xid_error}"),) if lies else ())


def test_pod_that_just_started_is_not_missed() -> None:
    """It has not been scraped yet."""
    new = replace(_pod("new"), ready_for_seconds=5.0)
    found = assess([_pod("old", page_of(1.0)), new], 60.0)
    assert found.coverage_ratio == 1.0
    assert found.unseen == ()
