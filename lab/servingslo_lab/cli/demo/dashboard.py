"""The chart's Grafana dashboard as a picture: its panels' own queries, drawn by matplotlib.

Grafana does not run on the rig. The panels, their titles, units and queries are read from the
dashboard's JSON, and the rig's Prometheus evaluates every query over the time of the demo. Only the
drawing is not Grafana's. `panels.json` keeps the answers, from which the picture is drawn again.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.demo.panels import frame_lightly, pyplot
from servingslo_lab.errors import RigError
from servingslo_lab.rig.waiting import http_get

ANSWERS_NAME = "panels.json"
PICTURE_NAME = "dashboard.png"
# Of one query; subqueries over a day take longest.
_TIMEOUT_SECONDS = 20.0
# Grafana's `$__rate_interval` is at least so many scrape intervals.
# Source: Grafana, Prometheus template variables, "Use $__rate_interval".
_SCRAPES_OF_A_RATE = 4
# (label, factor) of Grafana's names of units.
_UNITS: Mapping[str, tuple[str, float]] = {
    "percentunit": ("%", 100.0),
    "s": ("seconds", 1.0),
    "reqps": ("requests/s", 1.0),
    "cps": ("per second", 1.0),
    "short": ("", 1.0),
}
_TITLE = (
    "The chart's dashboard over a demo: its panels' own queries, answered by Prometheus and drawn "
    "by matplotlib, not by Grafana (minutes)"
)
_COLORS = ("#2a9d8f", "#e76f51", "#1d3557", "#e9c46a", "#8d99ae", "#9d4edd", "#6a994e", "#bc4749")
_PANEL_INCHES, _STAT_INCHES = 2.1, 0.9
_ASKED_COLOR = "#c1121f"
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a panel: its legend, and (seconds since the beginning, value) of each point."""

    legend: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A panel with the answers to its queries. row: title of its row. unit: Grafana's name.

    stat: Grafana's text mode of a panel that shows the last values alone, '' of one with lines.
    words: (value, word) of those that have one.
    """

    row: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    stat: str = ""
    words: tuple[tuple[float, str], ...] = ()


def answered(
    dashboard: Mapping[str, Any],
    prometheus_url: str,
    *,
    start_seconds: float,
    end_seconds: float,
    step_seconds: float,
    scrape_interval_seconds: float,
) -> list[Answered]:
    """The panels of a dashboard's JSON with what Prometheus answers, in their order.

    start_seconds, end_seconds: Unix time. All namespaces, names and pools are chosen.
    Raises: RigError, naming the panel, if Prometheus refuses a query or does not answer.
    """
    rate_seconds = max(
        _SCRAPES_OF_A_RATE * scrape_interval_seconds, step_seconds + scrape_interval_seconds
    )
    found, row = [], ""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        lines: list[Line] = []
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", f"{round(1000 * rate_seconds)}ms")
            for name in ("namespace", "name", "pool"):
                query = query.replace(f'"${name}"', '".*"')
            asked = {"query": query, "start": start_seconds, "end": end_seconds}
            address = f"{prometheus_url}/api/v1/query_range?"
            address += urlencode({**asked, "step": step_seconds})
            body = http_get(address, timeout_seconds=_TIMEOUT_SECONDS)
            if body is None:
                raise RigError(f"panel {panel['title']!r}: Prometheus does not answer {query!r}")
            lines += _lines(json.loads(body)["data"]["result"], target["legendFormat"], asked)
        defaults = panel["fieldConfig"]["defaults"]
        words = (
            (float(value), result["text"])
            for mapping in defaults.get("mappings", ())
            for value, result in mapping["options"].items()
        )
        found.append(
            Answered(
                row=row,
                title=panel["title"],
                unit=defaults["unit"],
                lines=tuple(lines),
                stat=panel["options"]["textMode"] if panel["type"] == "stat" else "",
                words=tuple(words),
            )
        )
    return found


def _lines(
    series: Sequence[Mapping[str, Any]], legend: str, asked: Mapping[str, Any]
) -> Iterator[Line]:
    for one in series:
        # A label that a series lacks is empty, as in Grafana.
        known = {name: one["metric"].get(name, "") for name in re.findall(r"{{(\w+)}}", legend)}
        text = re.sub(r"{{(\w+)}}", r"{\1}", legend).format(**known)
        points = tuple(
            (round(at - asked["start"], 1), float(f"{float(value):.{_DIGITS}g}"))
            for at, value in one["values"]
            if math.isfinite(float(value))
        )
        yield Line(legend=" ".join(text.split()), points=points)


def write(folder: Path, panels: Sequence[Answered]) -> list[Path]:
    """Write the answers, and the picture if matplotlib is installed; the paths written."""
    answers, picture = folder / ANSWERS_NAME, folder / PICTURE_NAME
    answers.write_text(dumps(panels), encoding="utf-8")
    return [answers, picture] if draw(panels, picture) else [answers]


def dumps(panels: Sequence[Answered]) -> str:
    """The panels as JSON, one a line; `loads` reads it."""
    lines = ",\n".join(json.dumps(asdict(panel), separators=(",", ":")) for panel in panels)
    return f"[\n{lines}\n]\n"


def loads(text: str) -> list[Answered]:
    """The panels that `dumps` wrote. Raises: ValueError, KeyError or TypeError for other text."""
    return [_panel(panel) for panel in json.loads(text)]


def _panel(document: Mapping[str, Any]) -> Answered:
    lines = tuple(
        Line(legend=line["legend"], points=tuple((at, value) for at, value in line["points"]))
        for line in document["lines"]
    )
    return Answered(
        row=document["row"],
        title=document["title"],
        unit=document["unit"],
        lines=lines,
        stat=document.get("stat", ""),
        words=tuple((value, word) for value, word in document.get("words", ())),
    )


def draw(panels: Sequence[Answered], path: Path) -> bool:
    """Draw the panels, two a row, into a file of the path's format; False without matplotlib."""
    plt = pyplot()
    if plt is None:
        return False

    places = _places(panels)
    height = 1 + max(row for row, _ in places)
    end_minutes = max(
        (at / SECONDS_PER_MINUTE for p in panels for line in p.lines for at, _ in line.points),
        default=1.0,
    )
    steady = {"svg.hashsalt": "servingslo", "svg.fonttype": "none", "font.size": 8}
    with plt.rc_context(steady):
        low = {row for panel, (row, _) in zip(panels, places, strict=True) if panel.stat}
        heights = [_STAT_INCHES if row in low else _PANEL_INCHES for row in range(height)]
        figure, axes = plt.subplots(
            height, 2, figsize=(11, sum(heights)), height_ratios=heights,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        figure.suptitle(_TITLE, x=0.01, ha="left")
        before = ""
        for panel, (row, column) in zip(panels, places, strict=True):
            axis = axes[row, column]
            axis.set_xlim(0.0, end_minutes)
            if panel.row != before:
                axis.set_title(panel.row, loc="left", weight="bold", pad=20)
            before = panel.row
            _draw_panel(axis, panel)
        for row, column in {(r, c) for r in range(height) for c in (0, 1)}.difference(places):
            axes[row, column].set_axis_off()
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=110, metadata=metadata)
        plt.close(figure)
    return True


def _places(panels: Sequence[Answered]) -> list[tuple[int, int]]:
    """(row, column) of each panel: two in a line, and a new line for a new row."""
    places: list[tuple[int, int]] = []
    for before, panel in zip([None, *panels], panels, strict=False):
        row, column = places[-1] if places else (-1, 1)
        begins = before is None or before.row != panel.row or column == 1
        places.append((row + 1, 0) if begins else (row, 1))
    return places


def _draw_panel(axis: Any, panel: Answered) -> None:
    label, factor = _UNITS.get(panel.unit, (panel.unit, 1.0))
    axis.text(0.0, 1.04, panel.title, transform=axis.transAxes, va="bottom")
    if panel.stat:
        axis.set_axis_off()
        axis.text(0.02, 0.5, "\n".join(last_values(panel)), transform=axis.transAxes, va="center")
        return
    for place, line in enumerate(panel.lines):
        minutes, values = with_gaps(line.points)
        color = _COLORS[place % len(_COLORS)]
        asked = line.legend.endswith(("threshold", "wanted"))
        axis.plot(
            minutes, [factor * v for v in values], label=line.legend, lw=1.0 if asked else 1.3,
            color=_ASKED_COLOR if asked else color, ls="--" if asked else "-",
        )  # fmt: skip
    top = max((value for line in panel.lines for _, value in line.points), default=0.0)
    axis.set_ylim(0.0, None if top > 0.0 else 1.0)
    axis.set_ylabel(label)
    frame_lightly([axis])
    if panel.lines:
        axis.legend(
            frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(0.0, -0.12), ncols=2
        )
    else:
        axis.text(0.5, 0.5, "No data", transform=axis.transAxes, ha="center", va="center")


def last_values(panel: Answered) -> list[str]:
    """What a panel of last values shows: those that end with the recording."""
    end = max((line.points[-1][0] for line in panel.lines if line.points), default=0.0)
    words = dict(panel.words)
    found = []
    for line in panel.lines:
        if not line.points or line.points[-1][0] < end:
            continue
        value = line.points[-1][1]
        text = words.get(value, f"{value:g}")
        found.append(line.legend if panel.stat == "name" else f"{text}   ({line.legend})")
    return found or ["-"]


def with_gaps(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Minutes and values, with NaN where a point of the regular step is missing."""
    steps = [after - before for (before, _), (after, _) in itertools.pairwise(points)]
    longest = 1.5 * min(steps, default=0.0)
    xs: list[float] = []
    ys: list[float] = []
    for place, (at, value) in enumerate(points):
        if place and steps[place - 1] > longest:
            xs.append(math.nan)
            ys.append(math.nan)
        xs.append(at / SECONDS_PER_MINUTE)
        ys.append(value)
    return xs, ys
