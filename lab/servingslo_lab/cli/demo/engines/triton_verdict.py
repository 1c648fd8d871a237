"""What limits that were set did for a model's users, by the clients' own records; its picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from servingslo_lab.cli.demo.panels import draw_replicas, frame_lightly, png, pyplot

# A point of the picture's latency is of so many seconds.
_BIN_SECONDS = 10.0


class Answer(NamedTuple):
    """One request: when it was sent, how long it took, and whether it was answered."""

    at_seconds: float
    seconds: float
    good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The requests of a time: how many, how many of them in time, and their 95th percentile."""

    requests: int
    within_ratio: float
    p95_seconds: float

    @classmethod
    def of(cls, answers: Sequence[Answer], threshold_seconds: float) -> "Phase | None":
        """Of these; None where there are none. One that was not answered is never in time."""
        if not answers:
            return None
        within = sum(one.good and one.seconds <= threshold_seconds for one in answers)
        return cls(
            requests=len(answers),
            within_ratio=within / len(answers),
            p95_seconds=_p95([one.seconds if one.good else math.inf for one in answers]),
        )


def phase_line(phase: Phase | None, threshold_seconds: float) -> str:
    """One phase for people."""
    if phase is None:
        return "no requests"
    within = f"{phase.within_ratio:.1%} of {phase.requests} within {threshold_seconds:g} s"
    return f"{within}, p95 {phase.p95_seconds:.2f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonFigures:
    """One run.

    before: with the file's limits. after: at the same rate, once all pods had larger ones. failed:
    requests without an answer of 200. batches: the largest max_batch_size at each look. most_first:
    pods with larger limits at once while others had smaller ones. replicas_of_base: in `after`.
    changes: of limits that were logged.
    """

    percentile: float
    threshold_seconds: float
    before: Phase | None
    after: Phase | None
    surge: Phase | None
    answers: tuple[Answer, ...]
    failed: int
    batches: tuple[int, ...]
    most_first: int
    replicas: tuple[int, ...]
    replicas_of_base: tuple[int, ...]
    changes: int

    def kept(self, phase: Phase | None) -> bool:
        """Whether the objective held at its percentile."""
        return phase is not None and 100.0 * phase.within_ratio >= self.percentile


# What `missed` looks at, for people.
CHECKED = (
    "the objective missed with the file's limits and kept with those that were set",
    "no request failed",
    "larger limits were set",
    "replicas followed the load",
)


def missed(figures: TritonFigures) -> tuple[str, ...]:
    """What this run did not show; nothing where all went as it should."""
    found = []
    if figures.before is None or figures.kept(figures.before):
        found.append("the objective held before, so nothing is shown")
    if not figures.kept(figures.after):
        found.append("the objective is missed with the limits that were set")
    if figures.failed:
        found.append(f"{figures.failed} requests failed")
    if max(figures.batches, default=0) <= 2:
        found.append("no larger limits were set")
    if len(set(figures.replicas)) < 2:
        found.append("replicas did not follow the load")
    return tuple(f"triton: {one}" for one in found)


def table(figures: TritonFigures) -> str:
    """The figures for people."""
    rows = [
        ("requests", f"{len(figures.answers)}, {figures.failed} failed"),
        *(
            (name, phase_line(phase, figures.threshold_seconds))
            for name, phase in (
                ("with the file's limits", figures.before),
                ("with those that were set", figures.after),
                ("in the surge", figures.surge),
            )
        ),
        ("max_batch_size", " to ".join(map(str, (figures.batches[0], max(figures.batches))))),
        ("changes of limits", str(figures.changes)),
        ("replicas", f"{min(figures.replicas)} to {max(figures.replicas)}"),
        ("replicas of the base", ", ".join(map(str, sorted(figures.replicas_of_base)))),
    ]
    return "\n".join(f"{name:<26} {value}" for name, value in rows)


def draw(
    figures: TritonFigures, looks: Sequence[tuple[float, int, Mapping[str, int]]], seconds: float
) -> bytes | None:
    """Arrivals, latency, limits and replicas over time, as PNG; None without matplotlib."""
    plt = pyplot()
    if plt is None:
        return None

    figure, panels = plt.subplots(4, 1, sharex=True, figsize=(11, 10), constrained_layout=True)
    arrivals, latency, limits, replicas = panels
    frame_lightly(panels)
    bins = _bins(figures.answers, seconds)
    minutes = [at / 60 for at, _ in bins]
    arrivals.plot(minutes, [len(found) / _BIN_SECONDS for _, found in bins], color="#1d3557")
    arrivals.set_ylabel("arrivals, requests/s")
    arrivals.set_ylim(bottom=0)
    arrivals.set_title("Limits set on real Triton servers while they run", loc="left")
    latency.plot(minutes, [_p95(found) for _, found in bins], color="#e76f51", label="p95, clients")
    latency.axhline(figures.threshold_seconds, color="black", lw=0.8, ls=":", label="objective")
    latency.set_ylabel("latency p95, seconds")
    latency.set_yscale("log")
    latency.legend(frameon=False, loc="upper right")
    for pod in dict.fromkeys(pod for _, _, found in looks for pod in found):
        own = [(at / 60, found[pod]) for at, _, found in looks if pod in found]
        limits.step(*zip(*own, strict=True), where="post", alpha=0.8)
    limits.set_ylabel("max_batch_size of each pod")
    limits.set_ylim(bottom=0)
    draw_replicas(
        replicas,
        [at / 60 for at, _, _ in looks],
        ("asked for", [count for _, count, _ in looks]),
        ("serving", [len(found) for _, _, found in looks]),
    )
    return png(plt, figure)


def _p95(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)] if ordered else math.nan


def _bins(answers: Sequence[Answer], seconds: float) -> list[tuple[float, list[float]]]:
    """Latencies by the time at which requests were sent."""
    count = max(math.ceil(seconds / _BIN_SECONDS), 1)
    found: list[list[float]] = [[] for _ in range(count)]
    for one in answers:
        found[min(int(one.at_seconds / _BIN_SECONDS), count - 1)].append(one.seconds)
    return [((place + 0.5) * _BIN_SECONDS, values) for place, values in enumerate(found)]
