"""What classes did for chat and for the job, from their clients' records; the picture of it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from servingslo_lab.cli.demo.panels import frame_lightly, png, pyplot
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending

# The least time is known in hindsight alone. Live runs of two seeds took 1.6 to 1.8 times as long.
LONGEST_JOB_RATIO = 2.0
COST_RATIO = 1.05
# What `missed` and `nothing_shown` look at, for people.
CHECKED = (
    "chat's objectives with classes",
    f"the job within {LONGEST_JOB_RATIO:g} times the least time at the pace of this machine",
    "no more replica-hours than chat alone",
    "a run without classes that goes worse",
)
# A point of the picture is of this many seconds.
_BIN_SECONDS = 20.0


class Arm(StrEnum):
    """One of the three fleets. Its value is the name of its column."""

    ALONE = "alone"
    OFF = "off"
    ON = "on"


_TITLES = {
    Arm.ALONE: "chat alone",
    Arm.OFF: "with the job, no classes",
    Arm.ON: "with the job, classes",
}
_COLORS = {Arm.ALONE: "#6c757d", Arm.OFF: "#e76f51", Arm.ON: "#2a9d8f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A fleet at one time: ordered and ready replicas, and the bound of each route's policy."""

    at_seconds: float
    ordered: int
    ready: int
    bounds: tuple[int | None, ...] = ()

    @property
    def text(self) -> str:
        """In words."""
        bounds = "/".join("-" if one is None else str(one) for one in self.bounds)
        return f"replicas {self.ready}/{self.ordered} bound {bounds}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """One fleet.

    within: of each objective the share of all chat requests that met it; refused, broken and late
    ones did not. refused: chat requests. job_requests: served. job_seconds: from its begin to its
    last answer, NaN without a job; least_seconds: that it could have taken. replica_seconds: of
    ordered ones, while chat arrived.
    """

    arm: Arm
    chat_requests: int
    within: tuple[tuple[Objective, float], ...]
    refused: int
    job_requests: int
    job_seconds: float
    least_seconds: float
    replica_seconds: float

    @property
    def job_ratio(self) -> float:
        """Time of the job over the least possible."""
        return self.job_seconds / self.least_seconds


def figures_of(
    arm: Arm,
    records: Mapping[str, Sequence[ClientRecord]],
    looks: Sequence[Look],
    objectives: Sequence[Objective],
    *,
    seconds: float,
    job_begin_seconds: float,
    least_seconds: float,
) -> ArmFigures:
    """The figures of a fleet. records: of `chat`, and of `job` if there was one.

    seconds: for which chat arrived. least_seconds: that the job could have taken.
    """
    chat, job = records["chat"], records.get("job", ())
    ends = max((one.arrival_seconds + one.seconds for one in job), default=math.nan)
    return ArmFigures(
        arm=arm,
        chat_requests=len(chat),
        within=tuple((one, _within(chat, one)) for one in objectives),
        refused=sum(one.ending is Ending.REFUSED for one in chat),
        job_requests=len(job),
        job_seconds=ends - job_begin_seconds,
        least_seconds=least_seconds if job else math.nan,
        replica_seconds=sum(
            earlier.ordered * (min(later.at_seconds, seconds) - earlier.at_seconds)
            for earlier, later in pairwise(looks)
            if earlier.at_seconds < seconds
        ),
    )


def typical_count(looks: Sequence[Look], begin_seconds: float, end_seconds: float) -> int:
    """The mean of the ordered replicas between two times, rounded; at least one."""
    found = [one.ordered for one in looks if begin_seconds <= one.at_seconds <= end_seconds]
    return max(round(sum(found) / len(found)), 1) if found else 1


def missed(figures: Sequence[ArmFigures]) -> tuple[str, ...]:
    """Which promises of classes this run did not keep."""
    found = {one.arm: one for one in figures}
    alone, on = found[Arm.ALONE], found[Arm.ON]
    told = [
        f"chat: {_held(objective, ratio)}, {objective.percentile / 100.0:.0%} is promised"
        for objective, ratio in on.within
        if ratio < objective.percentile / 100.0
    ]
    if not on.job_ratio <= LONGEST_JOB_RATIO:
        told.append(
            f"the job took {on.job_seconds:.0f} s, {on.job_ratio:.2f} times the least possible; "
            f"{LONGEST_JOB_RATIO:g} is promised"
        )
    if on.replica_seconds > COST_RATIO * alone.replica_seconds:
        told.append(
            f"{on.replica_seconds / SECONDS_PER_HOUR:.3f} replica-hours, "
            f"{alone.replica_seconds / SECONDS_PER_HOUR:.3f} for chat alone"
        )
    return tuple(told)


def nothing_shown(figures: Sequence[ArmFigures]) -> tuple[str, ...]:
    """Why the run shows nothing of classes: without them all went as well; empty if it did not."""
    found = {one.arm: one for one in figures}
    alone, off = found[Arm.ALONE], found[Arm.OFF]
    kept = all(ratio >= objective.percentile / 100.0 for objective, ratio in off.within)
    if kept and off.replica_seconds <= COST_RATIO * alone.replica_seconds:
        return ("without classes chat was kept at the same cost: the job was too small",)
    return ()


def table(figures: Sequence[ArmFigures]) -> str:
    """The figures for people, one column for each fleet."""
    rows: list[tuple[str, list[str]]] = [
        ("", [_TITLES[one.arm] for one in figures]),
        ("chat requests", [str(one.chat_requests) for one in figures]),
        ("refused", [str(one.refused) for one in figures]),
    ]
    for place, (objective, _) in enumerate(figures[0].within):
        name = f"{objective.metric.value} within {objective.threshold_seconds:g} s"
        rows.append((name, [f"{one.within[place][1]:.2%}" for one in figures]))
    rows += [
        ("job requests", [str(one.job_requests) if one.job_requests else "-" for one in figures]),
        ("job, seconds", [_number(one.job_seconds, ".0f") for one in figures]),
        ("over the least", [_number(one.job_ratio, ".2f") for one in figures]),
        ("replica-hours", [f"{one.replica_seconds / SECONDS_PER_HOUR:.3f}" for one in figures]),
    ]
    return "\n".join(f"{name:<22}" + "".join(f"{cell:>26}" for cell in row) for name, row in rows)


def pace_line(pace: float) -> str:
    """What a busy machine did to the engines; the least time of the job is of the same pace."""
    return f"{'pace of the engines':<22} steps took {pace:.2f} times as long as stated"


def draw(
    records: Mapping[Arm, Mapping[str, Sequence[ClientRecord]]],
    looks: Mapping[Arm, Sequence[Look]],
    objectives: Sequence[Objective],
    *,
    begins_seconds: float,
) -> bytes | None:
    """Chat's first objective, the job's progress, replicas and bounds; None without matplotlib.

    begins_seconds: of the job.
    """
    plt = pyplot()
    if plt is None:
        return None
    figure, panels = plt.subplots(4, 1, sharex=True, figsize=(9, 9), constrained_layout=True)
    first, progress, counts, bounds = panels
    frame_lightly(panels)
    first.set_title("Chat and a background job on the same replicas", loc="left")
    objective = objectives[0]
    measure = _VALUES[objective.metric]
    for arm, found in records.items():
        bins = _bins((one.arrival_seconds, measure(one)) for one in found["chat"])
        minutes = [at / SECONDS_PER_MINUTE for at in bins]
        highest = [_quantile(values, objective.percentile / 100.0) for values in bins.values()]
        first.plot(minutes, highest, color=_COLORS[arm], label=_TITLES[arm])
        ends = sorted(one.arrival_seconds + one.seconds for one in found.get("job", ()))
        if ends:
            done = range(1, len(ends) + 1)
            progress.plot([at / SECONDS_PER_MINUTE for at in ends], done, color=_COLORS[arm])
        times = [one.at_seconds / SECONDS_PER_MINUTE for one in looks[arm]]
        ordered = [one.ordered for one in looks[arm]]
        counts.step(times, ordered, where="post", color=_COLORS[arm])
    _draw_bounds(bounds, looks[Arm.ON])
    first.axhline(objective.threshold_seconds, color="black", lw=0.8, ls=":")
    first.set_yscale("log")
    first.set_ylabel(f"chat {objective.metric.value} p{objective.percentile:g}, s")
    first.legend(frameon=False, loc="upper left", ncols=3)
    progress.set_ylabel("job requests served")
    counts.set_ylabel("replicas ordered")
    bounds.set_ylabel("in flight at most")
    for panel in (progress, counts, bounds):
        panel.set_ylim(bottom=0)
    bounds.set_xlabel("minutes")
    for panel in panels:
        panel.axvline(begins_seconds / SECONDS_PER_MINUTE, color="#6c757d", lw=0.8)
    return png(plt, figure)


def _draw_bounds(panel: Any, looks: Sequence[Look]) -> None:
    times = [one.at_seconds / SECONDS_PER_MINUTE for one in looks]
    for place, (name, color) in enumerate((("chat", "#1d3557"), ("job", "#f4a261"))):
        values = [math.nan if one.bounds[place] is None else one.bounds[place] for one in looks]
        panel.step(times, values, where="post", color=color, label=f"lane of {name}")
    panel.legend(frameon=False, loc="upper left", ncols=2)


def _ttft(one: ClientRecord) -> float:
    if one.ending is not Ending.FINISHED or one.ttft_seconds is None:
        return math.inf
    return one.ttft_seconds


def tpot_seconds(one: ClientRecord) -> float:
    """Mean time of an output token after the first; infinite without a whole answer."""
    if one.ending is not Ending.FINISHED or one.ttft_seconds is None:
        return math.inf
    return (one.seconds - one.ttft_seconds) / max(one.output_tokens - 1, 1)


_VALUES: Mapping[LatencyMetric, Callable[[ClientRecord], float]] = {
    LatencyMetric.TTFT: _ttft,
    LatencyMetric.TPOT: tpot_seconds,
}


def _within(records: Sequence[ClientRecord], objective: Objective) -> float:
    measure = _VALUES[objective.metric]
    good = sum(measure(one) <= objective.threshold_seconds for one in records)
    return good / len(records) if records else math.nan


def _held(objective: Objective, ratio: float) -> str:
    threshold = f"{objective.threshold_seconds:g} s"
    return f"{objective.metric.value} within {threshold} for {ratio:.2%} of requests"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    found = ordered[min(int(share * len(ordered)), len(ordered) - 1)]
    return found if math.isfinite(found) else math.nan


def _bins(values: Iterable[tuple[float, float]]) -> dict[float, list[float]]:
    """Values by the middle of their bin of time, in order."""
    found: dict[float, list[float]] = {}
    for at, value in sorted(values):
        found.setdefault((int(at / _BIN_SECONDS) + 0.5) * _BIN_SECONDS, []).append(value)
    return found
