"""Answers that are none, or a part, or late: what is said of each, over generated answers."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.answering import Answering, serving

from servingslo.adapters.prometheus.client import PrometheusClient
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.adapters.prometheus.refusals import missing_words
from servingslo.errors import MetricsUnavailableError, ReadingTooSlowError

_OF_SERIES = ("PromQL warning: a mix of histograms and floats", "PromQL info: not a counter")
_MARKS = st.sampled_from([True, "true", "True"])
_NO_MARKS = st.sampled_from([False, None, "", "false", 0, {}])
_WORDS = st.lists(st.sampled_from(_OF_SERIES), max_size=3)


def _document(**told: object) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": "vector", "result": []}, **told}


@given(
    mark=_MARKS,
    inside=st.booleans(),
    warnings=st.one_of(st.none(), _WORDS),
    stats=st.dictionaries(st.sampled_from(["stats", "trace", "infos"]), st.none()),
)
def test_a_mark_of_a_partial_answer_counts_without_a_warning(mark, inside, warnings, stats) -> None:
    """Wherever the mark stands and whatever stands beside it, the answer is a part."""
    document = _document(warnings=warnings, **stats)
    (document["data"] if inside else document)["isPartial"] = mark
    assert missing_words(json.loads(json.dumps(document))) != ()


@given(mark=_NO_MARKS, absent=st.booleans(), warnings=st.one_of(st.none(), _WORDS))
def test_a_whole_answer_is_not_called_partial(mark, absent, warnings) -> None:
    """An answer that is not marked, or marked as whole, misses nothing."""
    document = _document(warnings=warnings) if absent else _document(isPartial=mark)
    assert missing_words(document) == ()


@given(told=st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=3))
def test_warnings_of_stores_are_kept_in_their_own_words(told) -> None:
    """What Thanos and Mimir say of a store that did not answer reaches the message."""
    assert missing_words(_document(warnings=told)) == tuple(dict.fromkeys(told))


@pytest.mark.parametrize("document", [[], "text", 1, None, {"data": []}, {"data": None}])
def test_what_is_no_document_of_prometheus_misses_nothing(document) -> None:
    """Who reads the result says what is wrong with it."""
    assert missing_words(document) == ()


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    """Serves what a function answers to a query, each answer after a pause; gives the address."""
    with ExitStack() as servers:

        def serve(answer: Callable[[str], dict[str, object]], pause_seconds: float = 0.0) -> str:
            class Handler(Answering):
                def reply(self) -> None:
                    time.sleep(pause_seconds)
                    self.answer(json.dumps(answer(self.path)).encode())

            return servers.enter_context(serving(Handler))

        yield serve


@pytest.mark.parametrize("told", [{}, {"data": {"resultType": "vector", "result": []}}])
def test_an_error_is_no_answer_whatever_its_http_status_and_data(served, told) -> None:
    """A proxy that sent 200 before the query failed: no empty vector, and the server's words."""
    failed = {"status": "error", "errorType": "timeout", "error": "query timed out", **told}
    client = PrometheusClient(PrometheusConfig(url=served(lambda _path: failed), retries=0))
    with pytest.raises(MetricsUnavailableError, match="HTTP 200: query timed out"):
        client.query("up", deadline=time.monotonic() + 5.0)


def _of_now(path: str) -> dict[str, object]:
    now = time.time()  # noqa: TID251 - what Prometheus says of its own clock
    result = [now, f"{now}"] if "time%28%29&" in path + "&" and "min" not in path else []
    return _document(data={"resultType": "vector", "result": result})


def test_a_reading_whose_store_marks_its_answers_is_partial(served) -> None:
    """VictoriaMetrics' cluster answers so while a storage node is away, without a warning."""
    url = served(lambda path: {**_of_now(path), "isPartial": True})
    reader = PrometheusReader(PrometheusConfig(url=url))
    problem = reader._read().problem
    reader.close()
    assert problem is not None
    assert (problem.reason.value, problem.detail) == (
        "MetricsPartial", "the answer is marked as partial (isPartial)",
    )  # fmt: skip


@pytest.mark.parametrize("reading_seconds", [0.25, 0.4, 0.7])
def test_a_reading_that_takes_too_long_is_told_as_one(served, reading_seconds) -> None:
    """Not as the last query, which had a moment only."""
    url = served(_of_now, pause_seconds=0.1)
    config = PrometheusConfig(url=url, reading_timeout_seconds=reading_seconds)
    reader = PrometheusReader(config)
    problem = reader._read().problem
    reader.close()
    assert problem is not None
    count = 1 + reader._queries.count
    assert problem.detail == (
        f"the reading's {count} queries did not end within {reading_seconds:.3g} s"
    )


def test_a_query_that_takes_too_long_by_itself_is_told_with_its_own_limit(served) -> None:
    """The time of a query is the administrator's, and he may change it."""
    client = PrometheusClient(PrometheusConfig(url=served(_of_now, 0.6), timeout_seconds=0.2))
    with pytest.raises(MetricsUnavailableError, match=r"no answer within 0\.2 s") as told:
        client.query("up", deadline=time.monotonic() + 5.0)
    assert not isinstance(told.value, ReadingTooSlowError)
    client.close()
