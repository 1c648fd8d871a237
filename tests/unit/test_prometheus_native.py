"""Native histograms that a tenant's pod exports under any name take nothing of the others along."""

import json
import time

import pytest
from tests.answering import Answering, serving

from servingslo.adapters.prometheus.client import Answer, PrometheusClient
from servingslo.adapters.prometheus.config import PrometheusConfig

GOOD = {"metric": {"pod": "good"}, "value": [1, "2"]}
NATIVE = {"metric": {"pod": "bad"}, "histogram": [1, {"count": "1", "sum": "2"}]}
RANGE = {"metric": {"pod": "good"}, "values": [[1, "2"]]}
MIXED = {**RANGE, "histograms": [[2, {"count": "1", "sum": "2"}]]}
NATIVE_RANGE = {"metric": {"pod": "bad"}, "histograms": [[1, {"count": "1", "sum": "2"}]]}
OF_SERIES = [
    "PromQL warning: encountered a mix of histograms and floats for aggregation (1:1)",
    'PromQL info: metric might not be a counter: "vllm:num_requests_running" (1:1)',
]
PARTIAL = "receive series from Addr: store-1: context deadline exceeded"


def answered(result: list, warnings: list[str]) -> Answer:
    """Asks a server that gives this answer."""
    document = {"status": "success", "data": {"resultType": "vector", "result": result}}

    class Handler(Answering):
        def reply(self) -> None:
            self.answer(json.dumps({**document, "warnings": warnings}).encode())

    with serving(Handler) as url:
        client = PrometheusClient(PrometheusConfig(url=url))
        try:
            return client.query("up", deadline=time.monotonic() + 5.0)
        finally:
            client.close()


@pytest.mark.parametrize(
    ("result", "numbers"),
    [
        pytest.param([NATIVE, GOOD], [GOOD], id="instant"),
        pytest.param([NATIVE_RANGE, MIXED, RANGE], [MIXED, RANGE], id="range"),
        pytest.param([1, "2"], [1, "2"], id="scalar"),
        pytest.param([{"metric": {}}], [{"metric": {}}], id="malformed"),
    ],
)
def test_series_without_a_number_are_left_out(result, numbers):
    """Else one of them would make the answer for everybody one that cannot be read."""
    assert answered(result, []).result == numbers


def test_only_warnings_that_data_is_missing_count():
    """What Prometheus says of the form of single series is about those alone."""
    assert answered([GOOD], OF_SERIES).warnings == ()
    assert answered([GOOD], [*OF_SERIES, PARTIAL]).warnings == (PARTIAL,)
