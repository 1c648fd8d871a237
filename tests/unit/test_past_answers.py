"""Answers at past times, of a store that refuses long ranges and has lost one moment."""

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.answering import Answering, serving

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.errors import MetricsUnavailableError
from servingslo_lab.cli.past.ranges import PastAnswers

STEP, COUNT, LONGEST, LOST = 60, 200, 10, 77 * 60


class _Store(Answering):
    """Each series has the time as its value; asked holds the steps of each question."""

    asked: list[int]

    def reply(self) -> None:
        """Answer a range."""
        query = parse_qs(urlsplit(self.path).query)
        start, end = (round(float(query[name][0])) for name in ("start", "end"))
        times = range(start, end + 1, STEP)
        self.asked.append(len(times))
        status, document = 200, {"status": "success", "data": _matrix(times)}
        if len(times) > LONGEST or LOST in times:
            status = 422
            document = {"status": "error", "errorType": "execution", "error": "too many samples"}
        self.answer(json.dumps(document).encode(), status)


def _matrix(times: range) -> dict[str, object]:
    values = [[at, str(at)] for at in times if at % (2 * STEP)]
    return {"resultType": "matrix", "result": [{"metric": {"pod": "a"}, "values": values}]}


@pytest.fixture
def store() -> Iterator[str]:
    """Its address."""
    _Store.asked = []
    with serving(_Store) as url:
        yield url


def test_each_moment_has_its_own_answer_and_a_lost_one_costs_no_other(store: str) -> None:
    """In pieces that the store takes, of a few moments each; an absent sample is no sample."""
    answers = PastAnswers(PrometheusConfig(url=store), end_seconds=COUNT * STEP, step_seconds=STEP)
    lost = []
    for at in range(STEP, COUNT * STEP + 1, STEP):
        try:
            found = [float(one["value"][1]) for one in answers.at("up", at).result]
        except MetricsUnavailableError:
            lost.append(at)
            continue
        assert found == ([at] if at % (2 * STEP) else [])
    answers.close()
    assert lost == [LOST]
    assert len(_Store.asked) == answers.queries < COUNT
