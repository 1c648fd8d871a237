"""What the gateway counts of a fallback: requests sent there, refusals, and how long answers took.

Only the gateway is asked: the fallback may be of another owner, kind or region. Each proxy has its
own windows, between two of its own scrapes.
"""

from dataclasses import dataclass

from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.estimation.windows.counters import (
    LONGEST_WINDOW_SECONDS,
    SHORTEST_WINDOW_SECONDS,
)
from servingslo.estimation.windows.freshness import is_usable
from servingslo.estimation.windows.sample_pairs import increase
from servingslo.units import seconds_from_milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackWindow:
    """The last scrape of one proxy, and its counts since the one before, per second.

    began_seconds: start of that window, None until two scrapes are known. refused_at_gateway: of
    those refused, the ones that the gateway refused itself. ended_milliseconds: time of the answers
    that ended in a second.
    """

    instance: GatewayInstance
    time_seconds: float
    began_seconds: float | None = None
    requests_per_second: float = 0.0
    refused_per_second: float = 0.0
    refused_at_gateway_per_second: float = 0.0
    ended_per_second: float = 0.0
    ended_milliseconds_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackUse:
    """The fallback's counts, over all proxies.

    requests_per_second: sent there, refused ones included. refused_per_second: by the gateway in
    front of it, and answered with 5xx or 429; refused_at_gateway_per_second: the former alone.
    mean_seconds: of the answers that ended; None without any. requests: of the windows together.
    began_seconds: when the earliest window began.
    """

    requests_per_second: float
    refused_per_second: float
    refused_at_gateway_per_second: float
    mean_seconds: float | None
    requests: float
    began_seconds: float

    @property
    def refused_ratio(self) -> float:
        """Share of the requests sent there that were refused."""
        sent = self.requests_per_second
        return min(self.refused_per_second / sent, 1.0) if sent > 0.0 else 0.0

    @property
    def served_per_second(self) -> float:
        """Requests that the fallback took."""
        return max(self.requests_per_second - self.refused_per_second, 0.0)

    @property
    def passed_on_per_second(self) -> float:
        """Requests that left the gateway for it."""
        return max(self.requests_per_second - self.refused_at_gateway_per_second, 0.0)


def measure_fallback(
    windows: tuple[FallbackWindow, ...],
    sample: GatewaySample | None,
    now_seconds: float,
    stale_after_seconds: float,
) -> tuple[tuple[FallbackWindow, ...], FallbackUse | None]:
    """Return the windows after a sample, and their sum; None while nothing is known."""
    if sample is None:
        return (), None
    known = {window.instance.name: window for window in windows}
    now = tuple(
        _advance(known.get(one.name), one, now_seconds - (one.age_seconds or 0.0))
        for one in sample.all_instances
        if one.requests_total is not None and is_usable(one.age_seconds, stale_after_seconds)
    )
    measured = [(w, w.began_seconds) for w in now if w.began_seconds is not None]
    if not measured:
        return now, None
    ended = sum(w.ended_per_second for w, _ in measured)
    milliseconds = sum(w.ended_milliseconds_per_second for w, _ in measured)
    return now, FallbackUse(
        requests_per_second=sum(w.requests_per_second for w, _ in measured),
        refused_per_second=sum(w.refused_per_second for w, _ in measured),
        refused_at_gateway_per_second=sum(w.refused_at_gateway_per_second for w, _ in measured),
        mean_seconds=seconds_from_milliseconds(milliseconds / ended) if ended > 0.0 else None,
        requests=sum(w.requests_per_second * (w.time_seconds - began) for w, began in measured),
        began_seconds=min(began for _, began in measured),
    )


def _advance(
    before: FallbackWindow | None, instance: GatewayInstance, time_seconds: float
) -> FallbackWindow:
    if before is not None and time_seconds - before.time_seconds < SHORTEST_WINDOW_SECONDS:
        return before
    first = FallbackWindow(instance=instance, time_seconds=time_seconds)
    if before is None or time_seconds - before.time_seconds > LONGEST_WINDOW_SECONDS:
        return first
    seconds, old = time_seconds - before.time_seconds, before.instance
    requests = increase(instance.requests_total, old.requests_total)
    if requests is None:
        return first
    at_gateway = _since(instance.rejected_total, old.rejected_total)
    # What the gateway refuses itself is among its answers with 5xx.
    refused = max(_since(instance.failed_total, old.failed_total), at_gateway)
    milliseconds = _since(instance.ended_milliseconds_total, old.ended_milliseconds_total)
    return FallbackWindow(
        instance=instance,
        time_seconds=time_seconds,
        began_seconds=before.time_seconds,
        requests_per_second=max(requests - _since(instance.retried_total, old.retried_total), 0.0)
        / seconds,
        refused_per_second=refused / seconds,
        refused_at_gateway_per_second=at_gateway / seconds,
        ended_per_second=_since(instance.ended_total, old.ended_total) / seconds,
        ended_milliseconds_per_second=milliseconds / seconds,
    )


def _since(after: float | None, before: float | None) -> float:
    """Return the increase of a secondary counter; it often appears with its first event."""
    return increase(after, 0.0 if before is None else before) or 0.0
