"""Freshness of metrics: the state of each pod's metrics, and which engines may be used.

The only place that decides staleness. Policy asks for the state of a pod, estimators take the
engines, gateways ask for one instance. All use the same ages and the same grace for a new pod.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows.families import not_numbers
from servingslo.reasons import Reason
from servingslo.records import record

# Why a pod's metrics are not used, as named in an estimate.
METRICS_MISSING = "metrics-missing"
METRICS_STALE = "metrics-stale"

# Samples older than this are not used, if the resource states no age.
# Source: the default of spec.fallback.staleAfter, two minutes.
DEFAULT_STALE_AFTER_SECONDS = 120.0
# Three missed scrapes are more than jitter. Prometheus scrapes every 15 s by default. Metrics
# scraped every second are still read only at the next tick.
MISSED_SCRAPES = 3.0
DEFAULT_SCRAPE_SECONDS = 15.0
SHORTEST_FRESH_SECONDS = 15.0
# Shortest time after readiness in which a pod may not have been scraped yet.
# Judgement; measured by the time from readiness to the first scrape on a real Prometheus.
FIRST_SCRAPE_SECONDS = 45.0
# If the scrape interval grows, the known interval grows by at most this factor per tick; the known
# delay of a store by at most so much.
# Judgement: while a store catches up after an outage, its samples are older only for a few ticks.
SLOWER_RATIO = 1.1
LATER_SECONDS = 5.0


@record(frozen=True, slots=True, kw_only=True)
class PodMetrics:
    """The state of one pod's metrics.

    state: METRICS_FRESH; METRICS_PARTIAL while they age, if some of its engines lack them, or if
    one of two gauges is not a number; METRICS_STALE, METRICS_MISSING, METRICS_NOT_A_NUMBER or
    METRICS_IMPLAUSIBLE; None while a new pod may not have been scraped. age_seconds: of the oldest
    group present, without histograms, which may be read less often. engines: those that may be
    used.
    """

    state: Reason | None
    age_seconds: float | None
    engines: tuple[EngineSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Which engines may be used, and the share of pods that they represent.

    coverage_ratio: share of the ready pods (without those that just started) with usable engines.
    unseen: the other ready pods, each with the reason. starting: Ready, and not scraped yet.
    engines: usable ones, with their pods.
    """

    coverage_ratio: float
    unseen: tuple[tuple[str, str], ...]
    starting: tuple[PodSample, ...]
    engines: tuple[tuple[PodSample, EngineSample], ...]


def is_usable(age_seconds: float | None, stale_after_seconds: float) -> bool:
    """Return whether a sample of this age may be used; an unknown age may not. In seconds."""
    return age_seconds is not None and age_seconds <= stale_after_seconds


def seen_scrape_seconds(
    before_seconds: float | None, window_seconds: Sequence[float]
) -> float | None:
    """Return the scrape interval, estimated from ticks; None until an interval is known.

    window_seconds: intervals between scrapes, from the windows of one tick.
    """
    if not window_seconds:
        return before_seconds
    newest = min(window_seconds)
    return newest if before_seconds is None else min(newest, SLOWER_RATIO * before_seconds)


def seen_behind_seconds(
    before_seconds: float | None,
    scrape_seconds: float | None,
    fresh: "Freshness",
    moved: Container[tuple[str, str]],
) -> float | None:
    """Return how late the store shows a scrape; ages up to a scrape's interval are no delay.

    moved: pods and engines with a newer scrape at this tick: only these tell it, since the ages of
    pods that are scraped no more only grow.
    """
    ages = [engine_age_seconds(e) for pod, e in fresh.engines if (pod.name, e.engine) in moved]
    newest = min((age for age in ages if age is not None), default=None)
    if newest is None:
        return before_seconds
    apart = DEFAULT_SCRAPE_SECONDS if scrape_seconds is None else scrape_seconds
    late = max(newest - apart, 0.0)
    return late if before_seconds is None else min(late, before_seconds + LATER_SECONDS)


def fresh_seconds(scrape_seconds: float | None, behind_seconds: float | None = None) -> float:
    """Return the age up to which a sample counts as fresh, in a store that is so far behind."""
    apart = DEFAULT_SCRAPE_SECONDS if scrape_seconds is None else scrape_seconds
    return (behind_seconds or 0.0) + max(MISSED_SCRAPES * apart, SHORTEST_FRESH_SECONDS)


def first_scrape_seconds(
    scrape_seconds: float | None, behind_seconds: float | None = None
) -> float:
    """Return how long after readiness a pod may still be unscraped."""
    late = behind_seconds or 0.0
    return max(FIRST_SCRAPE_SECONDS + late, fresh_seconds(scrape_seconds, late))


def metrics_of(
    pod: PodSample,
    stale_after_seconds: float,
    scrape_seconds: float | None = None,
    behind_seconds: float | None = None,
) -> PodMetrics:
    """Return the state of this pod's metrics.

    stale_after_seconds: metrics older than this are not used. scrape_seconds: interval between
    scrapes, None while unknown. behind_seconds: how late the store shows them.
    """
    ages = [engine_age_seconds(engine) for engine in pod.engines]
    age = max([own for own in ages if own is not None], default=None)
    usable = [
        engine
        for engine, own in zip(pod.engines, ages, strict=True)
        if not engine.impossible_metrics and is_usable(own, stale_after_seconds)
    ]
    state = _state(pod, age, stale_after_seconds, scrape_seconds, behind_seconds)
    return PodMetrics(state=state, age_seconds=age, engines=tuple(usable))


def _state(
    pod: PodSample,
    age: float | None,
    stale_after_seconds: float,
    scrape_seconds: float | None,
    behind_seconds: float | None,
) -> Reason | None:
    """Return whether the gauges that decisions need are present and fresh."""
    with_gauges, nan_metrics, half = 0, False, False
    for engine in pod.engines:
        if engine.impossible_metrics:
            return Reason.METRICS_IMPLAUSIBLE
        gauges = (engine.running is not None) + (engine.waiting is not None)
        with_gauges += gauges > 0
        broken = bool(not_numbers(engine))
        nan_metrics |= broken
        half |= gauges == 1 and broken
    if not with_gauges:
        if nan_metrics:
            return Reason.METRICS_NOT_A_NUMBER
        return None if is_new(pod, scrape_seconds, behind_seconds) else Reason.METRICS_MISSING
    if age is None or half or with_gauges < len(pod.engines):
        return Reason.METRICS_PARTIAL
    if age > stale_after_seconds:
        return Reason.METRICS_STALE
    fresh = age <= fresh_seconds(scrape_seconds, behind_seconds)
    return Reason.METRICS_FRESH if fresh else Reason.METRICS_PARTIAL


def is_new(
    pod: PodSample, scrape_seconds: float | None, behind_seconds: float | None = None
) -> bool:
    """Return whether the pod may not have been scraped since it became ready."""
    ready_for = pod.ready_for_seconds
    return ready_for is not None and ready_for <= first_scrape_seconds(
        scrape_seconds, behind_seconds
    )


def assess(
    pods: Sequence[PodSample],
    stale_after_seconds: float,
    scrape_seconds: float | None = None,
    known: Mapping[str, PodMetrics] | None = None,
    behind_seconds: float | None = None,
) -> Freshness:
    """Return which engines may be used, and the share of pods that they represent.

    known: what `metrics_of` says of some of the pods, by name.
    """
    used: list[tuple[PodSample, EngineSample]] = []
    unseen: list[tuple[str, str]] = []
    starting: list[PodSample] = []
    expected, told = 0, known or {}
    for pod in pods:
        found = told.get(pod.name) or metrics_of(
            pod, stale_after_seconds, scrape_seconds, behind_seconds
        )
        used += [(pod, engine) for engine in found.engines]
        if not pod.ready or pod.deleting or pod.is_node:
            continue
        if not found.engines and is_new(pod, scrape_seconds, behind_seconds):
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
    """Age of the older of gauges and counters; None if the engine has no usable number."""
    has_gauges = engine.running is not None or engine.waiting is not None
    has_counters = engine.generation_tokens_total is not None or bool(engine.finished_total)
    if not has_gauges and not has_counters:
        return None
    gauges = engine.gauges_age_seconds if has_gauges else None
    counters = engine.counters_age_seconds if has_counters else None
    if gauges is None or counters is None:
        return counters if gauges is None else gauges
    return max(gauges, counters)
