"""The live terminal view: demand, latency, replicas, and the decisions, each in one line."""

import re

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from servingslo.units import format_duration
from servingslo_lab.cli.demo.timeline import DemoSample, Timeline

SPARK_LEVELS = "▁▂▃▄▅▆▇█"
# Beside labels and values on a terminal of 80 columns.
SPARK_COLUMNS = 40
DECISION_LINES = 8
_PAIR = re.compile(r'(\w+)=("[^"]*"|\S+)')
# Every decision of the demo has the same ones.
_LEFT_OUT = ("namespace", "name")


def render(timeline: Timeline, *, total_seconds: float) -> RenderableType:
    """The whole view for the newest sample; a waiting line before the first one."""
    if not timeline.samples:
        return Panel(Text("waiting for the first scrape"), title="ServingSLO demo")
    return Group(
        _signals(timeline, total_seconds),
        _decisions(timeline),
    )


def _signals(timeline: Timeline, total_seconds: float) -> Panel:
    now = timeline.samples[-1]
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="left", style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="left", no_wrap=True)
    rows = (
        ("arrival rate", _rate(now.arrival_rate_per_second), "arrival_rate_per_second"),
        ("waiting", f"{now.waiting_requests:.0f}", "waiting_requests"),
        ("running", f"{now.running_requests:.0f}", "running_requests"),
        ("KV cache", _percent(now.kv_usage_ratio), "kv_usage_ratio"),
        ("TTFT p99", _latency(timeline, now), "ttft_p99_seconds"),
        ("  predicted", _seconds(now.predicted_ttft_seconds), "predicted_ttft_seconds"),
        ("replicas", f"{now.ready_replicas}/{now.desired_replicas} ready", "desired_replicas"),
    )
    for label, value, attribute in rows:
        table.add_row(label, value, _spark(timeline.samples, attribute))
    parts = (
        "ServingSLO demo",
        f"{format_duration(round(now.elapsed_seconds))} of {format_duration(total_seconds)}",
        *_phase(timeline, now.elapsed_seconds),
        f"binding: {now.binding or 'nothing'}",
    )
    return Panel(table, title=" · ".join(parts))


def _decisions(timeline: Timeline) -> Panel:
    text = Text(overflow="ellipsis", no_wrap=True)
    for at, line in timeline.decisions[-DECISION_LINES:]:
        style = "green" if "scale-up" in line else "cyan" if "scale-down" in line else "dim"
        text.append(f"{at:4.0f}s {shortened(line)}\n", style=style)
    return Panel(text, title="decisions")


def shortened(line: str) -> str:
    """A decision's line with action, replicas, reason and need first; a terminal cuts the rest."""
    pairs = {key: value for key, value in _PAIR.findall(line) if key not in _LEFT_OUT}
    first = [pairs.pop(key) for key in ("action", "replicas", "reason") if key in pairs]
    if "need" in pairs:
        first.append("need " + pairs.pop("need").strip('"'))
    return " ".join([*first, *(f"{key}={value}" for key, value in pairs.items())])


def _phase(timeline: Timeline, elapsed_seconds: float) -> tuple[str, ...]:
    if timeline.surge is None:
        return ()
    start, end = timeline.surge
    if elapsed_seconds < start:
        return ("at rest",)
    return ("surge" if elapsed_seconds < end else "after the surge",)


def _latency(timeline: Timeline, now: DemoSample) -> str:
    objective = timeline.objective("ttft")
    value = _seconds(now.ttft_p99_seconds)
    return value if objective is None else f"{value} ≤ {_seconds(objective.threshold_seconds)}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}/s"


def _seconds(value: float | None) -> str:
    return "–" if value is None else format_duration(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _spark(samples: list[DemoSample], attribute: str) -> str:
    values = [getattr(sample, attribute) for sample in samples[-SPARK_COLUMNS:]]
    known = [value for value in values if value is not None]
    highest = max(known, default=0.0)
    if highest <= 0:
        return SPARK_LEVELS[0] * len(values)
    top = len(SPARK_LEVELS) - 1
    return "".join(" " if v is None else SPARK_LEVELS[round(v / highest * top)] for v in values)
