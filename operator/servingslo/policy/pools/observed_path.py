"""Objectives that requests collect in both pools, as observed: the sum of what each pool reports.

No page has the time of a whole path. The waits of both pools are independent given the rate, so its
distribution is the convolution of the two pools' histograms, moved by the transfer. Percentiles are
never added.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from servingslo.estimation.requests.histograms import POINTS_OF_BUCKET, HistogramDelta
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.models.objectives import Objective
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ObjectiveReport
from servingslo.policy.planner import Seen
from servingslo.policy.pools.decision import PathUse
from servingslo.policy.pools.inputs import FleetTargets

_INFINITE = float("inf")
# Every value of a bucket at its lower edge: what a sum is at least.
_LOWER_EDGE = (0.0,)


def path_objectives(
    targets: FleetTargets,
    seen: Mapping[str, Seen],
    decisions: Mapping[str, Decision],
    path: PathUse | None,
) -> tuple[ObjectiveReport, ...]:
    """The report on each objective of the whole resource, with its whole threshold.

    Time per output token is decode's alone. The model predicts each pool, not the sum. Without a
    path there is none.
    """
    if path is None:
        return ()
    prefill, decode = (pool.name for pool in targets.path)
    found = []
    for objective in targets.pools[0].targets.objectives:
        reports = [_report_of(decisions[name], objective) for name in (prefill, decode)]
        known = [one for one in reports if one is not None]
        if not known:
            continue
        if not ROW_OF[objective.metric].along_path:
            found.append(known[-1])
            continue
        first, second = (
            seen[name].context.estimate.observed.get(objective.metric) for name in (prefill, decode)
        )
        # Decode has a request from the beginning of its transfer on: what it observes contains the
        # transfer, unless it measures the transfer, which is then taken out.
        measured = seen[decode].context.estimate.transfer_mean_seconds or 0.0
        transfer = 0.0 if ROW_OF[objective.metric].only_waits else measured
        found.append(_whole(known, objective, first, second, transfer, path.through_ratio))
    return tuple(found)


def share_of_sum(
    first: HistogramDelta, second: HistogramDelta, moved_seconds: float, threshold_seconds: float
) -> tuple[float, float]:
    """Share of sums of one value of each, moved, within the threshold, as an interval (low, high).

    Shares between 0 and 1: all values of a bucket at its upper edge, or at its lower edge.
    """
    left = threshold_seconds - moved_seconds
    low = high = 0.0
    for lower, upper, share in _buckets(first):
        for other_lower, other_upper, other_share in _buckets(second):
            both = share * other_share
            low += both * (upper + other_upper <= left)
            high += both * (lower + other_lower < left)
    return min(low, 1.0), min(max(high, low), 1.0)


def quantile_of_sum(
    first: HistogramDelta,
    second: HistogramDelta,
    moved_seconds: float,
    percentile: float,
    places: Sequence[float] = POINTS_OF_BUCKET,
    through_ratio: float = 1.0,
) -> float:
    """A percentile of that sum, in seconds; percentile in percent.

    places: where the values of a bucket lie in it, 0 at its lower edge; evenly if not stated. Those
    of an open bucket lie at its lower edge. through_ratio: of requests that pass the first pool.
    """
    last = list(_points(second, places))
    sums = [
        (value + other + moved_seconds, through_ratio * share * other_share)
        for value, share in _points(first, places)
        for other, other_share in last
    ]
    sums = sorted(sums + [(other, (1.0 - through_ratio) * share) for other, share in last])
    wanted, reached = percentile / 100.0, 0.0
    for value, share in sums:
        reached += share
        if reached >= wanted:
            return value
    return sums[-1][0]


def _whole(
    reports: list[ObjectiveReport],
    objective: Objective,
    first: HistogramDelta | None,
    second: HistogramDelta | None,
    moved_seconds: float,
    through_ratio: float,
) -> ObjectiveReport:
    """The report on an objective of both pools; reports: of the pools."""
    threshold = objective.threshold_seconds
    base = replace(
        reports[-1],
        threshold_seconds=threshold,
        predicted_seconds=None,
        calibration_ratio=None,
        observed_seconds=None,
        least_seconds=None,
        share_low_ratio=None,
        share_high_ratio=None,
        missing=next((one.missing for one in reports if one.missing), ""),
        unobserved=True if any(one.unobserved for one in reports) else None,
    )
    if first is None or second is None or min(first.count, second.count) <= 0:
        return base
    low, high = share_of_sum(first, second, moved_seconds, threshold)
    direct = second.share_within(threshold) or (low, high)

    def quantile(places: Sequence[float]) -> float:
        percentile = objective.percentile
        return quantile_of_sum(first, second, moved_seconds, percentile, places, through_ratio)

    return replace(
        base,
        observed_seconds=quantile(POINTS_OF_BUCKET),
        least_seconds=quantile(_LOWER_EDGE),
        share_low_ratio=through_ratio * low + (1.0 - through_ratio) * direct[0],
        share_high_ratio=through_ratio * high + (1.0 - through_ratio) * direct[1],
    )


def _report_of(decision: Decision, objective: Objective) -> ObjectiveReport | None:
    """A pool's report on an objective, which has its part of the threshold."""
    wanted = (objective.metric.value, objective.percentile)
    return next(
        (one for one in decision.objectives if (one.metric, one.percentile) == wanted), None
    )


def _buckets(delta: HistogramDelta) -> Iterator[tuple[float, float, float]]:
    """Lower edge, upper edge and share of each bucket with observations."""
    count, lower = delta.count, 0.0
    for upper, inside in zip((*delta.upper_bounds, _INFINITE), delta.counts, strict=True):
        if inside > 0:
            yield lower, upper, inside / count
        lower = upper


def _points(delta: HistogramDelta, places: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Values that stand for a bucket, and the share of each."""
    for lower, upper, share in _buckets(delta):
        if upper == _INFINITE:
            yield lower, share
            continue
        for place in places:
            yield lower + place * (upper - lower), share / len(places)
