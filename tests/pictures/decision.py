"""One decision of the recorded demo as a timeline: seen, forecast, sized, ordered, ready."""

import re
from typing import Any

import matplotlib.pyplot as plt

from servingslo_lab.cli.demo.timeline import Timeline

INK, SOFT, ARRIVALS, ORDERED, READY = "#264653", "#6c757d", "#1d3557", "#2a9d8f", "#e76f51"
BEFORE_SECONDS, AFTER_SECONDS = 20.0, 45.0


def figure(timeline: Timeline) -> Any:
    """The first scale-up after the surge began, with the numbers of its log line."""
    at, line = next(
        (at, line)
        for at, line in timeline.decisions
        if at >= timeline.surge_start_seconds and "action=scale-up" in line
    )
    before, after = (int(n) for n in re.search(r"replicas=(\d+)->(\d+)", line).groups())
    samples = [
        s
        for s in timeline.samples
        if at - BEFORE_SECONDS <= s.elapsed_seconds <= at + AFTER_SECONDS
    ]
    seconds = [s.elapsed_seconds - at for s in samples]
    ready = next(
        s.elapsed_seconds - at
        for s in samples
        if s.elapsed_seconds > at and s.ready_replicas >= after
    )
    drawn, (rate, replicas) = plt.subplots(
        2, 1, sharex=True, figsize=(9, 5), height_ratios=(1, 1.1), constrained_layout=True
    )
    rate.plot(
        seconds, [s.arrival_rate_per_second for s in samples], color=ARRIVALS,
        label="arrived, mean of the last 30 s",
    )  # fmt: skip
    read = [
        (then - at, float(value(text, "arrival").removesuffix("/s")))
        for then, text in timeline.decisions
        if -BEFORE_SECONDS <= then - at <= AFTER_SECONDS and " arrival=" in text
    ]
    rate.plot(
        *zip(*read, strict=True),
        color=ORDERED,
        marker="o",
        ls="",
        label="read by the operator, since its last scrapes",
    )
    rate.set_ylabel("requests/s")
    rate.legend(frameon=False, loc="lower right")
    rate.set_ylim(bottom=0)
    rate.set_title(
        f"One decision: {before} → {after} replicas, {value(line, 'reason')}", loc="left"
    )
    rate.annotate(
        f"reads {value(line, 'arrival')},\n"
        f"plans for {value(line, 'forecast').replace('@', ' in ')}",
        (-BEFORE_SECONDS + 1, max(one for _, one in read)), color=INK, size=9, va="top",
    )  # fmt: skip
    replicas.step(
        seconds, [s.desired_replicas for s in samples], where="post", color=ORDERED, lw=2,
        label="ordered",
    )  # fmt: skip
    replicas.step(
        seconds, [s.ready_replicas for s in samples], where="post", color=READY, ls="--",
        label="ready",
    )  # fmt: skip
    top = max(s.desired_replicas for s in samples)
    replicas.set_ylim(0, 1.5 * top)
    replicas.set_ylabel("replicas")
    replicas.set_xlabel("seconds from the decision")
    surge = timeline.surge_start_seconds - at
    for x, words, height in (
        (surge, f"surge begins\n{-surge:.0f} s before", 1.37),
        (0.0, f"decided, from metrics {value(line, 'age')} old:\n{needs(line)}", 1.12),
        (ready, f"first {after} ready\n{ready:.0f} s after", 0.85),
    ):
        replicas.axvline(x, color=SOFT, lw=0.8)
        rate.axvline(x, color=SOFT, lw=0.8)
        replicas.annotate(words, (x + 0.6, height * top), color=INK, size=9, va="center")
    for panel in (rate, replicas):
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    replicas.legend(frameon=False, loc="upper right", ncols=2)
    return drawn


def value(line: str, field: str) -> str:
    """The word of a field of a log line."""
    return re.search(rf" {field}=(\S+)", line)[1]


def needs(line: str) -> str:
    """What each constraint asks for, as the line has it."""
    return "needs " + re.search(r'need="([^"]+)"', line)[1].replace(" ", ", ").replace("kv", "\nkv")
