"""Scrapes of an engine: their times, and from which one the next window is measured."""

from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows import plausible
from servingslo.records import record


@record(frozen=True, slots=True, kw_only=True)
class Scrape:
    """A sample, its scrape time, and how often its pod's containers had restarted by then.

    restarts: a lower bound; a restart that Kubernetes reports before a scrape shows it is not
    included.
    fell_from: the previous scrape, if counters fell, no container had started and nothing was
    counted since. A page that lost its numbers for a while looks the same.
    """

    sample: EngineSample
    time_seconds: float
    restarts: int
    fell_from: "Scrape | None" = None


def window_start(before: Scrape | None, after: EngineSample, restarts: int) -> Scrape | None:
    """Return the scrape from which a window to this sample starts.

    If counters fell and have returned, they never fell: the window starts before the fall.
    """
    whole = None if before is None else before.fell_from
    if whole is None or whole.restarts != restarts:
        return before
    fell, doubt = plausible.find_restart(whole.sample, after, container_started=False)
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
    """Return this sample's scrape, from whether the window's counters fell or moved."""
    fell_from = None
    if before is not None and fell:
        fell_from = before if before.restarts == restarts else None
    elif before is not None and not moved:
        fell_from = before.fell_from
    return Scrape(sample=after, time_seconds=time_seconds, restarts=restarts, fell_from=fell_from)


def counters_age_seconds(sample: EngineSample) -> float:
    """Return the age of the counters; if unknown, the age of the gauges, then 0."""
    age = sample.counters_age_seconds
    if age is None:
        age = sample.gauges_age_seconds
    return 0.0 if age is None else age


def counters_time_seconds(sample: EngineSample, now_seconds: float) -> float:
    """Return when the counters were scraped."""
    return now_seconds - counters_age_seconds(sample)


def histograms_time_seconds(sample: EngineSample, now_seconds: float) -> float:
    """Return when the histograms were scraped; an unknown age falls back to the counters' age."""
    if sample.histograms_age_seconds is not None:
        return now_seconds - sample.histograms_age_seconds
    return counters_time_seconds(sample, now_seconds)
