"""The chart's dashboard as a picture: every query is asked, and the answers are what is drawn."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.answering import Answering, serving
from tests.dashboards.servingslo import queries

from servingslo_lab.cli.demo import dashboard

ROOT = Path(__file__).parents[2]
BOARD = json.loads(
    (ROOT / "charts/servingslo-operator/files/dashboard.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RECORDED = ROOT / "docs" / "pictures" / "panels.json"


class Prometheus(Answering):
    """Answers each range query with one series of two points, and keeps what was asked."""

    asked: ClassVar[list[dict[str, str]]] = []
    refused = ""

    def reply(self) -> None:
        """One query."""
        asked = {name: one for name, (one,) in parse_qs(urlsplit(self.path).query).items()}
        self.asked.append(asked)
        if asked["query"] == self.refused:
            self.send_error(400)
            return
        labels = {"namespace": "inference", "name": "llama-chat", "metric": "ttft"}
        start = float(asked["start"])
        series = {"metric": labels, "values": [[start, "0.51237"], [start + 5, "NaN"]]}
        self.answer(json.dumps({"data": {"result": [series]}}).encode())


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address."""
    monkeypatch.setattr(Prometheus, "asked", [])
    monkeypatch.setattr(Prometheus, "refused", "")
    with serving(Prometheus) as url:
        yield url


def answered(url: str) -> list[dashboard.Answered]:
    """The chart's dashboard over ten seconds."""
    return dashboard.answered(
        BOARD, url, start_seconds=1000.0, end_seconds=1010.0, step_seconds=5.0,
        scrape_interval_seconds=2.0,
    )  # fmt: skip


def test_every_query_of_every_panel_is_asked_with_all_resources_chosen(prometheus: str) -> None:
    """As Grafana would: variables filled in, over the whole time."""
    found = answered(prometheus)
    assert [panel.title for panel in found] == [panel["title"] for panel in PANELS]
    assert len(Prometheus.asked) == len([*queries()])
    for asked, (_, expression) in zip(Prometheus.asked, queries(), strict=True):
        wanted = expression
        for name in ("namespace", "name", "pool"):
            wanted = wanted.replace(f'"${name}"', '".*"')
        assert asked["query"] == wanted.replace("$__rate_interval", "8000ms")
        assert "$" not in asked["query"]
        assert (asked["start"], asked["end"], asked["step"]) == ("1000.0", "1010.0", "5.0")


def test_the_recording_is_of_the_chart_s_dashboard() -> None:
    """Its panels, in order; if this fails: `make demo && make pictures DEMO=out`."""
    recorded = dashboard.loads(RECORDED.read_text(encoding="utf-8"))
    there = {(panel["title"], panel["fieldConfig"]["defaults"]["unit"]) for panel in PANELS}
    assert [panel.title for panel in recorded if (panel.title, panel.unit) not in there] == []
    replicas = next(panel for panel in recorded if panel.title == "Replicas")
    assert {len(line.points) > 50 for line in replicas.lines} == {True}
