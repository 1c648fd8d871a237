"""Ticks at which nothing is new of a workload, so that its last decision stands.

Engines may be scraped less often than the operator ticks. Without a new scrape there is no new
window, and a decision that waits for nothing would be made again from the same numbers. Such a
tick is neither planned nor recorded, so a replay of the recording plans the same observations. The
next scrape is planned, or its absence: nothing is held for longer than a scrape interval.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample, GPUSample, PodSample
from servingslo.estimation.windows.counters import SAME_SCRAPE_SECONDS
from servingslo.estimation.windows.freshness import engine_age_seconds
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Observation
from servingslo.reasons import Action, Reason

# A count at its lower bound waits for demand, not for time.
_LASTING_LIMITS = frozenset({None, Reason.MIN_REPLICAS_REACHED})
# Pods that are ready for so long have passed every grace for new ones.
_SETTLED_SECONDS = 300.0
_ENGINE_AGES = ("gauges_age_seconds", "counters_age_seconds", "histograms_age_seconds")
_Sample = TypeVar("_Sample", EngineSample, GPUSample)


@dataclass(frozen=True, slots=True)
class Settled:
    """An observation whose decision changed nothing and waits for nothing."""

    observation: Observation

    def stands(self, now: Observation, scrape_seconds: float | None) -> bool:
        """Whether nothing but time passed, and the next scrape is not due yet.

        scrape_seconds: interval between scrapes; None while unknown.
        """
        before = self.observation
        if scrape_seconds is None or len(now.pods) != len(before.pods):
            return False
        ages = [engine_age_seconds(engine) for pod in now.pods for engine in pod.engines]
        if not ages or any(age is None or age >= scrape_seconds for age in ages):
            return False
        elapsed = now.time_seconds - before.time_seconds
        pods = tuple(
            _pod_before(pod, old, elapsed) for pod, old in zip(now.pods, before.pods, strict=True)
        )
        return replace(now, time_seconds=before.time_seconds, pods=pods) == before


def settled(observation: Observation, decision: Decision) -> Settled | None:
    """The observation, if its decision changed nothing and waits for nothing.

    A cold start, a rollout, a cooldown or a doubt ends with time; another client that carries out
    the count is answered anew at each tick.
    """
    counts = decision.replicas
    steady = (
        decision.action is Action.HOLD
        and decision.limited_by in _LASTING_LIMITS
        and decision.metrics is Reason.METRICS_FRESH
        and counts.current == counts.ready == decision.replicas_after == len(observation.pods)
        and all(knob.hold() == knob for knob in decision.knobs.values())
        and (decision.handed_over, decision.degradation, decision.lanes) == (None, None, None)
        and not (observation.rollout_in_progress or observation.problems)
        and all(map(_is_past_grace, observation.pods))
    )
    # The past of a workload is in an observation only at the tick at which it was read.
    return Settled(replace(observation, history=None)) if steady else None


def _is_past_grace(pod: PodSample) -> bool:
    return (pod.ready_for_seconds or 0.0) >= _SETTLED_SECONDS


def _pod_before(now: PodSample, before: PodSample, elapsed: float) -> PodSample:
    """The pod as it was before, if nothing of it was scraped since."""
    if not _is_past_grace(now):
        return now
    return replace(
        now,
        age_seconds=before.age_seconds,
        ready_for_seconds=before.ready_for_seconds,
        engines=_samples_before(now.engines, before.engines, _ENGINE_AGES, elapsed),
        gpus=_samples_before(now.gpus, before.gpus, ("age_seconds",), elapsed),
    )


def _samples_before(
    now: Sequence[_Sample], before: Sequence[_Sample], ages: Iterable[str], elapsed: float
) -> tuple[_Sample, ...]:
    if len(now) != len(before):
        return tuple(now)
    pairs = zip(now, before, strict=True)
    return tuple(_sample_before(one, old, ages, elapsed) for one, old in pairs)


def _sample_before(now: _Sample, before: _Sample, names: Iterable[str], elapsed: float) -> _Sample:
    """The sample at its earlier ages, if each grew by the time that passed."""
    ages = {name: getattr(before, name) for name in names}
    grown = all(
        age is None or abs((getattr(now, name) or 0.0) - age - elapsed) <= SAME_SCRAPE_SECONDS
        for name, age in ages.items()
    )
    return replace(now, **ages) if grown else now
