"""Whether the sample can be believed: fresh, stale, missing or not a number."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.health import METRICS_MISSING, METRICS_STALE
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.reasons import Reason

# Three scrapes that are missed are no longer jitter. Prometheus scrapes every 15 s by default; what
# is scraped every second still waits for the tick.
MISSED_SCRAPES = 3.0
DEFAULT_SCRAPE_SECONDS = 15.0
SHORTEST_FRESH_SECONDS = 15.0
# A pod that became ready this recently may not have been scraped yet, at the least.
FIRST_SCRAPE_SECONDS = 45.0
# A distance of scrapes that grows is believed by so much more at each look.
SLOWER_RATIO = 1.1
# Metrics of fewer than this share of the ready pods do not speak for the workload.
SPEAKING_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Whether the metrics speak for the workload.

    reason: METRICS_FRESH, METRICS_STALE, METRICS_MISSING or METRICS_NOT_A_NUMBER. age_seconds: of
    the oldest group that was used, None when none was. coverage_ratio: share of the ready pods
    (those just started aside) whose metrics are fresh. unseen: the others, each with why.
    starting: Ready, and not scraped yet. engines: fresh engines with their pods.
    """

    reason: Reason
    age_seconds: float | None
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


def assess(
    pods: Sequence[PodSample],
    stale_after_seconds: float,
    grace_seconds: float = FIRST_SCRAPE_SECONDS,
) -> Freshness:
    """Which engines can be used, and whether they speak for the workload.

    grace_seconds: for how long a pod that has become ready may not have been scraped.
    """
    used: list[tuple[PodSample, EngineSample]] = []
    unseen: list[tuple[str, str]] = []
    starting: list[PodSample] = []
    oldest: float | None = None
    expected = not_numbers = 0
    for pod in pods:
        usable = []
        why = METRICS_MISSING
        for engine in pod.engines:
            if engine.impossible_metrics:
                continue
            age = engine_age_seconds(engine)
            if age is None:
                not_numbers += bool(engine.nan_metrics)
                continue
            if age > stale_after_seconds:
                why = METRICS_STALE
                continue
            usable.append((pod, engine))
            oldest = age if oldest is None else max(oldest, age)
        used += usable
        if not pod.ready or pod.deleting:
            continue
        just_started = pod.ready_for_seconds is not None and pod.ready_for_seconds < grace_seconds
        if just_started and not usable:
            starting.append(pod)
            continue
        expected += 1
        if not usable:
            unseen.append((pod.name, why))
    seen = expected - len(unseen)
    coverage = seen / expected if expected else float(bool(used))
    return Freshness(
        reason=_reason(coverage, unseen, not_numbers, bool(used)),
        age_seconds=oldest,
        coverage_ratio=coverage,
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


def _reason(
    coverage: float, unseen: Sequence[tuple[str, str]], not_numbers: int, any_used: bool
) -> Reason:
    if any_used and coverage >= SPEAKING_RATIO:
        return Reason.METRICS_FRESH
    if not_numbers and not any_used:
        return Reason.METRICS_NOT_A_NUMBER
    if any(why == METRICS_STALE for _, why in unseen):
        return Reason.METRICS_STALE
    return Reason.METRICS_MISSING
