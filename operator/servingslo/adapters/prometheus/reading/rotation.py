"""Histograms of a large cluster: each reading reads those of some pods, a few readings read all.

At 4,000 engines the buckets are about 640,000 series, too many for one reading. The last characters
of the pods' names decide whose turn it is. Their histograms are read at the same time as their
counters. The other engines keep the values of their last turn, which get older.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.servers import Pod
from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample
from servingslo.policy.ports import PodMetrics
from servingslo.runtimes.profile import MetricKind, RuntimeProfile

# The pod, the engine's label and the assumed runtime.
_Engine = tuple[Pod, str, str | None]
# Possible last characters of pod names: digits of an ordinal, or the alphabet of generated names.
# Source: Kubernetes, apimachinery util/rand.
_LAST_CHARACTERS = "0123456789bcdfghjklmnpqrstvwxz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The pods whose histograms are read: all, or those with (or without) these last characters.

    characters: '' for all pods. others: it is the turn of all other endings.
    """

    characters: str = ""
    others: bool = False

    def matcher(self, pod_label: str) -> str:
        """The turn as a PromQL matcher; '' for all pods."""
        if not self.characters:
            return ""
        return f'{pod_label}=~".*[{"^" if self.others else ""}{self.characters}]"'

    def holds(self, pod: str) -> bool:
        """Whether it is this pod's turn."""
        return not self.characters or (pod[-1:] in self.characters) is not self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """An engine's histogram fields at its last turn, and the time that their age refers to."""

    at_seconds: float
    age_seconds: float | None
    not_numbers: tuple[str, ...]
    sumless: tuple[str, ...]
    fields: Mapping[str, Any]


class HistogramRotation:
    """The order of turns, and the engines' last values; for one thread at a time."""

    def __init__(self, config: PrometheusConfig, profiles: tuple[RuntimeProfile, ...]) -> None:
        self._each_reading = config.histogram_engines_each_tick
        self._most_turns = config.histogram_every_ticks
        self._reading = 0
        self._kept: dict[_Engine, _Kept] = {}
        histograms = [m for p in profiles for m in p.of_kind(MetricKind.HISTOGRAM)]
        self._fields = tuple(dict.fromkeys(metric.field for metric in histograms))
        self._names = frozenset(name for metric in histograms for name in metric.names)

    def next_turn(self, engine_count: int) -> Turn:
        """The next turn, for a reading of this many engines."""
        turns = min(math.ceil(engine_count / self._each_reading), self._most_turns)
        if turns <= 1:
            return Turn()
        self._reading = (self._reading + 1) % turns
        if self._reading < turns - 1:
            return Turn(characters=_LAST_CHARACTERS[self._reading :: turns])
        of_others = "".join(_LAST_CHARACTERS[turn::turns] for turn in range(turns - 1))
        return Turn(characters=of_others, others=True)

    def completed(
        self, pods: Mapping[Pod, PodMetrics], turn: Turn, at_seconds: float
    ) -> Mapping[Pod, PodMetrics]:
        """The same engines; those without a turn get the values of their last turn.

        at_seconds: the time that all ages refer to, on the monotonic clock.
        """
        if not turn.characters:
            self._kept = {}
            return pods
        kept: dict[_Engine, _Kept] = {}
        completed = {}
        for pod, metrics in pods.items():
            engines = []
            for engine in metrics.engines:
                key = pod, engine.engine, engine.runtime
                own = turn.holds(pod[1])
                before = self._own(engine, at_seconds) if own else self._kept.get(key)
                if before is not None:
                    kept[key] = before
                engines.append(engine if own else _with(engine, before, at_seconds))
            completed[pod] = replace(metrics, engines=tuple(engines))
        self._kept = kept
        return completed

    def _own(self, engine: EngineSample, at_seconds: float) -> _Kept:
        return _Kept(
            at_seconds=at_seconds,
            age_seconds=engine.histograms_age_seconds,
            not_numbers=tuple(sorted(self._names & {*engine.nan_metrics})),
            sumless=engine.sumless_metrics,
            fields={name: getattr(engine, name) for name in self._fields},
        )


def _with(engine: EngineSample, kept: _Kept | None, at_seconds: float) -> EngineSample:
    """The engine with its kept values and their current age."""
    if kept is None or kept.age_seconds is None:
        return replace(engine, histograms_age_seconds=None)
    return replace(
        engine,
        histograms_age_seconds=kept.age_seconds + at_seconds - kept.at_seconds,
        nan_metrics=(*engine.nan_metrics, *kept.not_numbers),
        sumless_metrics=kept.sumless,
        **kept.fields,
    )
