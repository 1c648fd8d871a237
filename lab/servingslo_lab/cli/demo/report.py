"""The demo's summary, its picture (PNG) and its page (HTML), and how a scenario ends."""

import base64
import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from servingslo.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, format_duration
from servingslo_lab.cli.demo.panels import draw_replicas, frame_lightly, png, pyplot
from servingslo_lab.cli.demo.timeline import DemoSample, Timeline
from servingslo_lab.errors import RigError

PICTURE_NAME = "demo.png"
PAGE_NAME = "demo.html"
SUMMARY_NAME = "summary.txt"
BYTES_PER_MEBIBYTE = 2**20
# Of the first column of the summary.
_NAME_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the engines themselves recorded of every request.

    share_in_slo_ratio: requests that met every objective's threshold; rejected, lost and
    unfinished requests miss. minute_shares: the same for each minute of arrival, None where
    nothing arrived.
    """

    request_count: int
    share_in_slo_ratio: float
    minute_shares: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What the operator's process used."""

    cpu_seconds: float
    wall_seconds: float
    peak_memory_bytes: float


def summary(timeline: Timeline, truth: Truth, use: ProcessUse | None) -> str:
    """The summary for people, a line for each figure."""
    ups, downs = timeline.count_decisions("scale-up"), timeline.count_decisions("scale-down")
    rows: list[tuple[str, str]] = [
        ("requests", f"{truth.request_count}"),
        ("declared", _declared(timeline)),
        ("share in SLO", f"{_percent(truth.share_in_slo_ratio)} of requests met all objectives"),
        *_below(timeline, truth),
        *_verdict(timeline, truth),
        ("replica-hours", f"{timeline.replica_seconds() / SECONDS_PER_HOUR:.3f}"),
        ("replicas", _replica_range(timeline)),
        ("decisions", f"{ups} up, {downs} down"),
        ("first scale-up", _reaction(timeline)),
        ("TTFT prediction", _prediction(timeline.samples)),
    ]
    if use is not None:
        share = use.cpu_seconds / use.wall_seconds
        memory = use.peak_memory_bytes / BYTES_PER_MEBIBYTE
        rows.append(("operator", f"{share:.1%} of a core, {memory:.0f} MiB at most"))
    return "\n".join(f"{name:<{_NAME_WIDTH}} {value}" for name, value in rows)


def write(folder: Path, timeline: Timeline, text: str) -> list[Path]:
    """Write the summary, and the picture and page where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / SUMMARY_NAME]
    written[0].write_text(text + "\n", encoding="utf-8")
    picture = _picture(timeline)
    if picture is None:
        return written
    (folder / PICTURE_NAME).write_bytes(picture)
    (folder / PAGE_NAME).write_text(_page(timeline, text, picture), encoding="utf-8")
    return [*written, folder / PICTURE_NAME, folder / PAGE_NAME]


def _declared(timeline: Timeline) -> str:
    """The declared share of each objective, and what `explain` compares with."""
    objectives = timeline.objectives
    if not objectives:
        return "no objective"
    each = ", ".join(
        f"{o.percentile:g} % {o.metric} ≤ {format_duration(o.threshold_seconds)}"
        for o in objectives
    )
    shares = sorted({o.percentile for o in objectives})
    return f"{each}; `explain` takes {min(shares):g} % for all" if shares[1:] else each


def _below(timeline: Timeline, truth: Truth) -> list[tuple[str, str]]:
    """In which minutes fewer requests than the largest declared share met all objectives."""
    declared = max((o.percentile / 100.0 for o in timeline.objectives), default=None)
    if declared is None:
        return []
    shares = truth.minute_shares
    below = [n for n, share in enumerate(shares, 1) if share is not None and share < declared]
    name = f"below {_percent(declared)}"
    if not below:
        return [(name, f"none of {len(shares)} minutes")]
    words = f"{len(below)} of {len(shares)} minutes: {_listed(below)}"
    if timeline.surge is None:
        return [(name, words)]
    start, end = timeline.surge
    first, last = int(start // SECONDS_PER_MINUTE) + 1, math.ceil(end / SECONDS_PER_MINUTE)
    span = f"minute {first}" if first == last else f"minutes {first} to {last}"
    ready = timeline.more_ready_after(start)
    if ready is not None:
        span += f", its first new replica ready after {format_duration(round(ready))}"
    return [(name, f"{words}; the surge: {span}")]


def _verdict(timeline: Timeline, truth: Truth) -> list[tuple[str, str]]:
    """Whether the declared share was kept over the run and in each of its phases."""
    declared = max((o.percentile / 100.0 for o in timeline.objectives), default=None)
    if declared is None:
        return []
    shares = [("the run", truth.share_in_slo_ratio)]
    if timeline.surge is not None:
        minutes = [
            (SECONDS_PER_MINUTE * number, share)
            for number, share in enumerate(truth.minute_shares)
            if share is not None
        ]
        start, end = timeline.surge
        for name, first, last in (
            ("before the surge", 0.0, start),
            ("in it", start, end),
            ("after it", end, math.inf),
        ):
            found = [share for at, share in minutes if first <= at < last]
            shares += [(name, sum(found) / len(found))] if found else []
    ended = "missed" if any(share < declared for _, share in shares) else "kept"
    told = ", ".join(f"{name} {_percent(share)}" for name, share in shares)
    return [("verdict", f"{ended}: {_percent(declared)} declared; {told}")]


def _listed(numbers: list[int]) -> str:
    """'2', '2 and 3', '2, 3 and 6'."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _percent(ratio: float) -> str:
    """'99 %', '99.5 %'; never rounded up to a share that was not reached."""
    return f"{math.floor(round(ratio * 1e4, 6)) / 100:.4g} %"


def _replica_range(timeline: Timeline) -> str:
    counts = [sample.desired_replicas for sample in timeline.samples]
    if not counts:
        return "none seen"
    words = f"{counts[0]} at the start, {min(counts)} to {max(counts)}, {counts[-1]} at the end"
    return words + _held(timeline, counts[-1])


def _held(timeline: Timeline, replicas: int) -> str:
    """Why replicas above the last need were kept; empty if they were not."""
    last = timeline.decisions[-1][1] if timeline.decisions else ""
    reason, need = re.search(r" reason=(\S+)", last), re.search(r' need="?([^"=]*)"?', last)
    most = max((int(n) for n in re.findall(r":(\d+)", need[1])), default=0) if need else 0
    if reason is None or not 0 < most < replicas or " action=hold " not in last:
        return ""
    return f" (held by {reason[1]}, last need {most})"


def _reaction(timeline: Timeline) -> str:
    surge = timeline.surge
    begin, what = (0.0, "traffic") if surge is None else (surge[0], "the surge")
    delay = timeline.first_scale_up_after(begin)
    if delay is None:
        return f"none after {what} began"
    ticks = delay / timeline.tick_seconds
    return f"{format_duration(delay)} after {what} began ({ticks:.1f} ticks)"


def _prediction(samples: list[DemoSample]) -> str:
    """Medians over the moments at which the decided count, which the prediction is for, served."""
    known = [
        (s.predicted_ttft_seconds, s.ttft_p99_seconds)
        for s in samples
        if s.ready_replicas == s.desired_replicas
        and s.predicted_ttft_seconds is not None
        and s.ttft_p99_seconds is not None
    ]
    if not known:
        return "no moment with both prediction and measurement"
    predicted, measured = (format_duration(median(column)) for column in zip(*known, strict=True))
    return f"p99 {predicted} predicted, {measured} measured (medians of {len(known)} moments)"


def _picture(timeline: Timeline) -> bytes | None:
    plt = pyplot()
    if plt is None:
        return None

    samples = timeline.samples
    minutes = [s.elapsed_seconds / 60 for s in samples]
    figure, panels = plt.subplots(4, 1, sharex=True, figsize=(11, 10), constrained_layout=True)
    demand, queue, latency, replicas = panels
    title = "ServingSLO on a real control plane"
    if timeline.surge is not None:
        title += "; shaded: the surge"
        start, end = (seconds / SECONDS_PER_MINUTE for seconds in timeline.surge)
        for panel in panels:
            panel.axvspan(start, end, color="#f4a261", alpha=0.18, lw=0)
    frame_lightly(panels)
    rates = [
        math.nan if s.arrival_rate_per_second is None else s.arrival_rate_per_second
        for s in samples
    ]
    demand.plot(minutes, rates, color="#1d3557")
    demand.set_ylim(bottom=0)
    demand.set_ylabel("arrivals, requests/s")
    demand.set_title(title, loc="left")
    queue.plot(minutes, [s.running_requests for s in samples], color="#457b9d", label="running")
    queue.plot(minutes, [s.waiting_requests for s in samples], color="#e63946", label="waiting")
    queue.set_ylabel("requests")
    queue.legend(frameon=False, loc="upper left")
    _latency_panel(latency, timeline, minutes)
    draw_replicas(
        replicas,
        minutes,
        ("desired", [s.desired_replicas for s in samples]),
        ("ready", [s.ready_replicas for s in samples]),
    )
    return png(plt, figure)


def _latency_panel(panel: Any, timeline: Timeline, minutes: list[float]) -> None:
    from matplotlib.ticker import LogLocator  # noqa: PLC0415 - as in _picture

    samples = timeline.samples
    series = (
        ("requests' own records, last 30 s", "#e76f51", [s.ttft_p99_seconds for s in samples]),
        ("observed by the operator", "#8d99ae", [s.observed_ttft_seconds for s in samples]),
        ("predicted for the decided count", "#2a9d8f", [s.predicted_ttft_seconds for s in samples]),
    )
    for label, color, values in series:
        panel.plot(
            minutes, [math.nan if v is None else v for v in values], color=color, label=label
        )
    objective = timeline.objective("ttft")
    if objective is not None:
        panel.axhline(objective.threshold_seconds, color="black", lw=0.8, ls=":", label="objective")
    panel.set_yscale("log")
    # A string is taken as a format: plain numbers instead of powers of ten, and few enough to read.
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter("")
    panel.set_ylabel("TTFT p99, seconds")
    panel.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4)


def _page(timeline: Timeline, text: str, picture: bytes) -> str:
    lines = "\n".join(f"{at:7.1f}s  {line}" for at, line in timeline.decisions)
    image = base64.b64encode(picture).decode()
    rows = "\n".join(
        f"<tr><th>{html.escape(line[:_NAME_WIDTH].strip())}</th>"
        f"<td>{html.escape(line[_NAME_WIDTH:].strip())}</td></tr>"
        for line in text.splitlines()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ServingSLO demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1d3557 }}
body {{ max-width: 1100px; margin: 2rem auto; padding: 0 1rem }}
* {{ box-sizing: border-box }}
table, pre {{ background: #f4f6f8; width: 100%; font-size: 13px; overflow-wrap: anywhere }}
table {{ border-spacing: 0; padding: .5rem }}
th {{ text-align: left; vertical-align: top; white-space: nowrap; padding: 0 1rem 0 .5rem }}
pre {{ padding: 1rem; white-space: pre-wrap }}
img {{ max-width: 100%; height: auto }}
</style></head><body>
<h1>ServingSLO demo</h1>
<table>
{rows}
</table>
<img alt="arrivals, requests, time to first token and replicas over time"
 src="data:image/png;base64,{image}">
<h2>Decisions as logged</h2>
<pre>{html.escape(lines)}</pre>
</body></html>
"""


def verdict_line(short: Sequence[str], checked: Sequence[str]) -> str:
    """'verdict: kept; checked: …', or each promise that was missed. checked: all promises."""
    ended = f"missed: {'; '.join(short)}" if short else "kept"
    return f"verdict: {ended}; checked: {', '.join(checked)}"


def concluded(
    text: str, short: Sequence[str], checked: Sequence[str], *, full: bool, file: Path
) -> str:
    """The figures with their verdict, written to a file as well.

    full: the run was as long as its promises need. Raises: RigError if such a run missed one.
    """
    line = verdict_line(short, checked)
    if not full:
        line += "; a short run, which promises nothing"
    told = f"{text}\n{line}"
    file.write_text(f"{told}\n", encoding="utf-8")
    if short and full:
        raise RigError(f"{file.stem}\n{told}")
    return told
