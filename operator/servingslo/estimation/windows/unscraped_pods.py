"""Pods that became ready since the last look: what they serve is seen from their first scrape on.

Every target is scraped at a moment of its own. A pod that relieves the others takes most of what
arrives, so until its metrics come the others' counts alone look like a fall of demand.
"""

from collections.abc import Sequence

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.freshness import Freshness
from servingslo.estimation.windows.scrapes import counters_age_seconds

# A pod that has been ready for longer when it is first seen may have been counting all day.
LONGEST_FIRST_SCRAPE_SECONDS = 60.0


def counting_for_seconds(
    pod: PodSample, engine: EngineSample, elapsed_seconds: float | None
) -> float | None:
    """How long an engine first seen now had counted when scraped; None where that is not known.

    elapsed_seconds: since the last look; None at the first. Its counters started at zero while the
    workload was watched only if its pod became ready since. What it served fell into this time, or
    into the time since the last look, if that is longer: others served before it was there, and
    all flows are of one window.
    """
    ready_for = pod.ready_for_seconds
    if elapsed_seconds is None or ready_for is None or ready_for > LONGEST_FIRST_SCRAPE_SECONDS:
        return None
    return max(ready_for - counters_age_seconds(engine), elapsed_seconds)


def hidden_seconds(fresh: Freshness, windows: Sequence[Window]) -> float:
    """For how long, up to the newest scrape, a new pod served in no window; 0 where none did."""
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
