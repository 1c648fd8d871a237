"""Native histograms that a tenant's pod exports under any name take nothing of the others along."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from servingslo.adapters.prometheus.client import Answer, PrometheusClient, PrometheusConfig

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


@pytest.fixture
def answered() -> Iterator:
    """Asks a server that gives this answer."""
    servers = []

    def ask(result: list, warnings: list[str]) -> Answer:
        document = {"status": "success", "data": {"resultType": "vector", "result": result}}
        body = json.dumps({**document, "warnings": warnings}).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        http = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(http)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        config = PrometheusConfig(url=f"http://127.0.0.1:{http.server_address[1]}")
        client = PrometheusClient(config)
        try:
            return client.query("up", deadline=time.monotonic() + 5.0)
        finally:
            client.close()

    yield ask
    for http in servers:
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize(
    ("result", "numbers"),
    [
        pytest.param([NATIVE, GOOD], [GOOD], id="instant"),
        pytest.param([NATIVE_RANGE, MIXED, RANGE], [MIXED, RANGE], id="range"),
        pytest.param([1, "2"], [1, "2"], id="scalar"),
        pytest.param([{"metric": {}}], [{"metric": {}}], id="malformed"),
    ],
)
def test_series_without_a_number_are_left_out(answered, result, numbers):
    """Else one of them would make the answer for everybody one that cannot be read."""
    assert answered(result, []).result == numbers


def test_only_warnings_that_data_is_missing_count(answered):
    """What Prometheus says of the form of single series is about those alone."""
    assert answered([GOOD], OF_SERIES).warnings == ()
    assert answered([GOOD], [*OF_SERIES, PARTIAL]).warnings == (PARTIAL,)
