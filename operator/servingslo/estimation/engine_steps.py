"""Compare the engines of one tick with their stored memory: steps, doubts and lost series."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servingslo.estimation.law.configuration import Configuration, fleet_configuration
from servingslo.estimation.pods.batch_limits import counted_several_times
from servingslo.estimation.requests.observed import RECENT_SECONDS
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows import counters, families
from servingslo.estimation.windows.counters import EngineMemory, EngineStep
from servingslo.estimation.windows.freshness import is_new
from servingslo.estimation.windows.unscraped_pods import counting_for_seconds
from servingslo.models.engine.service_time import ServiceLaw

# Reported for a page whose counters fell and have counted nothing since.
FELL = "counters that count again: they fell, and no container started"
# Engines with their pods.
_Seen = Sequence[tuple[PodSample, EngineSample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A window of a pod's engine that is impossible.

    windows: impossible windows in a row. why: the reason, with the numbers.
    """

    pod: str
    windows: int
    why: str


def engine_steps(
    memories: Sequence[EngineMemory],
    seen: _Seen,
    law_by_pod: Mapping[str, ServiceLaw],
    now: float,
    elapsed: float | None,
) -> tuple[EngineStep, ...]:
    """Return what each engine in use did since its last tick.

    elapsed: seconds since the previous tick, None for the first.
    """
    known = {(m.pod, m.engine): m for m in memories}
    steps = []
    for pod, engine in seen:
        memory = known.get((pod.name, engine.engine))
        counting = counting_for_seconds(pod, engine, elapsed) if memory is None else None
        law = law_by_pod.get(pod.name)
        steps.append(counters.advance(memory, pod, engine, now, counting, law))
    return tuple(steps)


def law_of_pods(
    known: tuple[Configuration, ServiceLaw] | None, pods: Sequence[PodSample]
) -> Mapping[str, ServiceLaw]:
    """Return the trusted law of a configuration for each of its pods that counts each step once."""
    found = fleet_configuration(pods) if known is not None else None
    if known is None or found is None or not known[0].same_as(found[0]):
        return {}
    told_once = (p.name for p in pods if p.name in found[1] and not counted_several_times(p))
    return dict.fromkeys(told_once, known[1])


def doubts_of(steps: Sequence[EngineStep]) -> tuple[Doubt, ...]:
    """Return the impossible windows among these steps."""
    return tuple(
        Doubt(pod=s.memory.pod, windows=s.memory.doubted, why=s.doubt) for s in steps if s.doubt
    )


def lost_families(
    memories: Sequence[EngineMemory], seen: _Seen, scrape_seconds: float | None = None
) -> tuple[tuple[str, str], ...]:
    """Return pods whose engines lack series that they or their siblings had, with the series.

    An engine without earlier counters, as after a restart of the operator, is listed if it runs
    requests, exports no counters and should have been scraped by now. scrape_seconds: interval
    between scrapes, None while unknown.
    """
    known = {(m.pod, m.engine): m for m in memories}
    beside = families.missing_beside_siblings(seen, long_known(memories))
    lost = []
    for pod, engine in seen:
        memory = known.get((pod.name, engine.engine))
        had = memory.exported if memory is not None and memory.restarts == pod.restarts else ()
        series = families.missing_series(engine, had) or beside.get((pod.name, engine.engine), ())
        if series:
            lost.append((pod.name, families.in_words(series)))
        elif memory is not None and memory.counters is not None:
            lost += [(pod.name, family) for family in counters.lost_families(memory, engine)]
        elif _counts_nothing(engine) and not is_new(pod, scrape_seconds):
            named = families.missing_series(engine, families.COUNTERS)
            lost.append((pod.name, families.in_words(named) or "counters"))
    return tuple(lost)


def counting_nothing(memories: Sequence[EngineMemory], seen: _Seen) -> tuple[tuple[str, str], ...]:
    """Return pods whose counters fell to zero and stayed there, though no container started.

    An engine that restarted counts again with its next request. One that stays at zero for longer
    than the window of observed latencies is treated as idle. memories: include this tick.
    """
    known = {(m.pod, m.engine): m.counters for m in memories}
    fell = (
        (pod.name, FELL)
        for pod, engine in seen
        if not engine.generation_tokens_total and not any(engine.finished_total.values())
        if (scrape := known.get((pod.name, engine.engine))) is not None
        and scrape.fell_from is not None
        and scrape.time_seconds - scrape.fell_from.time_seconds < RECENT_SECONDS
    )
    return tuple(fell)


def long_known(memories: Sequence[EngineMemory]) -> frozenset[tuple[str, str]]:
    """Return pods and engines known for long enough that each of their families has been read."""
    return frozenset(
        (m.pod, m.engine)
        for m in memories
        if m.counters is not None
        and m.since_seconds is not None
        and m.counters.time_seconds - m.since_seconds >= families.FIRST_REQUEST_SECONDS
    )


def _counts_nothing(engine: EngineSample) -> bool:
    return bool(engine.running) and not counters.has_counters(engine)
