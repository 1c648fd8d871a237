"""Requests and refusals that a gateway counted since its last scrapes, by instance and in sum.

Each instance has its own windows, between two of its own scrapes, as engines have. An instance seen
for the first time has no window yet: its counter may hold a day's requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from servingslo.estimation.sample import GatewayInstance, GatewaySample, HistogramSample
from servingslo.estimation.windows.counters import (
    LONGEST_WINDOW_SECONDS,
    SHORTEST_WINDOW_SECONDS,
)
from servingslo.estimation.windows.freshness import is_usable
from servingslo.estimation.windows.plausible import FEW_REQUESTS
from servingslo.estimation.windows.sample_pairs import increase
from servingslo.reasons import Reason
from servingslo.runtimes.gateways import CountedWhen


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFlow:
    """The last scrape of one instance, and its counts before that, per second over `seconds`.

    requests_per_second: None until two scrapes are known. queueing_per_second: growth of its queue.
    failed_per_second, aborted_per_second: ended without a whole answer; None if it does not count
    them. latency_before: the histogram at the scrape before the last one.
    """

    instance: GatewayInstance
    time_seconds: float
    requests_per_second: float | None = None
    rejected_per_second: float = 0.0
    queueing_per_second: float = 0.0
    seconds: float = 0.0
    failed_per_second: float | None = None
    aborted_per_second: float | None = None
    latency_before: HistogramSample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlow:
    """The gateway's counts, over all of its instances.

    requests_per_second: includes refused requests, excludes its own retries; None while unknown.
    queueing_per_second: growth of its queue. active: passed on and not answered yet; None if no
    instance exports it. seconds: of the longest window. is_new: a window ended at this tick.
    problem: GATEWAY_SILENT or GATEWAY_STALE if that is why the rate is unknown. failed_per_second:
    final answers of 5xx, those of refusing engines included. aborted_per_second: no whole answer,
    for another cause. Both None if no instance counts them. latencies: the histograms that bound
    each window that ended now.
    """

    counted: CountedWhen
    requests_per_second: float | None = None
    rejected_per_second: float = 0.0
    active: float | None = None
    queueing_per_second: float = 0.0
    seconds: float = 0.0
    is_new: bool = False
    problem: Reason | None = None
    failed_per_second: float | None = None
    aborted_per_second: float | None = None
    latencies: tuple[tuple[HistogramSample | None, HistogramSample], ...] = ()


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
        **_endings(instance, old, seconds),
        latency_before=old.latency_seconds,
    )


def _endings(
    after: GatewayInstance, before: GatewayInstance, seconds: float
) -> dict[str, float | None]:
    """Return the rates of requests that ended without a whole answer; nothing if not counted."""
    if after.errors_total is None:
        return {}
    failed, aborted = unanswered(
        failed=after.errors_total - (before.errors_total or 0.0),
        aborted=(after.aborted_total or 0.0) - (before.aborted_total or 0.0),
        cut=(after.cut_total or 0.0) - (before.cut_total or 0.0),
    )
    return {"failed_per_second": failed / seconds, "aborted_per_second": aborted / seconds}


def unanswered(*, failed: float, aborted: float, cut: float) -> tuple[float, float]:
    """Return failed and aborted requests, from increases; see `GatewayInstance`.

    An answer that the server broke off before its first byte is among the failed ones too, so those
    are taken for broken off first: the sum is a least one.
    """
    failed = max(failed, 0.0)
    return failed, max(aborted, 0.0) + max(cut - failed, 0.0)


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
    running = [f.instance.active for f in flows if f.instance.active is not None]
    active = sum(running) if running else None
    measured = [(f, f.requests_per_second) for f in flows if f.requests_per_second is not None]
    if not measured:
        return GatewayFlow(counted=counted, active=active)
    return GatewayFlow(
        counted=counted,
        # A draining queue is scraped apart from its counter, so only the sum is cut at zero.
        requests_per_second=max(sum(rate for _, rate in measured), 0.0),
        rejected_per_second=sum(flow.rejected_per_second for flow, _ in measured),
        active=active,
        queueing_per_second=sum(flow.queueing_per_second for flow, _ in measured),
        seconds=max(flow.seconds for flow, _ in measured),
        is_new=any(before.get(flow.instance.name) is not flow for flow, _ in measured),
        failed_per_second=total(flow.failed_per_second for flow, _ in measured),
        aborted_per_second=total(flow.aborted_per_second for flow, _ in measured),
        latencies=tuple(
            (flow.latency_before, flow.instance.latency_seconds)
            for flow, _ in measured
            if before.get(flow.instance.name) is not flow
            and flow.instance.latency_seconds is not None
        ),
    )


def total(rates: Iterable[float | None]) -> float | None:
    """Return the sum of the known rates; None if none is known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def queued_requests(sample: GatewaySample | None, stale_after_seconds: float) -> float:
    """Return the requests that wait at the gateway, from samples that are fresh enough."""
    through = () if sample is None else sample.all_instances
    return sum(
        instance.queued or 0.0
        for instance in through
        if is_usable(instance.age_seconds, stale_after_seconds)
    )
