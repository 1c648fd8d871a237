"""What a newcomer types wrong, and what is said: in the words of what was typed, never Python's."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_calls import CLI
from tests.answering import Answering, serving

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.cli.cluster.record import _answered
from servingslo.errors import MetricsUnavailableError

# Class names, reprs and tracebacks are Python's, not the user's.
PYTHON = re.compile(r"\w+Error\b|\w+Exception\b|Traceback|\bb'<|<class|\bNone\b|Errno")
LOGIN = b"<!DOCTYPE html><html><title>Sign in</title></html>"
PAGES = {
    "/html": (200, "text/html", LOGIN),
    "/empty": (200, "text/plain", b""),
    "/text": (200, "text/plain", b"it works"),
    "/json": (200, "application/json", b'{"hello": "world"}'),
    "/list": (200, "application/json", b"[1, 2]"),
    "/deep": (200, "application/json", b"[" * 50_000),
    "/401": (401, "text/html", b"<html>Unauthorized</html>"),
    "/403": (403, "application/json", b'{"error": "no"}'),
    "/404": (404, "text/plain", b"404 page not found"),
    "/422": (422, "application/json", b'{"status": "error", "error": "too many samples"}'),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An address at which everything but Prometheus answers."""

    class Handler(Answering):
        def reply(self) -> None:
            path = "/" + self.path.split("/")[1]
            if path == "/login":
                self.send_response(302)
                self.send_header("Location", "/html/")
                self.end_headers()
                return
            status, kind, body = PAGES[path]
            self.answer(body, status, kind)

    with serving(Handler) as url:
        yield url


def _said(config: PrometheusConfig) -> str:
    reader = PrometheusReader(config)
    try:
        problem = asyncio.run(reader.read()).problem
    finally:
        reader.close()
    assert problem is not None
    return problem.detail


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        pytest.param("/html", "the answer is HTML, not JSON of Prometheus: is this its", id="html"),
        pytest.param("/login", "or a login page", id="login-page"),
        pytest.param("/empty", "the answer is empty", id="empty"),
        pytest.param("/text", "the answer is not JSON of Prometheus", id="text"),
        pytest.param("/deep", "the answer is not JSON of Prometheus", id="deep"),
        pytest.param("/json", "the answer is JSON, but not of Prometheus", id="json"),
        pytest.param("/list", "the answer is JSON, but not of Prometheus", id="list"),
        pytest.param("/401", "HTTP 401: it asks who you are: --prometheus-bearer-token", id="401"),
        pytest.param("/403", "HTTP 403: who you are may not query", id="403"),
        pytest.param("/404", "HTTP 404: no Prometheus API there", id="404"),
        pytest.param("/422", "HTTP 422: too many samples", id="422"),
    ],
)
def test_an_address_that_is_not_prometheus_is_told_by_what_it_answers(
    server: str, typed: str, words: str
) -> None:
    """Each kind of wrong answer has words of its own, and none of them is Python's."""
    said = _said(PrometheusConfig(url=f"{server}{typed}"))
    assert words in said
    assert not PYTHON.search(said)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param("http://127.0.0.1:9", "no connection to 127.0.0.1:9: Connection refused",
                     id="refused"),
        pytest.param("http://nowhere.invalid:9090", "no connection to nowhere.invalid:9090:",
                     id="no-such-host"),
    ],
)  # fmt: skip
def test_an_address_without_an_answer_is_named(url: str, words: str) -> None:
    """Host and port as they were typed, and why there is no connection."""
    said = _said(PrometheusConfig(url=url))
    assert words in said
    assert not PYTHON.search(said)


def test_https_at_a_port_that_speaks_http_is_told(server: str) -> None:
    """A scheme too much is the usual mistake within a cluster."""
    said = _said(PrometheusConfig(url=server.replace("http://", "https://")))
    assert "does not speak https" in said
    assert not PYTHON.search(said)


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        pytest.param("bearer_token_file", "--prometheus-bearer-token-file", id="token"),
        pytest.param("ca_file", "--prometheus-ca-file", id="ca"),
    ],
)
def test_a_file_that_is_not_there_is_named_by_its_flag(
    server: str, tmp_path: Path, field: str, flag: str
) -> None:
    """The flag and the path that were typed, and that it does not exist."""
    path = str(tmp_path / "absent")
    url = server.replace("http:", "https:") if field == "ca_file" else server
    said = _said(PrometheusConfig(url=f"{url}/json", **{field: path}))  # type: ignore[arg-type]
    assert said == f"{flag}: {path} does not exist"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--prometheus-url=prometheus:9090"],
                     "--prometheus-url: 'prometheus:9090' is not allowed", id="url-without-scheme"),
        pytest.param(["--prometheus-url=http://host:9090/graph"], "/graph", id="page"),
        pytest.param(["--prometheus-url=http://host/api/v1/query"], "/api/v1", id="api"),
        pytest.param(["--prometheus-url=http://host?a=b"], "without blank, query", id="query"),
        pytest.param(["--prometheus-url=http://me:pw@host"], "--prometheus-url", id="credentials"),
        pytest.param(["--prometheus-url=http://host", "--prometheus-pod-label=a-b"],
                     "--prometheus-pod-label: 'a-b' is not allowed", id="label"),
        pytest.param(["--prometheus-url=http://host", "--for=soon"], "--for", id="duration"),
        pytest.param(["--prometheus-url=http://host", "--every=1ms"], "--every", id="every"),
        pytest.param(["--prometheus-url=http://host", "--kubeconfig=/nonexistent/k"],
                     "--kubeconfig", id="kubeconfig"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_its_flag(
    cli: CLI, tmp_path: Path, arguments: list[str], words: str
) -> None:
    """`record` ends with 2 and one line that names the flag."""
    called = cli("record", f"--out={tmp_path / 'out.jsonl'}", *arguments)
    assert called.refuses(words)
    assert not PYTHON.search(called.err)


async def test_a_recording_without_prometheus_does_not_begin() -> None:
    """An address that does not answer at the start is an error, not a file of outages."""
    reader = PrometheusReader(PrometheusConfig(url="http://127.0.0.1:9"))
    with pytest.raises(MetricsUnavailableError, match="Prometheus does not answer: no connection"):
        await _answered(reader)
    reader.close()
