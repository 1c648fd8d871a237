"""What an engine can have done in a window, where no law of it is known yet."""

import math

import pytest

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.estimation.windows.counters import DOUBTED_WINDOWS
from servingslo.estimation.windows.plausible import impossible

SECONDS = 15.0


@pytest.mark.parametrize(
    ("between_seconds", "slots", "can_be"),
    [
        pytest.param(900.0, 64.0, True, id="nearly-full"),
        pytest.param(1_500.0, 64.0, True, id="full-and-gaps-from-before"),
        pytest.param(2_561.0, 64.0, False, id="counters-doubled"),
        pytest.param(2_561.0, 256.0, True, id="more-slots"),
        pytest.param(2_561.0, None, True, id="slots-unknown"),
    ],
)
def test_sequences_decode_in_slots(
    between_seconds: float, slots: float | None, can_be: bool
) -> None:
    """Between two of its tokens a sequence has a slot for as long."""
    said = impossible(
        {"inter_token_seconds": between_seconds, "generation_tokens": 1e5},
        seconds=SECONDS,
        requests_held=2.0,
        slots=slots,
        law=None,
    )
    assert (said == "") is can_be
    assert can_be or "between tokens" in said


def _pod(name: str, *, started: float, finished: float) -> PodSample:
    times = HistogramSample(
        upper_bounds=(1.0, math.inf),
        cumulative_counts=(started, started),
        sum=0.1 * started,
        count=started,
    )
    engine = EngineSample(
        engine="0",
        gauges_age_seconds=1.0,
        counters_age_seconds=1.0,
        histograms_age_seconds=1.0,
        running=2.0,
        waiting=0.0,
        generation_tokens_total=100.0 * started,
        prompt_tokens_total=500.0 * started,
        finished_total={"stop": finished},
        ttft_seconds=times,
    )
    return PodSample(name=name, ready=True, ready_for_seconds=3_600.0, engines=(engine,))


@pytest.mark.parametrize("begins", [0, 20])
def test_demand_is_followed_beside_a_pod_whose_counters_stay_impossible(begins: int) -> None:
    """Far more requests end there than begin; each other pod gets 4/s and then 8/s."""
    state, count = EstimatorState(), 0.0
    for tick in range(60):
        count += (4.0 if tick < 30 else 8.0) * SECONDS
        many = 100_000.0 * max(tick - begins, 0)
        pods = (
            *(_pod(name, started=count, finished=count) for name in ("a", "b", "c")),
            _pod("odd", started=count, finished=count + many),
        )
        state, found = update(state, FleetSample(time_seconds=SECONDS * tick, pods=pods))
    assert [doubt.pod for doubt in found.doubts] == ["odd"]
    assert found.doubts[0].windows > DOUBTED_WINDOWS
    assert found.arrival_rate_per_second is not None
    assert found.forecast.known
    expected = found.forecast.mean_per_second(0.0)
    assert expected == pytest.approx(found.arrival_rate_per_second, rel=0.1)
