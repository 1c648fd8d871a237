"""Where the time of a request goes that passes several pools.

A prefill and a decode pool each have a queue and an engine of their own; the means of what every
request passes are added up, percentiles are not. Combined pools serve the same requests: what they
observe is pooled. The gateway and the network are what the gateway's time leaves over.
"""

from collections.abc import Mapping
from dataclasses import replace

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.requests.histograms import HistogramDelta, merge
from servingslo.estimation.requests.observed import GATEWAY
from servingslo.features.latency_budget.growth import (
    NO_MEMORY,
    LatencyMemory,
    Seen,
    are_met,
    remember,
    seen_by_engines,
    with_growth,
)
from servingslo.features.latency_budget.insight import MEMORY
from servingslo.features.latency_budget.parts import gateway_part, gateway_times, latency_report
from servingslo.features.latency_budget.report import (
    LATENCY,
    LatencyReport,
    Part,
    PartReport,
    PartSource,
)
from servingslo.policy.planner import Seen as SeenPool
from servingslo.policy.pools.admission import writing_pool
from servingslo.policy.pools.decision import PathUse
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.insights import FleetInsight, FleetTick

_SUMMED = (Part.QUEUE, Part.PREFILL, Part.OTHER)
_NOT_EXPORTED = "the engines of a pool do not export it"


class FleetLatency(FleetInsight):
    """Where the time of a request goes over all pools."""

    def whole(
        self, tick: FleetTick, memories: Mapping[str, object]
    ) -> tuple[LatencyReport | None, LatencyMemory]:
        """The parts over all pools with what grew, and the memory; None if none was observed."""
        memory = MEMORY.of(memories) or NO_MEMORY
        stated = tick.targets.pools[0].targets.objectives
        if tick.path is None:
            estimate = _pooled(tick.targets, tick.seen)
            report, judged = latency_report(estimate, stated), seen_by_engines(estimate, stated)
        else:
            report = _along_path(tick.targets, tick.seen, tick.path)
            told = {(one.metric, one.percentile): one for one in tick.objectives}
            judged = [
                Seen(objective, one.least_seconds, one.share_high_ratio)
                for objective in stated
                if (one := told.get((objective.metric.value, objective.percentile))) is not None
            ]
        if report is None:
            return None, memory
        before = memory.met_at_seconds
        memory = remember(
            memory,
            report,
            met=are_met(judged, report),
            elapsed_seconds=0.0 if before is None else tick.now_seconds - before,
            now_seconds=tick.now_seconds,
        )
        return with_growth(report, memory), memory

    def of_writer(
        self, reports: Mapping[str, object], whole: Mapping[str, object]
    ) -> LatencyReport | None:
        """With the gateway's part, which is known of all pools together alone."""
        own, told = LATENCY.of(reports), LATENCY.of(whole)
        gateway = None if told is None else told.of(Part.GATEWAY)
        if own is None or gateway is None:
            return own
        return replace(own, parts=(gateway, *own.parts))


def _pooled(targets: FleetTargets, seen: Mapping[str, SeenPool]) -> Estimate:
    """The estimate of the pool that the route is read for, with what all pools observed."""
    every = [one.context.estimate for one in seen.values()]
    route = seen[writing_pool(targets)].context.estimate
    phases = _merged([one.phases for one in every])
    phases.pop(GATEWAY, None)
    if GATEWAY in route.phases:
        phases[GATEWAY] = route.phases[GATEWAY]
    return replace(
        route,
        observed=_merged([one.observed for one in every]),
        means=_merged([one.means for one in every]),
        phases=phases,
    )


def _merged(each: list[Mapping[str, HistogramDelta]]) -> dict[str, HistogramDelta]:
    names = dict.fromkeys(name for one in each for name in one)
    found = {name: merge([one[name] for one in each if name in one]) for name in names}
    return {name: delta for name, delta in found.items() if delta is not None}


def _along_path(
    targets: FleetTargets, seen: Mapping[str, SeenPool], path: PathUse
) -> LatencyReport | None:
    """Means of both pools, weighed by the share of requests that pass the first."""
    first, last = (seen[pool.name].context.estimate for pool in targets.path)
    stated = targets.pools[0].targets.objectives
    before, after = (latency_report(one, stated, alone=False) for one in (first, last))
    if before is None or after is None:
        return None
    through = path.through_ratio
    parts = {part: _sum(part, before.of(part), after.of(part), through) for part in _SUMMED}
    # Decode has a request from the beginning of its transfer on. A measured one was taken out.
    if last.transfer_mean_seconds is None and (queue := parts[Part.QUEUE].mean_seconds) is not None:
        waited = max(queue - through * path.transfer_seconds, 0.0)
        parts[Part.QUEUE] = replace(parts[Part.QUEUE], mean_seconds=waited)
    transfer = PartReport(
        part=Part.TRANSFER,
        source=PartSource(path.transfer_source),
        mean_seconds=through * path.transfer_seconds,
    )
    decode = after.of(Part.DECODE) or _missing(Part.DECODE)
    engines = _whole_seconds(before, after, through)
    gateway = gateway_part(last, engines)
    times = gateway_times(last)
    moved = 0.0 if last.transfer_mean_seconds is None else through * last.transfer_mean_seconds
    return LatencyReport(
        percentile=after.percentile,
        parts=(
            gateway,
            parts[Part.QUEUE],
            parts[Part.PREFILL],
            transfer,
            decode,
            parts[Part.OTHER],
        ),
        whole_mean_seconds=(None if engines is None else engines + moved)
        if times is None
        else times.mean,
        whole_percentile_seconds=None if times is None else times.quantile(after.percentile),
        whole_least_seconds=None if times is None else times.least_quantile(after.percentile),
        by_gateway=times is not None,
    )


def _whole_seconds(before: LatencyReport, after: LatencyReport, through: float) -> float | None:
    first, last = before.whole_mean_seconds, after.whole_mean_seconds
    return None if first is None or last is None else through * first + last


def _sum(
    part: Part, before: PartReport | None, after: PartReport | None, through: float
) -> PartReport:
    first = None if before is None else before.mean_seconds
    last = None if after is None else after.mean_seconds
    if first is None or last is None:
        return _missing(part)
    return PartReport(part=part, source=PartSource.DERIVED, mean_seconds=through * first + last)


def _missing(part: Part) -> PartReport:
    return PartReport(part=part, source=PartSource.NOT_MEASURED, missing=_NOT_EXPORTED)


PART = FleetLatency(LATENCY)
