"""The demo's summary, its picture (PNG) and its page (HTML)."""

import base64
import html
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from servingslo.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, format_duration
from servingslo_lab.cli.demo.panels import draw_replicas, frame_lightly, png, pyplot
from servingslo_lab.cli.demo.timeline import DemoSample, Timeline

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
    nothing arrived. minute_target_ratio: the share below which a minute counts as missed.
    """

    request_count: int
    share_in_slo_ratio: float
    minute_shares: tuple[float | None, ...]
    minute_target_ratio: float

    def longest_missed_minutes(self) -> int:
        """Longest run of consecutive minutes whose share lies below the target."""
        longest = run = 0
        for share in self.minute_shares:
            missed = share is not None and share < self.minute_target_ratio
            run = run + 1 if missed else 0
            longest = max(longest, run)
        return longest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What the operator's process used."""

    cpu_seconds: float
    wall_seconds: float
    peak_memory_bytes: float


def summary(timeline: Timeline, truth: Truth, use: ProcessUse | None) -> str:
    """The summary for people, a line for each figure."""
    missed = sum(s is not None and s < truth.minute_target_ratio for s in truth.minute_shares)
    minutes = (
        f"{missed} of {len(truth.minute_shares)} below {truth.minute_target_ratio:.0%}; "
        f"longest run {truth.longest_missed_minutes()}"
    )
    ups, downs = timeline.count_decisions("scale-up"), timeline.count_decisions("scale-down")
    rows: list[tuple[str, str]] = [
        ("requests", f"{truth.request_count}"),
        ("share in SLO", f"{truth.share_in_slo_ratio:.2%} of requests met every objective"),
        ("target", _target(timeline, truth)),
        ("missed minutes", minutes),
        ("replica-hours", f"{timeline.replica_seconds() / SECONDS_PER_HOUR:.3f}"),
        ("replicas", _replica_range(timeline.samples)),
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


def _target(timeline: Timeline, truth: Truth) -> str:
    """The share that the objectives ask for, and where it was missed."""
    target = max((o.percentile / 100.0 for o in timeline.objectives), default=None)
    if target is None:
        return "none: no objective was stated"
    if truth.share_in_slo_ratio >= target:
        return f"{_percent(target)}: kept"
    below = [
        minute
        for minute, share in enumerate(truth.minute_shares, start=1)
        if share is not None and share < target
    ]
    first, last = (
        int(seconds // SECONDS_PER_MINUTE) + 1
        for seconds in (timeline.surge_start_seconds, timeline.surge_end_seconds)
    )
    where = f"in minute{'s' * (len(below) > 1)} {', '.join(map(str, below))}"
    inside = sum(first <= minute <= last for minute in below)
    if inside == len(below):
        where += ", all in the surge"
    elif inside:
        where += f", {inside} of them in the surge"
    ready = timeline.more_ready_after(timeline.surge_start_seconds)
    if inside and ready is not None:
        where += (
            f", whose first new replica was ready {format_duration(round(ready))} after it began"
        )
    return f"{_percent(target)}: missed {where}"


def _percent(ratio: float) -> str:
    """'99 %', '99.5 %'."""
    return f"{100 * ratio:.4g} %"


def _replica_range(samples: list[DemoSample]) -> str:
    counts = [sample.desired_replicas for sample in samples]
    if not counts:
        return "none seen"
    return f"{counts[0]} at the start, {min(counts)} to {max(counts)}, {counts[-1]} at the end"


def _reaction(timeline: Timeline) -> str:
    delay = timeline.first_scale_up_after(timeline.surge_start_seconds)
    if delay is None:
        return "none after the surge began"
    ticks = delay / timeline.tick_seconds
    return f"{format_duration(delay)} after the surge began ({ticks:.1f} ticks)"


def _prediction(samples: list[DemoSample]) -> str:
    """Medians over the moments at which the decided count, which the prediction is for, served."""
    known = [
        (s.predicted_ttft_seconds, s.ttft_p99_seconds, s.observed_ttft_seconds)
        for s in samples
        if s.ready_replicas == s.desired_replicas
        and s.predicted_ttft_seconds is not None
        and s.ttft_p99_seconds is not None
        and s.observed_ttft_seconds is not None
    ]
    if not known:
        return "no moment with both prediction and observation"
    predicted, recorded, observed = (
        format_duration(median(column)) for column in zip(*known, strict=True)
    )
    return (
        f"p99 {predicted} predicted, {recorded} in the requests' own records of 30 s, {observed} "
        f"by the engines' histogram buckets (medians of {len(known)} moments)"
    )


def _picture(timeline: Timeline) -> bytes | None:
    plt = pyplot()
    if plt is None:
        return None

    samples = timeline.samples
    minutes = [s.elapsed_seconds / 60 for s in samples]
    figure, panels = plt.subplots(4, 1, sharex=True, figsize=(11, 10), constrained_layout=True)
    demand, queue, latency, replicas = panels
    for panel in panels:
        panel.axvspan(
            timeline.surge_start_seconds / 60,
            timeline.surge_end_seconds / 60,
            color="#f4a261",
            alpha=0.18,
            lw=0,
        )
    frame_lightly(panels)
    rates = [
        math.nan if s.arrival_rate_per_second is None else s.arrival_rate_per_second
        for s in samples
    ]
    demand.plot(minutes, rates, color="#1d3557")
    demand.set_ylim(bottom=0)
    demand.set_ylabel("arrivals, requests/s")
    demand.set_title("ServingSLO on a real control plane; shaded: the surge", loc="left")
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
