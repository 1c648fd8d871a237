"""What the ticks come to: GPU hours and missed requests with intervals, and the promise by day.

An interval says what another such week may bring: 95 % of 2,000 weeks whose days are drawn from
these. Days keep the daily course of traffic together; a shorter time is drawn in blocks of hours.
Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), 13 (percentiles).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servingslo.models.engine.service_time import FloatArray
from servingslo.units import SECONDS_PER_DAY, SECONDS_PER_HOUR
from servingslo_lab.cli.past.gap import Gap
from servingslo_lab.cli.shadowing.play import SEEN, SERVINGSLO, Played, Tick

_LEAST_DAYS, _SHORT_BLOCK_SECONDS = 5, 4 * SECONDS_PER_HOUR
# Fewer blocks say nothing of their spread.
_LEAST_BLOCKS = 4
_DRAWS, _SEED = 2000, 1
_TAILS = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value and its 95 % interval; None of a time that is too short for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row. measured: misses were counted by the engines, not judged by the law.

    requests: of which those were missed; None if none was judged. most_missed_requests: if a
    threshold is between two edges of a histogram, or one request misses two objectives.
    """

    name: str
    measured: bool
    least_replicas: int
    mean_replicas: float
    greatest_replicas: int
    changes: int
    gpu_hours: Figure
    requests: float
    missed_requests: Figure | None
    missed_ratio: Figure | None
    most_missed_requests: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """ServingSLO less another row: GPU hours as a share of its own, and the share that missed.

    Both shares are by the law, also of what was.
    """

    name: str
    gpu_hours_ratio: Figure
    missed_ratio: Figure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """24 hours from the start. kept_ratio: share within all objectives, by row; None if unknown."""

    start_seconds: float
    read_seconds: float
    kept_ratio: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """All rows, and what they rest on.

    seconds: that were read. judged_requests: arrived while a law was trusted. law_ratio: share of
    what was that missed by the law, next to what was measured. agreed_ratio: of the time, in which
    the rule, played, ordered what was there. notes: assumptions. gaps: what was not read.
    """

    resource: str
    rule: str
    start_seconds: float
    seconds: float
    requests: float
    judged_requests: float
    gpus_per_replica: int
    target_share_ratio: float
    agreed_ratio: float
    law_ratio: Figure | None
    outcomes: tuple[Outcome, ...]
    comparisons: tuple[Comparison, ...]
    days: tuple[Day, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]
    gaps: tuple[Gap, ...]
    ticks: tuple[Tick, ...]

    @property
    def kept_days(self) -> Mapping[str, tuple[int, int]]:
        """Days on which the promise was kept, and those that are known, by row."""
        found = {}
        for one in self.outcomes:
            known = [day.kept_ratio[one.name] for day in self.days]
            ratios = [ratio for ratio in known if ratio is not None]
            kept = sum(ratio >= self.target_share_ratio for ratio in ratios)
            found[one.name] = (kept, len(ratios))
        return found


def summary(
    found: Played,
    *,
    gpus_per_replica: int,
    notes: Sequence[str] = (),
    gaps: Sequence[Gap] = (),
) -> Shadow:
    """The rows of what was played. notes: what the reading assumed."""
    ticks, rule = found.ticks, found.rule
    names = (SEEN, rule, SERVINGSLO)
    start, seconds = ticks[0].time_seconds, sum(tick.seconds for tick in ticks)
    span = ticks[-1].time_seconds - start
    length = SECONDS_PER_DAY if span > (_LEAST_DAYS - 1) * SECONDS_PER_DAY else _SHORT_BLOCK_SECONDS
    drawn = _Drawn(_table(ticks, names, gpus_per_replica, length), names)
    measured = drawn.total(drawn.counted) > 0
    return Shadow(
        resource=found.resource,
        rule=rule,
        start_seconds=start,
        seconds=seconds,
        requests=sum((tick.arrival_rate_per_second or 0.0) * tick.seconds for tick in ticks),
        judged_requests=drawn.total(drawn.judged),
        gpus_per_replica=gpus_per_replica,
        target_share_ratio=found.target_share_ratio,
        agreed_ratio=sum(
            tick.seconds for tick in ticks if tick.replicas[rule] == tick.replicas[SEEN]
        )
        / (seconds or 1.0),
        law_ratio=drawn.ratio(drawn.missed(SEEN), drawn.judged),
        outcomes=tuple(
            _outcome(name, ticks, seconds, drawn, measured=measured and name == SEEN)
            for name in names
        ),
        comparisons=tuple(_comparison(name, drawn) for name in names[:2]),
        days=tuple(_days(ticks, names, measured=measured)),
        unread=found.unread,
        notes=(*notes, *_notes(found, measured=measured)),
        gaps=tuple(gaps),
        ticks=ticks,
    )


def _notes(found: Played, *, measured: bool) -> list[str]:
    notes = []
    if not measured:
        notes.append("No engine counts what an objective is about: all misses are by the law.")
    elif found.unmeasured:
        notes.append(f"Not measured, so not counted in what was: {', '.join(found.unmeasured)}.")
    return notes


def _table(ticks: Sequence[Tick], names: Sequence[str], gpus: int, length: float) -> FloatArray:
    """A row a block: GPU hours and misses by row, judged, counted, counted and missed, at most."""
    start = ticks[0].time_seconds
    blocks: dict[int, FloatArray] = {}
    for tick in ticks:
        block = blocks.setdefault(
            int((tick.time_seconds - start) // length), np.zeros(2 * len(names) + 4)
        )
        hours = tick.seconds / SECONDS_PER_HOUR * gpus
        judged = bool(tick.missed)
        counted = tick.measured if judged else None
        block += [
            *(hours * tick.replicas[name] for name in names),
            *(tick.missed.get(name, 0.0) for name in names),
            tick.judged_requests,
            *((0.0,) * 3 if counted is None else (counted.requests, counted.least, counted.most)),
        ]
    return np.array([blocks[place] for place in sorted(blocks)])


class _Drawn:
    """Totals of the time itself, then of as many others drawn from its blocks."""

    def __init__(self, table: FloatArray, names: Sequence[str]) -> None:
        self._names, count = names, len(table)
        self._has_interval = count >= _LEAST_BLOCKS
        draws = np.random.default_rng(_SEED).integers(0, count, (_DRAWS, count))
        self._totals = np.vstack([table.sum(axis=0), table[draws].sum(axis=1)])
        # Requests judged by the law; counted by the engines, and missed at least and at most.
        self.judged, self.counted, self.counted_missed, self.counted_most = self._totals.T[-4:]

    def hours(self, name: str) -> FloatArray:
        """GPU hours of a row."""
        return self._totals[:, self._names.index(name)]

    def missed(self, name: str) -> FloatArray:
        """Misses of a row by the law."""
        return self._totals[:, len(self._names) + self._names.index(name)]

    @staticmethod
    def total(column: FloatArray) -> float:
        """Of the time itself."""
        return float(column[0])

    def figure(self, column: FloatArray) -> Figure:
        """Its value with the interval over draws."""
        known = column[1:][np.isfinite(column[1:])]
        if not self._has_interval or not known.size:
            return Figure(value=float(column[0]))
        low, high = np.quantile(known, _TAILS)
        return Figure(value=float(column[0]), low=float(low), high=float(high))

    def ratio(self, above: FloatArray, below: FloatArray) -> Figure | None:
        """A share; None of nothing."""
        if below[0] <= 0:
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.figure(above / below)


def _outcome(
    name: str, ticks: Sequence[Tick], seconds: float, drawn: _Drawn, *, measured: bool
) -> Outcome:
    counts = [tick.replicas[name] for tick in ticks]
    missed = drawn.counted_missed if measured else drawn.missed(name)
    requests = drawn.counted if measured else drawn.judged
    known = drawn.total(requests) > 0
    return Outcome(
        name=name,
        measured=measured,
        least_replicas=min(counts),
        mean_replicas=sum(tick.replicas[name] * tick.seconds for tick in ticks) / seconds
        if seconds
        else float(counts[-1]),
        greatest_replicas=max(counts),
        changes=sum(a != b for a, b in pairwise(counts)),
        gpu_hours=drawn.figure(drawn.hours(name)),
        requests=drawn.total(requests),
        missed_requests=drawn.figure(missed) if known else None,
        missed_ratio=drawn.ratio(missed, requests),
        most_missed_requests=drawn.total(drawn.counted_most) if measured else None,
    )


def _comparison(name: str, drawn: _Drawn) -> Comparison:
    own, other = drawn.hours(SERVINGSLO), drawn.hours(name)
    ratio = drawn.ratio(own - other, other)
    fewer = drawn.missed(SERVINGSLO) - drawn.missed(name)
    return Comparison(
        name=name,
        gpu_hours_ratio=Figure(value=math.nan) if ratio is None else ratio,
        missed_ratio=drawn.ratio(fewer, drawn.judged),
    )


def _days(ticks: Sequence[Tick], names: Sequence[str], *, measured: bool) -> list[Day]:
    start = ticks[0].time_seconds
    days: dict[int, list[Tick]] = {}
    for tick in ticks:
        place = int((tick.time_seconds - start) // SECONDS_PER_DAY)
        days.setdefault(place, []).append(tick)
    return [
        Day(
            start_seconds=start + place * SECONDS_PER_DAY,
            read_seconds=sum(tick.seconds for tick in those),
            kept_ratio={name: kept_ratio(those, name, measured=measured) for name in names},
        )
        for place, those in sorted(days.items())
    ]


def kept_ratio(ticks: Sequence[Tick], name: str, *, measured: bool) -> float | None:
    """The share of requests within all objectives; None if there is none.

    measured: what was is counted, not judged.
    """
    if measured and name == SEEN:
        counts = [tick.measured for tick in ticks if tick.measured is not None and tick.missed]
        requests, missed = sum(c.requests for c in counts), sum(c.least for c in counts)
    else:
        requests = sum(tick.judged_requests for tick in ticks)
        missed = sum(tick.missed.get(name, 0.0) for tick in ticks)
    return 1.0 - missed / requests if requests > 0 else None
