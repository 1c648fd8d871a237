"""Which part of the latency grew since the objectives were last met.

While they are met, the mean of each part is remembered. While one is missed, the present means are
compared with those. Objectives are judged as clients see them, as far as the gateway shows: a
network that got slower is in no engine's histogram.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from servingslo.estimation.estimate import Estimate
from servingslo.features.latency_budget.report import LatencyReport, Part
from servingslo.models.objectives import LatencyMetric, Objective

# How far back the means reach that the present is compared with. Judgement: longer than a surge and
# its cold start, shorter than a change of the traffic over a day; measured by the parts that are
# named in a day of recorded traffic.
MEMORY_SECONDS = 1800.0
# After a longer gap nothing is known of the time between.
LONGEST_GAP_SECONDS = 300.0
# A part that grew by less is not named: Envoy's first bucket edges are 5 ms apart, and means over
# two minutes scatter by some percent. Judgement; measured by parts that are named without a cause.
LEAST_GROWN_SECONDS, LEAST_GROWN_RATIO = 0.010, 0.1
# More replicas change neither the way to them nor the way between them.
NOT_MENDED_BY_REPLICAS = frozenset({Part.GATEWAY, Part.TRANSFER})


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMemory:
    """The parts while the objectives were met.

    means_seconds: by part. seconds: over which they were observed, at most MEMORY_SECONDS.
    met_at_seconds: when the objectives were last met. missed: whether they are missed now.
    """

    means_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    met_at_seconds: float | None = None
    missed: bool = False


NO_MEMORY = LatencyMemory()


class Seen(NamedTuple):
    """An objective, what its percentile is at least, and the greatest share of requests within."""

    objective: Objective
    least_seconds: float | None
    share_high_ratio: float | None


def seen_by_engines(estimate: Estimate, objectives: Sequence[Objective]) -> list[Seen]:
    """Each objective as the engines observe it."""
    found = []
    for objective in objectives:
        share, observed = (
            estimate.observed_share(objective),
            estimate.observed.get(objective.metric),
        )
        seconds = None if observed is None else observed.least_quantile(objective.percentile)
        found.append(Seen(objective, seconds, None if share is None else share[1]))
    return found


def are_met(objectives: Sequence[Seen], report: LatencyReport) -> bool | None:
    """Whether no objective is missed, as clients see it; None if none was observed.

    A share that the buckets leave open is not a miss. The latency of whole requests is the
    gateway's where it is measured. For the time to first token the gateway's part comes on top: all
    of it is taken to lie before the first token.
    """
    known = [one for one in objectives if one.share_high_ratio is not None]
    if not known:
        return None
    return not any(
        (one.share_high_ratio or 0.0) < one.objective.percentile / 100.0
        or _missed_outside(one, report)
        for one in known
    )


def _missed_outside(seen: Seen, report: LatencyReport) -> bool:
    gateway, objective = report.of(Part.GATEWAY), seen.objective
    if gateway is None or gateway.mean_seconds is None:
        return False
    if objective.metric is LatencyMetric.LATENCY:
        whole = report.whole_least_seconds
        same = objective.percentile == report.percentile
        return report.by_gateway and same and whole is not None and _exceeds(whole, objective)
    if objective.metric is not LatencyMetric.TTFT or seen.least_seconds is None:
        return False
    return _exceeds(seen.least_seconds + gateway.mean_seconds, objective)


def _exceeds(least_seconds: float, objective: Objective) -> bool:
    """A percentile lies above the edge that it is at least."""
    return least_seconds >= objective.threshold_seconds


def remember(
    memory: LatencyMemory,
    report: LatencyReport,
    *,
    met: bool | None,
    elapsed_seconds: float,
    now_seconds: float,
) -> LatencyMemory:
    """The memory after a tick. met: None if nothing is known, which changes nothing."""
    if met is None:
        return memory
    if not met:
        return replace(memory, missed=True)
    elapsed = min(max(elapsed_seconds, 0.0), LONGEST_GAP_SECONDS)
    seconds = min(memory.seconds + elapsed, MEMORY_SECONDS)
    weight = elapsed / seconds if seconds > 0.0 else 1.0
    means = dict(memory.means_seconds)
    for one in report.parts:
        if one.mean_seconds is not None:
            before = means.get(one.part, one.mean_seconds)
            means[one.part.value] = before + weight * (one.mean_seconds - before)
    return LatencyMemory(
        means_seconds=means, seconds=seconds, met_at_seconds=now_seconds, missed=False
    )


def with_growth(report: LatencyReport, memory: LatencyMemory) -> LatencyReport:
    """The report with what each part grew by, while an objective is missed that was met before."""
    if not memory.missed or memory.met_at_seconds is None:
        return report
    parts = tuple(
        replace(one, grown_seconds=one.mean_seconds - memory.means_seconds[one.part])
        if one.mean_seconds is not None and one.part.value in memory.means_seconds
        else one
        for one in report.parts
    )
    least = max(LEAST_GROWN_SECONDS, LEAST_GROWN_RATIO * sum(memory.means_seconds.values()))
    grown = {one.part: one.grown_seconds for one in parts if (one.grown_seconds or 0.0) >= least}
    grew = max(grown, key=lambda part: grown[part] or 0.0, default=None)
    return replace(report, parts=parts, met_at_seconds=memory.met_at_seconds, grew=grew)
