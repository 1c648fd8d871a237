"""Staleness, the one home of it: what each pod's metrics are worth, and which engines may be used.

Whoever decides asks for the state of a pod; whoever learns takes the engines. Both go by the same
ages and the same grace of a new pod.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.pods.health import METRICS_MISSING, METRICS_STALE
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.reasons import Reason

# An age beyond which nothing is concluded from a sample, where a resource states none.
# Source: the default of spec.fallback.staleAfter, two minutes.
DEFAULT_STALE_AFTER_SECONDS = 120.0
# Three scrapes that are missed are no longer jitter. Prometheus scrapes every 15 s by default; what
# is scraped every second still waits for the tick.
MISSED_SCRAPES = 3.0
DEFAULT_SCRAPE_SECONDS = 15.0
SHORTEST_FRESH_SECONDS = 15.0
# A pod that became ready this recently may not have been scraped yet, at the least.
FIRST_SCRAPE_SECONDS = 45.0
# A distance of scrapes that grows is believed by so much more at each look.
SLOWER_RATIO = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMetrics:
    """What one pod's metrics are worth.

    state: METRICS_FRESH, METRICS_PARTIAL while they age, some of its engines lack them, or one of
    two gauges is no number, METRICS_STALE, METRICS_MISSING, METRICS_NOT_A_NUMBER or
    METRICS_IMPLAUSIBLE; None while a new pod may not have been scraped. age_seconds: of the oldest
    group that is there, histograms aside: they may be read less often. engines: those that may be
    used.
    """

    state: Reason | None
    age_seconds: float | None
    engines: tuple[EngineSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Which engines may be used, and for how many of the others they speak.

    coverage_ratio: share of the ready pods (those just started aside) with engines that may be
    used. unseen: the others, each with why. starting: Ready, and not scraped yet. engines: those
    that may be used, with their pods.
    """

    coverage_ratio: float
    unseen: tuple[tuple[str, str], ...]
    starting: tuple[PodSample, ...]
    engines: tuple[tuple[PodSample, EngineSample], ...]


def seen_scrape_seconds(
    before_seconds: float | None, window_seconds: Sequence[float]
) -> float | None:
    """How far apart scrapes are, as far as looks tell; None while two were never seen.

    window_seconds: between scrapes, of the windows of one look.
    """
    if not window_seconds:
        return before_seconds
    newest = min(window_seconds)
    return newest if before_seconds is None else min(newest, SLOWER_RATIO * before_seconds)


def fresh_seconds(scrape_seconds: float | None) -> float:
    """Up to which age a sample is the newest that there should be."""
    apart = DEFAULT_SCRAPE_SECONDS if scrape_seconds is None else scrape_seconds
    return max(MISSED_SCRAPES * apart, SHORTEST_FRESH_SECONDS)


def first_scrape_seconds(scrape_seconds: float | None) -> float:
    """For how long a pod that has become ready may not have been scraped."""
    return max(FIRST_SCRAPE_SECONDS, fresh_seconds(scrape_seconds))


def metrics_of(
    pod: PodSample, stale_after_seconds: float, scrape_seconds: float | None = None
) -> PodMetrics:
    """What this pod's metrics are worth.

    stale_after_seconds: an age beyond which nothing is concluded from them. scrape_seconds: how far
    apart scrapes are, None while that was not seen.
    """
    ages = [engine_age_seconds(engine) for engine in pod.engines]
    age = max((own for own in ages if own is not None), default=None)
    usable = tuple(
        engine
        for engine, own in zip(pod.engines, ages, strict=True)
        if not engine.impossible_metrics and own is not None and own <= stale_after_seconds
    )
    state = _state(pod, age, stale_after_seconds, scrape_seconds)
    return PodMetrics(state=state, age_seconds=age, engines=usable)


def _state(
    pod: PodSample, age: float | None, stale_after_seconds: float, scrape_seconds: float | None
) -> Reason | None:
    """Whether the gauges that decisions rest on are there, and as new as they should be."""
    if any(engine.impossible_metrics for engine in pod.engines):
        return Reason.METRICS_IMPLAUSIBLE
    with_gauges = [e for e in pod.engines if e.running is not None or e.waiting is not None]
    if not with_gauges:
        if any(engine.nan_metrics for engine in pod.engines):
            return Reason.METRICS_NOT_A_NUMBER
        return None if is_new(pod, scrape_seconds) else Reason.METRICS_MISSING
    half = [e for e in with_gauges if e.nan_metrics and (e.running is None or e.waiting is None)]
    if age is None or half or len(with_gauges) < len(pod.engines):
        return Reason.METRICS_PARTIAL
    if age > stale_after_seconds:
        return Reason.METRICS_STALE
    fresh = age <= fresh_seconds(scrape_seconds)
    return Reason.METRICS_FRESH if fresh else Reason.METRICS_PARTIAL


def is_new(pod: PodSample, scrape_seconds: float | None) -> bool:
    """Whether the pod may not have been scraped since it became ready."""
    ready_for = pod.ready_for_seconds
    return ready_for is not None and ready_for <= first_scrape_seconds(scrape_seconds)


def assess(
    pods: Sequence[PodSample], stale_after_seconds: float, scrape_seconds: float | None = None
) -> Freshness:
    """Which engines may be used, and for how many pods they speak."""
    used: list[tuple[PodSample, EngineSample]] = []
    unseen: list[tuple[str, str]] = []
    starting: list[PodSample] = []
    expected = 0
    for pod in pods:
        found = metrics_of(pod, stale_after_seconds, scrape_seconds)
        used += ((pod, engine) for engine in found.engines)
        if not pod.ready or pod.deleting:
            continue
        if not found.engines and is_new(pod, scrape_seconds):
            starting.append(pod)
            continue
        expected += 1
        if not found.engines:
            possible = (e for e in pod.engines if not e.impossible_metrics)
            old = any(engine_age_seconds(engine) is not None for engine in possible)
            unseen.append((pod.name, METRICS_STALE if old else METRICS_MISSING))
    seen = expected - len(unseen)
    return Freshness(
        coverage_ratio=seen / expected if expected else float(bool(used)),
        unseen=tuple(unseen),
        starting=tuple(starting),
        engines=tuple(used),
    )


def engine_age_seconds(engine: EngineSample) -> float | None:
    """Age of the older of gauges and counters; None where the engine carries no usable number."""
    has_gauges = engine.running is not None or engine.waiting is not None
    has_counters = engine.generation_tokens_total is not None or bool(engine.finished_total)
    if not has_gauges and not has_counters:
        return None
    ages = [
        age
        for age, present in (
            (engine.gauges_age_seconds, has_gauges),
            (engine.counters_age_seconds, has_counters),
        )
        if present and age is not None
    ]
    return max(ages) if ages else None
