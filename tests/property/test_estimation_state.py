"""Laws of the estimator as a whole.

1. Counters that only grow give arrivals equal to what arrived, whatever the scrape moments.
2. No rate is negative and nothing becomes NaN, whatever restarts, vanishes, comes or goes.
3. A tick without a newer scrape changes no rate; a repeated sample teaches nothing.
4. The state survives JSON: dumped and read back it gives the same estimates.
5. What is stored for a restart is at most 3 KiB and reads back; garbage reads as knowing nothing.
6. The state is bounded by the pods that exist.
"""

import json
import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.estimation.stored_estimator import learned, restore

EDGES = (0.1, 1.0, 10.0, 100.0, 1000.0, float("inf"))
STORED_BYTES = 3072
state_adapter = TypeAdapter(EstimatorState)


def _histogram(count: float, mean: float) -> HistogramSample:
    return HistogramSample(
        upper_bounds=EDGES,
        cumulative_counts=tuple(count if mean <= edge else 0.0 for edge in EDGES),
        sum=count * mean,
        count=count,
    )


def _engine(served: float, waiting: float, *, age: float = 1.0) -> EngineSample:
    """An engine that has given `served` requests their first token."""
    return EngineSample(
        engine="0",
        gauges_age_seconds=age,
        counters_age_seconds=age,
        histograms_age_seconds=age,
        running=5.0,
        waiting=waiting,
        kv_usage_ratio=0.2,
        kv_capacity_tokens=400_000.0,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        prompt_tokens_total=1000.0 * served,
        cached_prompt_tokens_total=100.0 * served,
        generation_tokens_total=200.0 * served,
        finished_total={"stop": served},
        preempted_total=0.0,
        rejected_total=0.0,
        ttft_seconds=_histogram(served, 0.2),
        inter_token_seconds=_histogram(199.0 * served, 0.02),
        time_per_output_token_seconds=_histogram(served, 0.02),
        latency_seconds=_histogram(served, 4.0),
        queue_seconds=_histogram(served, 0.01),
        prompt_tokens=_histogram(served, 900.0),
        output_tokens=_histogram(served, 200.0),
        iteration_tokens=_histogram(40.0 * served, 5.0),
    )


def _pod(name: str, *engines: EngineSample, ready_for: float = 500.0) -> PodSample:
    return PodSample(
        name=name,
        ready=True,
        age_seconds=ready_for + 100.0,
        ready_for_seconds=ready_for,
        ready_after_seconds=100.0,
        scheduled_after_seconds=2.0,
        engines=engines,
    )


def _numbers_of(value: Any) -> list[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, int | float):
        return [float(value)]
    if isinstance(value, dict):
        return [n for v in value.values() for n in _numbers_of(v)]
    if isinstance(value, list | tuple):
        return [n for v in value for n in _numbers_of(v)]
    return _numbers_of(state_adapter.dump_python(value))


def _check_sane(estimate: Estimate) -> None:
    for rate in (
        estimate.arrival_rate_per_second,
        estimate.offered_rate_per_second,
        estimate.rejected_per_second,
        estimate.prompt_tokens_mean,
        estimate.output_tokens_mean,
    ):
        assert rate is None or (math.isfinite(rate) and rate >= 0)
    if estimate.arrival_rate_per_second is not None:
        low = estimate.forecast.quantile_per_second(90.0, 0.5)
        high = estimate.forecast.quantile_per_second(90.0, 0.95)
        assert 0 <= low <= high
        assert math.isfinite(high)


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.floats(0.0, 14.0)),
        min_size=3,
        max_size=8,
    )
)
def test_arrivals_are_conserved_whatever_the_scrape_moments(
    ticks: list[tuple[int, int, float]],
) -> None:
    """Invariant 1: served and waiting both count, over windows of any length."""
    state = EstimatorState()
    served = 0.0
    waiting = 0.0
    arrived = 0.0
    last: tuple[float, float] | None = None
    for number, (new, queued, age) in enumerate(ticks):
        now = 1000.0 + 15.0 * number
        served += new
        arrived += new + queued - waiting
        waiting = float(queued)
        # What runs emits tokens, so that nothing runs where no counter moves.
        engine = replace(_engine(served, waiting, age=age), running=5.0 if new else 0.0)
        sample = FleetSample(time_seconds=now, pods=(_pod("a", engine),))
        state, estimate = update(state, sample)
        scraped = now - age
        if last is not None and scraped - last[0] >= 1.0:
            (flow,) = state.arrivals.flows
            expected = arrived - last[1]
            assert math.isclose(
                flow.arrivals_per_second * flow.seconds, expected, rel_tol=1e-6, abs_tol=1e-6
            )
            assert math.isclose(flow.seconds, scraped - last[0], rel_tol=1e-9)
        _check_sane(estimate)
        if last is None or scraped - last[0] >= 1.0:
            last = scraped, arrived


pods_of_a_tick = st.dictionaries(
    st.sampled_from("abc"),
    st.tuples(
        st.integers(0, 500),
        st.integers(0, 20),
        st.floats(0.0, 100.0),
        st.booleans(),
        st.floats(0.0, 300.0),
    ),
    max_size=3,
)


@settings(max_examples=60)
@given(st.lists(pods_of_a_tick, min_size=1, max_size=8))
def test_nothing_negative_or_nan_whatever_happens(ticks: list[dict[str, Any]]) -> None:
    """Invariants 2 and 6: restarts, outages, pods that come, go and export nothing."""
    state = EstimatorState()
    for number, tick in enumerate(ticks):
        pods = tuple(
            _pod(
                name,
                *([_engine(float(served), float(waiting), age=age)] if exports else []),
                ready_for=ready_for,
            )
            for name, (served, waiting, age, exports, ready_for) in tick.items()
        )
        state, estimate = update(state, FleetSample(time_seconds=15.0 * number, pods=pods))
        _check_sane(estimate)
        assert {m.pod for m in state.engines} <= set(tick)
        assert all(math.isfinite(n) for n in _numbers_of(learned(state)))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), min_size=2, max_size=10))
def test_state_survives_json(ticks: list[tuple[int, int]]) -> None:
    """Invariants 3 and 4."""
    state, served = EstimatorState(), 0.0
    sample = FleetSample(time_seconds=0.0, pods=())
    for number, (new, waiting) in enumerate(ticks):
        served += new
        sample = FleetSample(
            time_seconds=15.0 * (number + 1),
            pods=(_pod("a", _engine(served, waiting)), _pod("b", _engine(2 * served, 0.0))),
        )
        state, _ = update(state, sample)
    read = state_adapter.validate_json(state_adapter.dump_json(state))
    assert read == state
    again, _ = update(state, sample)
    assert again.arrivals == state.arrivals
    assert again.forecast == state.forecast
    assert again.law == state.law


@settings(max_examples=20)
@given(st.integers(2, 40), st.integers(1, 9))
def test_learned_is_small_and_reads_back(tick_count: int, pod_count: int) -> None:
    """Invariant 5."""
    state = EstimatorState()
    for number in range(tick_count):
        pods = tuple(
            _pod(f"model-server-7d9f8b6c5d-{k:05d}", _engine(10.0 * (number + 1) * (k + 1), 0.0))
            for k in range(pod_count)
        )
        state, _ = update(state, FleetSample(time_seconds=15.0 * number, pods=pods))
    stored = json.dumps(learned(state), separators=(",", ":"))
    assert len(stored.encode()) <= STORED_BYTES
    read = restore(json.loads(stored))
    assert json.dumps(learned(read), separators=(",", ":")) == stored


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
parts = ("version", "laws", "lengths", "coldStart", "calibration")


@given(json_values, st.dictionaries(st.sampled_from(parts), json_values))
def test_garbage_reads_as_knowing_nothing(value: Any, broken: dict[str, Any]) -> None:
    """Invariant 5: what somebody edited is left out, never trusted and never fatal."""
    assert restore(value) == EstimatorState()
    state = restore({**broken, "version": 1})
    _, estimate = update(state, FleetSample(time_seconds=0.0, pods=(_pod("a", _engine(1.0, 0.0)),)))
    assert estimate.arrival_rate_per_second is None
    _check_sane(estimate)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_damaged_storage_never_breaks_an_estimate(data: st.DataObject) -> None:
    """Invariant 5: one damaged value inside otherwise good storage."""
    state = EstimatorState()
    for number in range(20):
        sample = FleetSample(
            time_seconds=15.0 * number, pods=(_pod("a", _engine(10.0 * number, 0.0)),)
        )
        state, _ = update(state, sample)
    stored: Any = learned(state)
    place: Any = stored
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            place[key] = data.draw(json_values)
            break
        place = inner
    restored = restore(stored)
    for number in range(2):
        sample = FleetSample(
            time_seconds=15.0 * number, pods=(_pod("a", _engine(10.0 * (number + 1), 0.0)),)
        )
        restored, estimate = update(restored, sample)
        _check_sane(estimate)
