"""The chart's dashboard as a picture: every query is asked, and the answers are what is drawn."""

import http.server
import json
import math
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.dashboards.servingslo import queries

from servingslo_lab.cli.demo import dashboard
from servingslo_lab.errors import RigError

ROOT = Path(__file__).parents[2]
BOARD = json.loads(
    (ROOT / "charts/servingslo-operator/files/dashboard.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RECORDED = ROOT / "docs" / "pictures" / "panels.json"


class Prometheus(http.server.BaseHTTPRequestHandler):
    """Answers each range query with one series of two points, and keeps what was asked."""

    asked: ClassVar[list[dict[str, str]]] = []
    refused = ""

    def do_GET(self) -> None:
        """One query."""
        asked = {name: one for name, (one,) in parse_qs(urlsplit(self.path).query).items()}
        self.asked.append(asked)
        if asked["query"] == self.refused:
            self.send_error(400)
            return
        labels = {"namespace": "inference", "name": "llama-chat", "metric": "ttft"}
        start = float(asked["start"])
        series = {"metric": labels, "values": [[start, "0.51237"], [start + 5, "NaN"]]}
        body = json.dumps({"data": {"result": [series]}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address."""
    monkeypatch.setattr(Prometheus, "asked", [])
    monkeypatch.setattr(Prometheus, "refused", "")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Prometheus) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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


def test_lines_are_what_prometheus_answered(prometheus: str) -> None:
    """Legends are filled, labels that a series lacks are empty, and NaN is no point."""
    first = next(one for one in answered(prometheus) if not one.stat)
    assert (first.row, first.unit) == ("Is the objective met?", "percentunit")
    assert [line.legend for line in first.lines] == [
        "inference/llama-chat ttft p",
        "inference/llama-chat ttft p wanted",
    ]
    assert first.lines[0].points == ((0.0, 0.5124),)


def test_a_refused_query_is_an_error_that_names_its_panel(
    prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No picture with a panel that was never asked."""
    refused = next(p for p in PANELS if p["type"] != "stat")["targets"][0]["expr"]
    for name in ("namespace", "name", "pool"):
        refused = refused.replace(f'"${name}"', '".*"')
    monkeypatch.setattr(Prometheus, "refused", refused)
    with pytest.raises(RigError, match="'Share of requests within the threshold'"):
        answered(prometheus)


def test_a_line_breaks_where_points_are_missing(tmp_path: Path) -> None:
    """A gap is no straight line; drawn are minutes."""
    line = dashboard.Line(legend="x", points=((0.0, 1.0), (5.0, 2.0), (60.0, 3.0), (65.0, 4.0)))
    minutes, values = dashboard.with_gaps(line.points)
    assert [v for v in values if not math.isnan(v)] == [1.0, 2.0, 3.0, 4.0]
    assert math.isnan(values[2])
    assert minutes[3] == 1.0


def test_a_recording_is_read_back_as_it_was_written() -> None:
    """The one behind the picture of the pages."""
    text = RECORDED.read_text(encoding="utf-8")
    assert dashboard.dumps(dashboard.loads(text)) == text


def test_the_recording_is_of_the_chart_s_dashboard() -> None:
    """Its panels, in order; if this fails: `make demo && make pictures DEMO=out`."""
    recorded = dashboard.loads(RECORDED.read_text(encoding="utf-8"))
    there = {(panel["title"], panel["fieldConfig"]["defaults"]["unit"]) for panel in PANELS}
    assert [panel.title for panel in recorded if (panel.title, panel.unit) not in there] == []
    replicas = next(panel for panel in recorded if panel.title == "Replicas")
    assert {len(line.points) > 50 for line in replicas.lines} == {True}


def test_files_are_written_next_to_the_demo_s_others(tmp_path: Path) -> None:
    """The answers, and a picture of them."""
    panels = dashboard.loads(RECORDED.read_text(encoding="utf-8"))[:3]
    answers, picture = dashboard.write(tmp_path, panels)
    assert dashboard.loads(answers.read_text(encoding="utf-8")) == panels
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_panel_of_last_values_shows_words_names_and_nothing_that_ended() -> None:
    """As Grafana does: of a panel of names, the legend alone."""
    lines = (
        dashboard.Line(legend="chat", points=((0.0, 0.0), (5.0, 2.0))),
        dashboard.Line(legend="gone", points=((0.0, 0.0),)),
    )
    panel = dashboard.Answered(
        row="", title="", unit="short", lines=lines, stat="value_and_name",
        words=((0.0, "missed"), (2.0, "met")),
    )  # fmt: skip
    assert dashboard.last_values(panel) == ["met   (chat)"]
    assert dashboard.last_values(replace(panel, words=())) == ["2   (chat)"]
    assert dashboard.last_values(replace(panel, stat="name")) == ["chat"]
    assert dashboard.last_values(replace(panel, lines=())) == ["-"]


def test_the_first_row_answers_and_changes_are_marked(prometheus: str) -> None:
    """Met, how many, why, at what cost; the words of a value come from the dashboard."""
    glance = [one for one in answered(prometheus) if one.row == "At a glance"]
    assert "/".join(one.stat for one in glance) == (
        "value_and_name/value_and_name/name/value_and_name"
    )
    assert dict(glance[0].words) == {0.0: "missed", 1.0: "between two buckets", 2.0: "met"}
    marked = BOARD["annotations"]["list"]
    assert [one["enable"] for one in marked] == [True, True]
    metrics = {name for one in marked for name in re.findall(r"servingslo_\w+", one["expr"])}
    assert metrics == {"servingslo_replicas_current", "servingslo_changes_total"}
