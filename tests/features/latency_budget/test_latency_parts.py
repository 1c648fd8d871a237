"""The parts of the time of a request: measured, derived, or said not to be measured."""

from dataclasses import replace

import pytest
from tests.unit.engine_pages import estimates, histogram, sglang_page, triton_page, vllm_page

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.requests.arrivals import GatewayUse
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.observed import GATEWAY, TRANSFER
from servingslo.features.latency_budget.parts import latency_report
from servingslo.features.latency_budget.report import Part, PartSource
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.reasons import Reason

TTFT = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0)
TPOT = Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.05)
OWN = 'engine="0"'


def _phases(requests: float) -> str:
    """A page of vLLM with its phases: 1 ms queue, 149 ms prefill, 1.9 s decode of 2.1 s."""
    return (
        vllm_page(requests)
        + histogram("vllm:request_prefill_time_seconds", OWN, 0.149, requests)
        + histogram("vllm:request_decode_time_seconds", OWN, 1.9, requests)
    )


def seen(page, ticks: int = 6) -> Estimate:
    """What is known of one engine that serves two requests a second."""
    return estimates(lambda seconds: [({"pod": "chat-0"}, page(2.0 * seconds))], ticks)[-1]


def by_gateway(estimate: Estimate, mean: float, reason: Reason = Reason.GATEWAY_COUNTS) -> Estimate:
    """The same behind a gateway whose requests take so long on average."""
    times = HistogramDelta(
        upper_bounds=(1.0, 2.5, 5.0), counts=(0.0, 90.0, 10.0, 0.0), sum=mean * 100
    )
    return replace(
        estimate,
        gateway=GatewayUse(reason=reason),
        phases={**estimate.phases, GATEWAY: times},
    )


@pytest.fixture(scope="module")
def vllm() -> Estimate:
    """Of a vLLM that exports its phases."""
    return seen(_phases)


def _means(report) -> dict[Part, tuple[PartSource, float | None]]:
    return {one.part: (one.source, one.mean_seconds) for one in report.parts}


def test_vllm_exports_every_part_of_its_own(vllm) -> None:
    """Each with a mean and a percentile; what is left of the whole is of its server."""
    report = latency_report(vllm, (TTFT, TPOT))
    means = _means(report)
    assert means[Part.QUEUE] == (PartSource.MEASURED, pytest.approx(0.001))
    assert means[Part.PREFILL] == (PartSource.MEASURED, pytest.approx(0.149))
    assert means[Part.DECODE] == (PartSource.MEASURED, pytest.approx(1.9))
    assert means[Part.OTHER] == (PartSource.DERIVED, pytest.approx(0.05))
    assert report.percentile == 99.0
    assert report.of(Part.DECODE).percentile_seconds == pytest.approx(1.9, rel=0.25)
    assert report.whole_mean_seconds == pytest.approx(2.1)
    assert not report.by_gateway


def test_what_nothing_measures_is_said_not_to_be() -> None:
    """With the reason; a part of pools is not missed where there are none."""
    report = latency_report(seen(_phases), (TTFT,))
    gateway = report.of(Part.GATEWAY)
    assert (gateway.source, gateway.mean_seconds) == (PartSource.NOT_MEASURED, None)
    assert gateway.missing == "no gateway is read"
    assert report.of(Part.TRANSFER) is None


def test_a_part_between_two_means_is_derived_without_a_percentile() -> None:
    """SGLang exports no queue time here, so prefill is not known; decode is latency less TTFT."""
    means = latency_report(seen(lambda r: sglang_page(r, 1)), (TTFT,))
    assert _means(means)[Part.QUEUE] == (PartSource.NOT_MEASURED, None)
    assert _means(means)[Part.PREFILL] == (PartSource.NOT_MEASURED, None)
    assert _means(means)[Part.DECODE] == (PartSource.DERIVED, pytest.approx(1.95))
    assert means.of(Part.DECODE).percentile_seconds is None
    plain = latency_report(seen(vllm_page), (TTFT,))
    assert _means(plain)[Part.PREFILL] == (PartSource.DERIVED, pytest.approx(0.149))
    # What its server takes cannot be told from decode.
    assert plain.of(Part.OTHER) is None


def test_triton_has_a_queue_and_what_follows() -> None:
    """From its counters alone: 20 ms of a request, 3 ms of them in the queue."""
    latency = Objective(metric=LatencyMetric.LATENCY, percentile=95.0, threshold_seconds=1.0)
    report = latency_report(seen(triton_page), (latency,))
    assert [one.part for one in report.parts] == [Part.GATEWAY, Part.QUEUE, Part.COMPUTE]
    assert _means(report)[Part.QUEUE] == (PartSource.MEASURED, pytest.approx(0.003))
    assert _means(report)[Part.COMPUTE] == (PartSource.DERIVED, pytest.approx(0.017))


def test_gateway_and_network_are_what_the_engines_do_not_take(vllm) -> None:
    """The gateway's mean less the engines'; the whole is then the gateway's."""
    report = latency_report(by_gateway(vllm, 2.3), (TTFT,))
    assert _means(report)[Part.GATEWAY] == (PartSource.DERIVED, pytest.approx(0.2))
    assert report.by_gateway
    assert report.whole_mean_seconds == pytest.approx(2.3)
    assert 2.5 < report.whole_percentile_seconds <= 5.0


def test_a_gateway_that_misses_requests_measures_nothing(vllm) -> None:
    """Its requests are others than the engines'."""
    report = latency_report(by_gateway(vllm, 2.3, Reason.GATEWAY_UNDERCOUNTS), (TTFT,))
    assert report.of(Part.GATEWAY).missing == "the gateway does not see every request"
    assert not report.by_gateway


def test_transfers_lie_in_the_engines_time_and_not_in_the_network(vllm) -> None:
    """An engine's latency is observed without them, so they are put back first."""
    count = vllm.observed["latency"].count
    moved = HistogramDelta(upper_bounds=(0.1, 0.2), counts=(0.0, count, 0.0), sum=0.15 * count)
    decode = by_gateway(replace(vllm, phases={**vllm.phases, TRANSFER: moved}), 2.3)
    report = latency_report(decode, (TTFT,))
    assert _means(report)[Part.TRANSFER] == (PartSource.MEASURED, pytest.approx(0.15))
    assert _means(report)[Part.GATEWAY] == (PartSource.DERIVED, pytest.approx(0.05))


def test_without_a_request_there_is_no_report() -> None:
    """Nothing was observed."""
    assert latency_report(seen(vllm_page, ticks=1), (TTFT,)) is None
