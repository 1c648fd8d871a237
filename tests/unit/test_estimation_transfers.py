"""Latencies of engines that read KV caches are compared without the transfer of the cache."""

import pytest

from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.observed import ObservedState, ObservedWindow

EDGES = (0.05, 0.1, 0.25)
TTFT = HistogramDelta(upper_bounds=EDGES, counts=(0.0, 60.0, 40.0, 0.0), sum=10.0)
TPOT = HistogramDelta(upper_bounds=EDGES, counts=(100.0, 0.0, 0.0, 0.0), sum=3.0)


def transfers(count: float, mean: float) -> HistogramDelta:
    """So many transfers of this mean time."""
    return HistogramDelta(upper_bounds=(1.0,), counts=(count, 0.0), sum=count * mean)


def state(**deltas: HistogramDelta) -> ObservedState:
    """One window of observations."""
    return ObservedState(windows=(ObservedWindow(time_seconds=10.0, deltas=deltas),))


def test_a_transfer_is_no_part_of_what_the_engine_is_compared_with():
    """TTFT, latency and queue time contain it; time per output token does not."""
    deltas = {"ttft": TTFT, "latency": TTFT, "queueTime": TTFT, "tpot": TPOT}
    found = state(**deltas, transfer_seconds=transfers(100.0, 0.06)).latencies(10.0)
    for metric in ("ttft", "latency", "queueTime"):
        assert found[metric].mean == pytest.approx(0.04)
        assert found[metric].upper_bounds == pytest.approx((0.04, 0.19))
        assert found[metric].counts == (60.0, 40.0, 0.0)
        # 0.1 s of which 0.06 s are the transfer is within 0.04 s.
        assert found[metric].share_within(0.0401) == pytest.approx((0.6, 1.0))
    assert found["tpot"] == TPOT


def test_requests_without_a_transfer_count_in_its_mean():
    """Half of them went to decode directly: the mean of all is less by half a transfer."""
    found = state(ttft=TTFT, transfer_seconds=transfers(50.0, 0.06)).latencies(10.0)
    assert found["ttft"].mean == pytest.approx(0.07)
    more = state(ttft=TTFT, transfer_seconds=transfers(300.0, 0.06)).latencies(10.0)
    assert more["ttft"].mean == pytest.approx(0.04)


def test_the_attained_share_of_a_tick_is_without_transfers():
    """It steers the planned quantile."""
    (window,) = state(ttft=TTFT, transfer_seconds=transfers(100.0, 0.06)).windows
    assert window.latencies["ttft"].counts == (60.0, 40.0, 0.0)


def test_without_transfers_nothing_changes():
    """Also if the connector's histogram is there and empty."""
    assert state(ttft=TTFT).latencies(10.0) == {"ttft": TTFT}
    assert state(ttft=TTFT, transfer_seconds=transfers(0.0, 0.0)).latencies(10.0) == {"ttft": TTFT}
