"""Pods that became ready since the last tick: their work is unknown until their first scrape.

Each target is scraped at its own time. A new pod that relieves the others takes most of the
arrivals. Until it is scraped, the counts of the others alone look like a fall of demand.
"""

from collections.abc import Sequence

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.freshness import Freshness
from servingslo.estimation.windows.scrapes import counters_age_seconds

# A pod that has been ready for longer than this at its first tick may have counted for a day.
LONGEST_FIRST_SCRAPE_SECONDS = 60.0


def counting_for_seconds(
    pod: PodSample, engine: EngineSample, elapsed_seconds: float | None
) -> float | None:
    """Return how long a new engine had counted when it was scraped; None if unknown.

    elapsed_seconds: since the last tick; None at the first. The counters started at zero under
    observation only if the pod became ready recently. Its requests are spread over the time since
    readiness, or over the time since the last tick if that is longer: other pods served before it
    was there, and all flows must refer to one window.
    """
    ready_for = pod.ready_for_seconds
    if elapsed_seconds is None or ready_for is None or ready_for > LONGEST_FIRST_SCRAPE_SECONDS:
        return None
    return max(ready_for - counters_age_seconds(engine), elapsed_seconds)


def hidden_seconds(fresh: Freshness, windows: Sequence[Window]) -> float:
    """How long, up to the newest scrape, a new pod served outside any window; 0 if none did."""
    first = {(w.pod, w.engine): w.from_zero for w in windows}
    ages = {
        key: counters_age_seconds(engine)
        for pod, engine in fresh.engines
        if (key := (pod.name, engine.engine)) in first
    }
    newest = min(ages.values(), default=0.0)
    since = [age for key, age in ages.items() if first[key]]
    since += [pod.ready_for_seconds or 0.0 for pod in fresh.starting]
    return max(max(since, default=newest) - newest, 0.0)
