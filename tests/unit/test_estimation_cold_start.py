"""Cold starts: how long pods take from their order to readiness, and in which parts."""

import json
from dataclasses import replace

import pytest

from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.pods import cold_start
from servingslo.estimation.pods.cold_start import ColdStartState
from servingslo.estimation.sample import PodSample
from servingslo.estimation.stored_estimator import learned, restore


def _started(name: str, ready_after: float, scheduled_after: float) -> PodSample:
    return PodSample(
        name=name, ready_after_seconds=ready_after, scheduled_after_seconds=scheduled_after
    )


def test_cold_start_is_measured_without_waiting_for_a_gpu() -> None:
    """Ten minutes unschedulable are shortage; the image and the weights took 90 s all the same."""
    pods = [_started("a", 95.0, 5.0), _started("b", 90.0, 5.0), _started("c", 690.0, 600.0)]
    found = cold_start.estimate(cold_start.observe(ColdStartState(), pods))
    assert found.source == "measured"
    assert found.sample_count == 3
    assert found.mean_seconds == pytest.approx(5.0 + (90.0 + 85.0 + 90.0) / 3)


@pytest.mark.parametrize(
    ("waits", "median"), [((5.0, 60.0), None), ((5.0, 180.0, 240.0, 901.0), 240.0)]
)
def test_the_wait_for_a_node_is_that_of_pods_that_waited(
    waits: tuple[float, ...], median: float | None
) -> None:
    """A minute is scheduling, more than a quarter of an hour a shortage."""
    pods = [_started(str(number), wait + 90.0, wait) for number, wait in enumerate(waits)]
    found = cold_start.estimate(cold_start.observe(ColdStartState(), pods))
    assert found.node_median_seconds == median


def test_of_many_pods_the_newest_count_and_the_measure_stands_still() -> None:
    """Forty old pods took 60 s, ten new ones 170 s, in whatever order they are listed."""
    old = [_started_at(f"old-{number:02d}", 60.0, age=9000.0 - number) for number in range(40)]
    new = [_started_at(f"new-{number:02d}", 170.0, age=400.0 - number) for number in range(10)]
    for pods in ([*old, *new], [*new, *old]):
        state, means = ColdStartState(), []
        for _ in range(4):
            state = cold_start.observe(state, pods)
            means.append(cold_start.estimate(state).mean_seconds)
        # Six old ones are left of the sixteen that are remembered.
        assert means == [pytest.approx((10 * 170.0 + 6 * 60.0) / 16)] * 4


def _started_at(name: str, ready_after: float, age: float) -> PodSample:
    return PodSample(name=name, ready_after_seconds=ready_after, age_seconds=age)


def test_a_cold_start_is_split_where_the_start_of_containers_was_seen() -> None:
    """Scheduling, image and loading add up to the mean; without the start, loading has both."""
    seen = [
        PodSample(
            name=str(number),
            scheduled_after_seconds=4.0,
            started_after_seconds=4.0 + image,
            ready_after_seconds=4.0 + image + 50.0,
        )
        for number, image in enumerate((20.0, 30.0, 40.0))
    ]
    state = cold_start.observe(ColdStartState(), seen)
    found = cold_start.estimate(state)
    assert found.scheduling_mean_seconds == pytest.approx(4.0)
    assert found.image_mean_seconds == pytest.approx(30.0)
    assert found.loading_mean_seconds == pytest.approx(50.0)
    assert found.mean_seconds == pytest.approx(84.0)
    stored = learned(replace(EstimatorState(), cold_start=state))
    assert restore(json.loads(json.dumps(stored))).cold_start == state
    whole = cold_start.estimate(cold_start.observe(ColdStartState(), [_started("a", 84.0, 4.0)]))
    assert whole.image_mean_seconds is None
    assert whole.loading_mean_seconds == pytest.approx(80.0)


def test_cold_start_has_a_prior_until_a_pod_started() -> None:
    """Minutes, and it says that it is a prior."""
    found = cold_start.estimate(ColdStartState())
    assert found.source == "prior"
    assert found.mean_seconds >= 60.0
