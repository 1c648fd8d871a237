"""Whether the sample can be believed: fresh, stale, missing or not a number."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.health import METRICS_MISSING, METRICS_STALE
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.reasons import Reason

# A pod that became ready this recently may not have been scraped yet.
FIRST_SCRAPE_SECONDS = 45.0
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


def assess(pods: Sequence[PodSample], stale_after_seconds: float) -> Freshness:
    """Which engines can be used, and whether they speak for the workload."""
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
        just_started = (
            pod.ready_for_seconds is not None and pod.ready_for_seconds < FIRST_SCRAPE_SECONDS
        )
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
