"""Requests and refusals that a gateway counted since its last scrapes, by instance and in sum.

Each instance has its own windows, between two of its own scrapes, as engines have. An instance seen
for the first time has no window yet: its counter may hold a day's requests.
"""

from dataclasses import dataclass

from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.estimation.windows.counters import (
    LONGEST_WINDOW_SECONDS,
    SHORTEST_WINDOW_SECONDS,
    increase,
)
from servingslo.estimation.windows.freshness import is_usable
from servingslo.estimation.windows.plausible import FEW_REQUESTS
from servingslo.reasons import Reason
from servingslo.runtimes.gateways import CountedWhen


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFlow:
    """The last scrape of one instance, and its counts before that, per second over `seconds`.

    requests_per_second: None until two scrapes are known. queueing_per_second: growth of its queue.
    """

    instance: GatewayInstance
    time_seconds: float
    requests_per_second: float | None = None
    rejected_per_second: float = 0.0
    queueing_per_second: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlow:
    """The gateway's counts, over all of its instances.

    requests_per_second: includes refused requests, excludes its own retries; None while unknown.
    queued: waiting there; None if no instance exports it. queueing_per_second: growth of that
    queue.
    seconds: of the longest window. is_new: a window ended at this tick. problem: GATEWAY_SILENT or
    GATEWAY_STALE if that is why the rate is unknown.
    """

    counted: CountedWhen
    requests_per_second: float | None = None
    rejected_per_second: float = 0.0
    queued: float | None = None
    queueing_per_second: float = 0.0
    seconds: float = 0.0
    is_new: bool = False
    problem: Reason | None = None


def measure(
    flows: tuple[InstanceFlow, ...],
    sample: GatewaySample | None,
    now_seconds: float,
    stale_after_seconds: float,
) -> tuple[tuple[InstanceFlow, ...], GatewayFlow | None]:
    """Return the instances' flows after a sample, and their sum; None if no gateway is read."""
    if sample is None:
        return (), None
    known = {flow.instance.name: flow for flow in flows}
    counting = [i for i in sample.all_instances if i.requests_total is not None]
    fresh = [i for i in counting if is_usable(i.age_seconds, stale_after_seconds)]
    now = tuple(
        _advance(known.get(i.name), i, now_seconds - _age_seconds(i), sample.counted) for i in fresh
    )
    return now, _sum(sample.counted, now, known, stale=bool(counting))


def _age_seconds(instance: GatewayInstance) -> float:
    """Return the age; an unknown age is older than any bound."""
    return float("inf") if instance.age_seconds is None else instance.age_seconds


def _advance(
    before: InstanceFlow | None,
    instance: GatewayInstance,
    time_seconds: float,
    counted: CountedWhen,
) -> InstanceFlow:
    if before is not None and time_seconds - before.time_seconds < SHORTEST_WINDOW_SECONDS:
        return before
    first = InstanceFlow(instance=instance, time_seconds=time_seconds)
    if before is None:
        return first
    seconds, old = time_seconds - before.time_seconds, before.instance
    requests = increase(instance.requests_total, old.requests_total)
    if requests is None or seconds > LONGEST_WINDOW_SECONDS or _fell(old, instance):
        return first
    requests -= _since(instance.retried_total, old.retried_total)
    queueing = 0.0
    if counted is CountedWhen.PASSED_ON and None not in {instance.queued, old.queued}:
        queueing = (instance.queued or 0.0) - (old.queued or 0.0)
        requests += queueing
    return InstanceFlow(
        instance=instance,
        time_seconds=time_seconds,
        requests_per_second=requests / seconds,
        rejected_per_second=_since(instance.rejected_total, old.rejected_total) / seconds,
        queueing_per_second=queueing / seconds,
        seconds=seconds,
    )


def _fell(before: GatewayInstance, after: GatewayInstance) -> bool:
    """Whether the count fell, and is too high for an instance that restarted meanwhile."""
    old, new = before.requests_total, after.requests_total
    return old is not None and new is not None and FEW_REQUESTS < new < old


def _since(after: float | None, before: float | None) -> float:
    """Return the increase of a secondary counter; it often appears with its first event."""
    return increase(after, 0.0 if before is None else before) or 0.0


def _sum(
    counted: CountedWhen,
    flows: tuple[InstanceFlow, ...],
    before: dict[str, InstanceFlow],
    *,
    stale: bool,
) -> GatewayFlow:
    if not flows:
        problem = Reason.GATEWAY_STALE if stale else Reason.GATEWAY_SILENT
        return GatewayFlow(counted=counted, problem=problem)
    queues = [f.instance.queued for f in flows if f.instance.queued is not None]
    queued = sum(queues) if queues else None
    measured = [(f, f.requests_per_second) for f in flows if f.requests_per_second is not None]
    if not measured:
        return GatewayFlow(counted=counted, queued=queued)
    return GatewayFlow(
        counted=counted,
        # A draining queue is scraped apart from its counter, so only the sum is cut at zero.
        requests_per_second=max(sum(rate for _, rate in measured), 0.0),
        rejected_per_second=sum(flow.rejected_per_second for flow, _ in measured),
        queued=queued,
        queueing_per_second=sum(flow.queueing_per_second for flow, _ in measured),
        seconds=max(flow.seconds for flow, _ in measured),
        is_new=any(before.get(flow.instance.name) is not flow for flow, _ in measured),
    )


def queued_requests(sample: GatewaySample | None, stale_after_seconds: float) -> float:
    """Return the requests that wait at the gateway, from samples that are fresh enough."""
    through = () if sample is None else sample.all_instances
    return sum(
        instance.queued or 0.0
        for instance in through
        if is_usable(instance.age_seconds, stale_after_seconds)
    )
