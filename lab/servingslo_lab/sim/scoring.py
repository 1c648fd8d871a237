"""Scores to compare runs, with confidence intervals over seeds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from servingslo.models.engine.service_time import FloatArray
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.replicas import layout

CONFIDENCE = 0.95
_MINUTE_SECONDS = 60.0
_TOKENS_OF_PRICE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Thresholds in seconds, infinite if there is none, and the share that must meet all."""

    ttft_seconds: float
    tpot_seconds: float
    share: float
    latency_seconds: float = math.inf

    def share_of(self, result: RunResult) -> float:
        """Share of the run's requests that met all thresholds."""
        return result.share_in_slo(self.ttft_seconds, self.tpot_seconds, self.latency_seconds)

    def minutes_of(self, result: RunResult) -> FloatArray:
        """The share for the requests of each minute of arrival; NaN if none arrived."""
        return result.minutes(self.ttft_seconds, self.tpot_seconds, self.latency_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCost:
    """The cost of one of several pools."""

    name: str
    replica_hours: float
    dollars: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScore:
    """One class of requests. last_end_seconds: of its last answer, None if some was not served."""

    name: str
    share_ratio: float
    rejected_ratio: float
    last_end_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One run, or the mean of several.

    share_ratio: of all requests in SLO; rejected, lost and unfinished ones miss. replica_hours:
    paid, from the order. relative_cost: divided by the oracle's, None without one.
    worst_minute_ratio: least share of a minute of arrival. recovery_seconds: the longest continuous
    time with minutes below the share. dollars_per_million_tokens: of finished answers, None without
    any. TTFT and TPOT at the 99th percentile, None if infinite.
    pools: for several pools, each one's part of the replica-hours. classes: those of the fleet.
    """

    share_ratio: float
    replica_hours: float
    relative_cost: float | None
    actions_per_hour: float
    worst_minute_ratio: float
    recovery_seconds: float
    dollars_per_million_tokens: float | None
    rejected_ratio: float
    lost_ratio: float
    ttft_p99_seconds: float | None
    tpot_p99_seconds: float | None
    pools: tuple[PoolCost, ...] = ()
    classes: tuple[ClassScore, ...] = ()


def score(
    result: RunResult,
    objectives: Objectives,
    *,
    dollars_per_hour: float,
    oracle_hours: float | None = None,
) -> Score:
    """The score of a run."""
    minutes = objectives.minutes_of(result)
    known = minutes[~np.isnan(minutes)]
    requests = max(len(result.status), 1)
    tokens = result.finished_output_tokens
    hours = result.replica_hours
    rejected = float((result.status == layout.REJECTED).sum())
    unfinished = float((result.status != layout.FINISHED).sum())
    price = _TOKENS_OF_PRICE * dollars_per_hour * hours / tokens if tokens > 0 else None
    return Score(
        share_ratio=objectives.share_of(result),
        replica_hours=hours,
        relative_cost=hours / oracle_hours if oracle_hours else None,
        actions_per_hour=result.scale_actions / (result.duration_seconds / SECONDS_PER_HOUR),
        worst_minute_ratio=float(known.min()) if len(known) else 1.0,
        recovery_seconds=_longest_below(minutes, objectives.share) * _MINUTE_SECONDS,
        dollars_per_million_tokens=price,
        rejected_ratio=rejected / requests,
        lost_ratio=(unfinished - rejected) / requests,
        ttft_p99_seconds=_p99(result.ttft_seconds),
        tpot_p99_seconds=_p99(result.tpot_seconds),
        classes=tuple(_class_scores(result, objectives)),
    )


def _class_scores(result: RunResult, objectives: Objectives) -> Iterator[ClassScore]:
    """Each class by the objectives of the whole, in the order of first arrivals."""
    names = np.array(result.class_names or ())
    good = result.good(objectives.ttft_seconds, objectives.tpot_seconds, objectives.latency_seconds)
    for name in dict.fromkeys(result.class_names or ()):
        own = names == name
        ends = float((result.arrival_seconds + result.latency_seconds)[own].max())
        yield ClassScore(
            name=name,
            share_ratio=float(good[own].mean()),
            rejected_ratio=float((result.status[own] == layout.REJECTED).mean()),
            last_end_seconds=ends if math.isfinite(ends) else None,
        )


def _longest_below(minutes: FloatArray, share: float) -> int:
    """The most consecutive minutes below the share; a minute without requests is ignored."""
    longest = now = 0
    for value in minutes:
        if value < share:
            now += 1
            longest = max(longest, now)
        elif not math.isnan(value):
            now = 0
    return longest


def _p99(values: FloatArray) -> float | None:
    if not len(values):
        return None
    found = float(np.quantile(values, 0.99, method="higher"))
    return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds with half the width of its confidence interval; None for one seed."""

    mean: float
    half_width: float | None

    @property
    def low(self) -> float:
        """Its lower end; the mean for one seed."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Its upper end; the mean for one seed."""
        return self.mean + (self.half_width or 0.0)


def interval(values: Sequence[float]) -> Interval:
    """Mean of the values with a 95 % interval by Student's t; at least one value is required."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Interval(mean=mean, half_width=None)
    deviation = float(np.std(values, ddof=1))
    factor = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return Interval(mean=mean, half_width=factor * deviation / math.sqrt(len(values)))
