"""Pods that are Ready but provide no capacity, and the saturation of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.requests.in_flight import InFlightGrowth, growth_of
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows.counters import Window

# Two windows in a row: one alone may be a long prefill or a scrape at the wrong moment.
# Judgement; measured by the fault rows of `tests/chaos`: failed pods found, and healthy ones
# accused.
SUSPICIOUS_WINDOWS = 2
# Requests that a pod's fair share of traffic would have brought before silence is proof: Poisson
# gives e^−20 for receiving none by chance.
EXPECTED_REQUESTS = 20.0
# A pod's endpoint needs time to reach every client before silence counts.
# Judgement; measured by the time from readiness to the first request on a real cluster.
ENDPOINT_GRACE_SECONDS = 60.0
# XID errors after which the driver or the card needs a reset (NVIDIA XID catalogue): double-bit
# ECC, micro-controller halt, ECC page retirement, NVLink, fallen off the bus, contained and
# uncontained ECC, GSP timeouts. Other errors are raised by applications and end with them.
FATAL_XID_ERRORS = frozenset({48, 62, 64, 74, 79, 94, 95, 119, 120})

SERVING_NOTHING = "serving-nothing"
ZERO_THROUGHPUT = "zero-throughput"
RECEIVING_NOTHING = "receiving-nothing"
XID_ERROR = "xid-error"
ASLEEP, PARTLY_ASLEEP = "asleep", "partly-asleep"

# Waiting is sustained if requests wait in half of the windows of a minute, at 15 s.
WAITING_MEMORY_WINDOWS = 4.0
SUSTAINED_WAITING_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """Suspicious signs of a pod: windows in a row, and the traffic that it should have received."""

    pod: str
    serving_nothing: int = 0
    zero_throughput: int = 0
    missed_requests: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthState:
    """Records of the pods, and how often requests waited."""

    records: tuple[PodRecord, ...] = ()
    waiting_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationSignal:
    """Measured saturation, used when no law is trusted.

    waiting_sustained: requests waited at both ends of at least half of the recent windows.
    kv_usage_ratio: mean over engines. preemptions_per_second: over the fleet.
    """

    waiting_sustained: bool = False
    kv_usage_ratio: float | None = None
    preemptions_per_second: float = 0.0
    growth: InFlightGrowth | None = None


def observe(
    state: HealthState,
    pods: Sequence[PodSample],
    windows: Sequence[Window],
    fair_share_per_second: float,
) -> HealthState:
    """State with one tick's windows; fair_share_per_second: arrivals per reliable pod."""
    by_pod: dict[str, list[Window]] = {}
    for window in windows:
        by_pod.setdefault(window.pod, []).append(window)
    old = {r.pod: r for r in state.records}
    records = tuple(
        _record(
            old.get(pod.name) or PodRecord(pod=pod.name),
            pod,
            by_pod.get(pod.name, ()),
            fair_share_per_second,
        )
        for pod in pods
        if pod.ready and not pod.deleting
    )
    asleep = {(pod.name, engine.engine) for pod in pods for engine in pod.engines if engine.asleep}
    awake = [w for w in windows if (w.pod, w.engine) not in asleep]
    waiting = sum((w.waiting_after or 0.0) > 0 and (w.waiting_before or 0.0) > 0 for w in awake)
    share = state.waiting_share
    if awake:
        share += (waiting / len(awake) - share) / WAITING_MEMORY_WINDOWS
    return HealthState(records=records, waiting_share=share)


def _record(
    record: PodRecord, pod: PodSample, windows: Sequence[Window], fair_share: float
) -> PodRecord:
    if not windows:
        return record
    tokens = sum([(w.generated_tokens or 0.0) + (w.prompt_tokens or 0.0) for w in windows])
    first = sum([_answered(w) for w in windows])
    if not (tokens <= 0 and first <= 0):
        signs = record.serving_nothing or record.zero_throughput or record.missed_requests
        return PodRecord(pod=record.pod) if signs else record
    waiting = all((w.waiting_before or 0.0) > 0 and (w.waiting_after or 0.0) > 0 for w in windows)
    running = all((w.running_before or 0.0) > 0 and (w.running_after or 0.0) > 0 for w in windows)
    untouched = not any((w.running_after or 0.0) + (w.waiting_after or 0.0) for w in windows)
    settled = (pod.ready_for_seconds or 0.0) > ENDPOINT_GRACE_SECONDS
    missed = record.missed_requests + fair_share * max(w.seconds for w in windows)
    return replace(
        record,
        serving_nothing=record.serving_nothing + 1 if waiting else 0,
        zero_throughput=record.zero_throughput + 1 if running else 0,
        missed_requests=missed if untouched and settled else 0.0,
    )


def _answered(window: Window) -> float:
    """Requests with a first token; of engines without any, those that ended with an answer."""
    if window.first_tokens is not None:
        return window.first_tokens
    return (window.finished or 0.0) - (window.aborted or 0.0)


def unreliable(
    state: HealthState, pods: Sequence[PodSample], unseen: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return Ready pods that provide no capacity, each with the reason.

    unseen: pods without fresh metrics, and why.
    """
    records = {r.pod: r for r in state.records}
    found = []
    for pod in pods:
        if not pod.ready or pod.deleting:
            continue
        why = unseen.get(pod.name) or _why(pod, records.get(pod.name))
        if why is not None:
            found.append((pod.name, why))
    return tuple(found)


def _why(pod: PodSample, record: PodRecord | None) -> str | None:
    if sleeping := [engine.engine for engine in pod.engines if engine.asleep]:
        whole = len(sleeping) == len(pod.engines)
        return ASLEEP if whole else f"{PARTLY_ASLEEP}: engine {', '.join(sleeping)}"
    fatal = next((g.xid_error for g in pod.gpus if g.xid_error in FATAL_XID_ERRORS), None)
    if fatal is not None:
        return f"{XID_ERROR}-{fatal}"
    if record is None:
        return None
    if record.serving_nothing >= SUSPICIOUS_WINDOWS:
        return SERVING_NOTHING
    if record.zero_throughput >= SUSPICIOUS_WINDOWS:
        return ZERO_THROUGHPUT
    return RECEIVING_NOTHING if record.missed_requests >= EXPECTED_REQUESTS else None


def saturation(
    state: HealthState, engines: Sequence[EngineSample], windows: Sequence[Window]
) -> SaturationSignal:
    """Return the saturation of the reliable pods' engines."""
    usage = [e.kv_usage_ratio for e in engines if e.kv_usage_ratio is not None]
    return SaturationSignal(
        waiting_sustained=state.waiting_share >= SUSTAINED_WAITING_RATIO,
        kv_usage_ratio=sum(usage) / len(usage) if usage else None,
        preemptions_per_second=sum((w.preempted or 0.0) / w.seconds for w in windows),
        growth=growth_of(windows, engines=len(engines)),
    )
