"""The length of a queue: its own namespace, the metric of its kind, and trouble is no zero."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.features.backlog.backlog_world import stated

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.features.backlog import reader
from servingslo.features.backlog.deadlines import TARGETS, BacklogReading, Preset
from servingslo.features.backlog.reader import METRICS, Backlogs, query_of
from servingslo.policy.ports import WorkloadQuestion

NOW = 1_700_000_000
ASKED = WorkloadQuestion(namespace="team-a", targets=stated(), runtime="vllm")


class Store(BaseHTTPRequestHandler):
    """Answers with these series, or with a status that is no answer."""

    lengths: tuple[str, ...] = ("7",)
    status = 200

    def do_GET(self) -> None:
        """Answer."""
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        data = {"resultType": "scalar", "result": [NOW, str(NOW)]}
        if query != "time()":
            found = [{"metric": {}, "value": [NOW, one]} for one in self.lengths]
            data = {"resultType": "vector", "result": found}
        body = json.dumps({"status": "success", "data": data}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of such a store."""
    monkeypatch.setattr(Store, "lengths", ("7",))
    monkeypatch.setattr(Store, "status", 200)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def read(url: str, asked: WorkloadQuestion = ASKED) -> BacklogReading | None:
    """What a reader has of a question after one reading."""
    backlogs = Backlogs(PrometheusConfig(url=url, retries=0))
    assert backlogs.take("uid", asked, ()) is None
    backlogs.tick()
    backlogs._executor.shutdown(wait=True)
    found = backlogs.take("uid", asked, ())
    backlogs.close()
    return found


def test_the_length_is_read_with_its_time(store: str) -> None:
    """By the clock of Prometheus."""
    assert read(store) == BacklogReading(time_seconds=NOW, left=7.0)


@pytest.mark.parametrize("lengths", [(), ("NaN",), ("-1",)], ids=["none", "nan", "negative"])
def test_no_series_is_no_empty_queue(store: str, lengths: tuple[str, ...]) -> None:
    """A wrong name looks the same: the length is unknown."""
    Store.lengths = lengths
    assert read(store) == BacklogReading(time_seconds=NOW, left=None)


def test_trouble_keeps_the_last_reading(store: str) -> None:
    """Here none: the planner judges its age."""
    Store.status = 500
    assert read(store) is None


def test_without_a_backlog_nothing_is_asked(store: str) -> None:
    """Of a resource that states none."""
    plain = WorkloadQuestion(
        namespace="team-a", targets=stated().__class__(**_without_features()), runtime="vllm"
    )
    assert read(store, plain) is None


def _without_features() -> dict[str, object]:
    targets = stated()
    return {"target": targets.target, "objectives": targets.objectives}


@pytest.mark.parametrize("preset", Preset)
def test_a_tenant_reads_its_own_namespace_alone(preset: Preset) -> None:
    """And with the administrator's matchers."""
    config = PrometheusConfig(url="http://store.test", matchers='cluster="a"')
    backlog = TARGETS.of(ASKED.targets.features)
    assert backlog is not None
    metric, label = METRICS[Preset.RABBITMQ]
    assert query_of(config, "team-a", backlog) == (
        f'max({metric}{{namespace="team-a", {label}="night", cluster="a"}})'
    )
    assert METRICS[preset][0]


def test_the_charts_queries_have_the_label_that_is_asked_for() -> None:
    """Its name is the administrator's, as that of the flag --prometheus-namespace-label."""
    chart = (Path(reader.__file__).parent / "chart" / "templates.tpl").read_text()
    assert 'labels: {{ dict $.Values.prometheus.labels.namespace .namespace "queue"' in chart
    config = PrometheusConfig(url="http://store.test", namespace_label="kubernetes_namespace")
    backlog = TARGETS.of(ASKED.targets.features)
    assert backlog is not None
    assert '{kubernetes_namespace="team-a", ' in query_of(config, "team-a", backlog)
