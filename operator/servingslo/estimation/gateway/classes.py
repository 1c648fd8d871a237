"""Classes of requests at a gateway: each is a route with counters of its own.

Their sum is what the gateway counted. Demand is the part of the classes that order replicas; the
others only load the engines.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.gateway.counts import GatewayFlow, InstanceFlow, measure, total
from servingslo.estimation.sample import GatewayInstance, GatewaySample, HistogramSample
from servingslo.estimation.windows.endings import NOT_COUNTED, Endings
from servingslo.estimation.windows.freshness import is_usable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheddable:
    """Requests of the classes that order no replicas, as a part of all.

    offered_ratio: of all requests, refused ones included. held_ratio: of the requests in flight;
    None if the gateway does not export them. endings: those without a whole answer; None each if
    the gateway does not count them.
    """

    offered_ratio: float
    admitted_per_second: float
    rejected_per_second: float
    held_ratio: float | None = None
    endings: Endings = NOT_COUNTED


def whole_sample(classes: Iterable[GatewaySample]) -> GatewaySample:
    """The counters of all classes together, by instance."""
    by_name: dict[str, list[GatewayInstance]] = {}
    samples = tuple(classes)
    for instance in (one for sample in samples for one in sample.all_instances):
        by_name.setdefault(instance.name, []).append(instance)
    instances = tuple(_together(name, by_name[name]) for name in sorted(by_name))
    return replace(samples[0], instances=instances) if samples else GatewaySample()


def measure_classes(
    known: Mapping[str, tuple[InstanceFlow, ...]],
    samples: Mapping[str, GatewaySample],
    now_seconds: float,
    stale_after_seconds: float,
) -> tuple[dict[str, tuple[InstanceFlow, ...]], dict[str, GatewayFlow]]:
    """Return the instances' flows of each class after a sample, and their sums.

    An instance that exports a queue of some class has an empty one of a class without: Envoy
    exports none before the first request, and the first ones are among all that wait.
    """
    flows: dict[str, tuple[InstanceFlow, ...]] = {}
    counted: dict[str, GatewayFlow] = {}
    through = [one for sample in samples.values() for one in sample.all_instances]
    queueing = {one.name for one in through if one.queued is not None}
    for name, sample in samples.items():
        told = tuple(
            replace(one, queued=0.0) if one.queued is None and one.name in queueing else one
            for one in sample.instances
        )
        now, whole = measure(
            known.get(name, ()), replace(sample, instances=told), now_seconds, stale_after_seconds
        )
        flows[name] = now
        if whole is not None:
            counted[name] = whole
    return flows, counted


def last_sums(
    known: Mapping[str, tuple[float, GatewayFlow]],
    flows: Mapping[str, tuple[InstanceFlow, ...]],
    counted: Mapping[str, GatewayFlow],
    now_seconds: float,
    stale_after_seconds: float,
) -> dict[str, tuple[float, GatewayFlow]]:
    """Return the last sum of each class, and when it was scraped, as long as it is usable."""
    kept = {
        name: (at, replace(flow, is_new=False, latencies=()))
        for name, (at, flow) in known.items()
        if is_usable(now_seconds - at, stale_after_seconds)
    }
    return kept | {
        name: (max(one.time_seconds for one in flows[name]), flow)
        for name, flow in counted.items()
        if flow.problem is None
    }


def sheddable_part(flows: Mapping[str, GatewayFlow], names: frozenset[str]) -> Sheddable | None:
    """The part of these classes; None while not all classes are measured."""
    rates = {name: flow.requests_per_second for name, flow in flows.items()}
    offered = sum(rate for rate in rates.values() if rate is not None)
    if not flows or None in rates.values() or not offered:
        return None
    shed = [flow for name, flow in flows.items() if name in names]
    rejected = sum(flow.rejected_per_second for flow in shed)
    queueing = sum(flow.queueing_per_second for flow in shed)
    own = sum(flow.requests_per_second or 0.0 for flow in shed)
    held = {name: flow.active for name, flow in flows.items()}
    all_held = sum(count for count in held.values() if count is not None)
    ratio = None
    if None not in held.values() and all_held:
        ratio = sum(held[name] or 0.0 for name in names & held.keys()) / all_held
    return Sheddable(
        offered_ratio=own / offered,
        admitted_per_second=max(own - rejected - queueing, 0.0),
        rejected_per_second=rejected,
        held_ratio=ratio,
        endings=Endings(
            total(flow.failed_per_second for flow in shed),
            total(flow.aborted_per_second for flow in shed),
        ),
    )


def begins(flows: Mapping[str, GatewayFlow]) -> bool:
    """Whether the gateway counts some class but has no window of it yet."""
    return any(flow.requests_per_second is None and not flow.problem for flow in flows.values())


def _together(name: str, parts: Sequence[GatewayInstance]) -> GatewayInstance:
    """One instance's counts of all classes. A class without a counter has had no such request."""
    ages = [one.age_seconds for one in parts if one.age_seconds is not None]
    return GatewayInstance(
        name=name,
        age_seconds=max(ages) if ages else None,
        requests_total=total(one.requests_total for one in parts),
        rejected_total=total(one.rejected_total for one in parts),
        retried_total=total(one.retried_total for one in parts),
        queued=total(one.queued for one in parts),
        active=total(one.active for one in parts),
        errors_total=total(one.errors_total for one in parts),
        aborted_total=total(one.aborted_total for one in parts),
        cut_total=total(one.cut_total for one in parts),
        latency_seconds=_histogram(one.latency_seconds for one in parts),
    )


def _histogram(parts: Iterable[HistogramSample | None]) -> HistogramSample | None:
    """All histograms bucket by bucket; None without one, or if bounds differ."""
    known = [one for one in parts if one is not None]
    if len({one.upper_bounds for one in known}) != 1:
        return None
    counts = zip(*(one.cumulative_counts for one in known), strict=True)
    return HistogramSample(
        upper_bounds=known[0].upper_bounds,
        cumulative_counts=tuple(map(sum, counts)),
        sum=sum(one.sum for one in known),
        count=sum(one.count for one in known),
    )
