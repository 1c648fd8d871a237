"""Scrapes of an engine: when they were, and which one the next window is measured from."""

from dataclasses import dataclass

from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows import plausible


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """A sample, when it was scraped, and how often its pod's containers had restarted by then.

    restarts: at least; a restart that is told before a scrape shows it is not of this number.
    fell_from: the one before, where counters fell, no container had started and nothing was
    counted since. A page that lost its numbers for a while looks alike.
    """

    sample: EngineSample
    time_seconds: float
    restarts: int
    fell_from: "Scrape | None" = None


def measured_from(before: Scrape | None, after: EngineSample, restarts: int) -> Scrape | None:
    """The scrape that a window to this sample begins with: what fell and came back never fell."""
    whole = None if before is None else before.fell_from
    if whole is None or whole.restarts != restarts:
        return before
    fell, doubt = plausible.fallen(whole.sample, after, container_started=False)
    return before if fell or doubt else whole


def next_scrape(
    before: Scrape | None,
    after: EngineSample,
    time_seconds: float,
    restarts: int,
    *,
    fell: bool,
    moved: bool,
) -> Scrape:
    """The scrape of this sample, which ends a window in which counters fell, or moved, or not."""
    fell_from = None
    if before is not None and fell:
        fell_from = before if before.restarts == restarts else None
    elif before is not None and not moved:
        fell_from = before.fell_from
    return Scrape(sample=after, time_seconds=time_seconds, restarts=restarts, fell_from=fell_from)


def counters_age_seconds(sample: EngineSample) -> float:
    """How old the counters are; an unknown age falls back on the gauges', then on 0."""
    ages = (sample.counters_age_seconds, sample.gauges_age_seconds)
    return next((age for age in ages if age is not None), 0.0)


def counters_time_seconds(sample: EngineSample, now_seconds: float) -> float:
    """When the counters were scraped."""
    return now_seconds - counters_age_seconds(sample)


def histograms_time_seconds(sample: EngineSample, now_seconds: float) -> float:
    """When the histograms were scraped; an unknown age falls back on the counters'."""
    if sample.histograms_age_seconds is not None:
        return now_seconds - sample.histograms_age_seconds
    return counters_time_seconds(sample, now_seconds)
