"""What the guard says of runs: pure, in numbers.

The promise comes first: a row below its declared share is lost, whatever it cost. Next is whether
another policy dominates ours: at least its share at less cost. Price is told of kept rows alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.policies import SIMPLE, STATIC
from servingslo_lab.sim.summary import beats

TARGET_PERCENT = 99.0
"""Share of requests that all rows declare."""
COLD, PAST = "cold", "past"
OURS = (COLD, PAST)
"""Our ways: told nothing, and told the time before."""
MEAN_PRICE_RATIO = 0.01
"""Replica-hours more, in the mean over the rows that are kept now and before."""
ROW_DEVIATIONS = 3.0
"""Of one row over its seeds: what lies further is no luck of the seed."""
# A row that always meets its objectives hardly differs between seeds, and then every change would
# be three deviations: what is less than this is not seen by anybody who pays for it.
LEAST_DEVIATION_RATIO = 0.005
# Of the share, in points: a tenth of the misses that are allowed.
LEAST_DEVIATION_POINTS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row with one seed, played one way: ours, or the name of another policy.

    share_ratio: of all requests, in SLO. decisions: digest of what we decided. traffic: digest of
    the requests.
    """

    row: str
    way: str
    seed: int
    share_ratio: float
    replica_hours: float
    decisions: str
    traffic: str


class Mean(NamedTuple):
    """Over seeds."""

    share_percent: float
    replica_hours: float

    @property
    def kept(self) -> bool:
        """Whether the promise is."""
        return self.share_percent >= TARGET_PERCENT

    def __str__(self) -> str:
        lost = "" if self.kept else " lost"
        return f"{self.share_percent:.2f} @ {self.replica_hours:.2f}{lost}"


def mean_of(runs: Sequence[Run]) -> Mean:
    """Of at least one run."""
    pairs = [(100.0 * run.share_ratio, run.replica_hours) for run in runs]
    return Mean(*np.mean(pairs, axis=0).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One row played one of our ways, beside every other policy over the seeds that both have.

    others: by policy, ours and theirs.
    """

    row: str
    way: str
    ours: Mean
    others: Mapping[str, tuple[Mean, Mean]]

    def dominated_by(self) -> list[str]:
        """Policies with at least our share at less cost, or a larger one at no more."""
        return [
            name
            for name, (ours, other) in self.others.items()
            if beats(other.share_percent / 100.0, other.replica_hours,
                     ours.share_percent / 100.0, ours.replica_hours)
        ]  # fmt: skip

    def price_ratios(self) -> dict[str, float]:
        """Our hours over those of each policy that keeps the promise too; none if we lose."""
        return {
            name: ours.replica_hours / other.replica_hours
            for name, (ours, other) in self.others.items()
            if ours.kept and other.kept
        }


def standings(runs: Sequence[Run]) -> list[Beside]:
    """Each row and way of ours, in the order of the runs."""
    by_place: dict[tuple[str, str], dict[int, Run]] = {}
    for run in runs:
        by_place.setdefault((run.row, run.way), {})[run.seed] = run
    found = []
    for (row, way), mine in by_place.items():
        if way not in OURS:
            continue
        others: dict[str, tuple[Mean, Mean]] = {}
        for (where, name), theirs in by_place.items():
            both = sorted(mine.keys() & theirs.keys())
            if where == row and name not in OURS and both:
                pair = [mine[seed] for seed in both], [theirs[seed] for seed in both]
                others[name] = mean_of(pair[0]), mean_of(pair[1])
        ours = mean_of(list(mine.values()))
        found.append(Beside(row=row, way=way, ours=ours, others=others))
    return found


def table(found: Sequence[Beside], kinds: Mapping[str, str]) -> Iterator[str]:
    """Every row by its kind, and what the rows come to; in Markdown.

    kinds: by row.
    """
    ways = list(dict.fromkeys(one.way for one in found))
    rows: dict[str, dict[str, Beside]] = {}
    for one in found:
        rows.setdefault(one.row, {})[one.way] = one
    heads = "in SLO, % @ replica-hours", "kind", *ways, "constant", "simple", "best rule"
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row, of_ways in sorted(rows.items(), key=lambda pair: list(kinds).index(pair[0])):
        others = {name: pair[1] for name, pair in next(iter(of_ways.values())).others.items()}
        rules = [name for name in others if name not in {STATIC, SIMPLE}]
        best = min(
            rules, default="",
            key=lambda name: (-min(others[name].share_percent, TARGET_PERCENT),
                              others[name].replica_hours),
        )  # fmt: skip
        cells = [str(of_ways[way].ours) if way in of_ways else "" for way in ways]
        cells += [str(others.get(name, "")) for name in (STATIC, SIMPLE)]
        cells += [f"{others[best]}, {best}" if best else ""]
        yield f"| {row} | {kinds[row]} | {' | '.join(cells)} |"
    groups = [[one for one in found if one.way == way] for way in ways]
    names = list(dict.fromkeys(name for one in found for name in one.others))

    def line(label: str, tell: Callable[[Sequence[Beside]], object]) -> str:
        return f"| {label} | {' | '.join(str(tell(of)) for of in groups)} |"

    def dominated(label: str, by: set[str]) -> str:
        return line(
            f"dominated by {label}",
            lambda of: sum(not by.isdisjoint(one.dominated_by()) for one in of),
        )

    yield from ("", f"| {len(rows)} rows | {' | '.join(ways)} |", "|---|" + "---|" * len(ways))
    yield line("kept", lambda of: sum(one.ours.kept for one in of))
    yield dominated("a rule", set(names) - {STATIC, SIMPLE})
    yield dominated("a constant", {STATIC})
    yield dominated("simple", {SIMPLE})
    for name in names:
        yield line(f"price over {name}, rows both keep", partial(_price, name))


def _price(name: str, found: Sequence[Beside]) -> str:
    ratios = [one.price_ratios()[name] for one in found if name in one.price_ratios()]
    return f"{np.mean(ratios):.2f} × on {len(ratios)}" if ratios else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One row and way of ours now and in the baseline, both over the same seeds.

    share_deviation_points, price_deviation_ratio: one standard deviation over all seeds of the
    baseline. unchanged: every decision with every seed is the same.
    """

    row: str
    way: str
    now: Mean
    before: Mean
    share_deviation_points: float
    price_deviation_ratio: float
    unchanged: bool

    @property
    def price_ratio(self) -> float | None:
        """Replica-hours more, relative; None unless the promise is kept now and before."""
        kept = self.now.kept and self.before.kept
        return self.now.replica_hours / self.before.replica_hours - 1.0 if kept else None

    def failure(self) -> str | None:
        """What is worse than the luck of seeds explains."""
        told, price = f"{self.row}, {self.way}: {self.before} → {self.now}", self.price_ratio
        if self.before.kept and not self.now.kept:
            return told
        points = ROW_DEVIATIONS * max(self.share_deviation_points, LEAST_DEVIATION_POINTS)
        if not self.before.kept and self.before.share_percent - self.now.share_percent >= points:
            return f"{told}, of {points:.2f} points allowed"
        allowed = ROW_DEVIATIONS * max(self.price_deviation_ratio, LEAST_DEVIATION_RATIO)
        if price is not None and price >= allowed:
            return f"{told}, price {100 * price:+.1f} % of {100 * allowed:.1f} % allowed"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All rows that were compared."""

    rows: tuple[RowChange, ...]

    @property
    def price_ratio(self) -> float:
        """Of the mean over the rows that are kept now and before, each relative to itself."""
        found = [row.price_ratio for row in self.rows if row.price_ratio is not None]
        return float(np.mean(found)) if found else 0.0

    @property
    def unchanged(self) -> bool:
        """Whether every decision is what it was."""
        return all(row.unchanged for row in self.rows)

    def failures(self) -> tuple[str, ...]:
        """Why the guard fails; nothing where it holds."""
        found = [text for row in self.rows if (text := row.failure()) is not None]
        if self.price_ratio >= MEAN_PRICE_RATIO:
            ratio, most = 100 * self.price_ratio, 100 * MEAN_PRICE_RATIO
            found.insert(0, f"mean over kept rows: price {ratio:+.2f} % of {most:.0f} % allowed")
        return tuple(found)


def verdict(now: Sequence[Run], before: Sequence[Run]) -> Verdict:
    """Our runs beside those of the baseline with the same rows, ways and seeds.

    Raises: InvalidInputError for a run that the baseline does not have, or that was played other
    traffic.
    """
    mine = [run for run in now if run.way in OURS]
    known = {(run.row, run.way, run.seed): run for run in before}
    for run in mine:
        there, where = known.get((run.row, run.way, run.seed)), f"{run.row}, seed {run.seed}"
        if there is None:
            allowed = "rows and seeds of the baseline (make guard-baseline writes it anew)"
            raise InvalidInputError(f"run, {run.way}", where, allowed)
        if there.traffic != run.traffic:
            allowed = f"{there.traffic}, that of the baseline (make guard-baseline writes it anew)"
            raise InvalidInputError(f"traffic of {where}", run.traffic, allowed)
    places = dict.fromkeys((run.row, run.way) for run in mine)
    return Verdict(
        rows=tuple(
            _change([run for run in mine if (run.row, run.way) == place],
                    [run for run in before if (run.row, run.way) == place])
            for place in places
        )
    )  # fmt: skip


def _change(now: Sequence[Run], whole: Sequence[Run]) -> RowChange:
    seeds = {run.seed: run for run in now}
    same = [run for run in whole if run.seed in seeds]
    hours = [run.replica_hours for run in whole]
    return RowChange(
        row=now[0].row,
        way=now[0].way,
        now=mean_of(now),
        before=mean_of(same),
        share_deviation_points=_deviation([100.0 * run.share_ratio for run in whole]),
        price_deviation_ratio=_deviation(hours) / float(np.mean(hours)),
        unchanged=all(run.decisions == seeds[run.seed].decisions for run in same),
    )


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; 0 where one value says nothing about it."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def report(found: Verdict) -> Iterator[str]:
    """What moved, those that are lost first; the mean, and what fails."""
    for row in sorted(found.rows, key=lambda one: one.now.kept):
        if not row.unchanged:
            price = "" if row.price_ratio is None else f", price {100 * row.price_ratio:+.1f} %"
            yield f"{row.row}, {row.way}: {row.before} → {row.now}{price}"
    if found.unchanged:
        yield "unchanged: every decision is that of the baseline"
    else:
        yield f"mean over kept rows: price {100 * found.price_ratio:+.2f} %"
    yield from (f"FAIL {line}" for line in found.failures())


def read_runs(path: Path) -> list[Run]:
    """The runs of a baseline file.

    Raises: InvalidInputError where there is no such file, or it is no baseline.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [
            Run(row=row, way=way, seed=int(seed), share_ratio=float(share),
                replica_hours=float(hours), decisions=decisions, traffic=traffic)
            for row, ways in rows.items()
            for way, runs in ways.items()
            for seed, share, hours, decisions, traffic in runs
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        allowed = "a baseline that make guard-baseline wrote"
        raise InvalidInputError("baseline", str(path), allowed) from error


def written(runs: Sequence[Run], about: Mapping[str, str]) -> str:
    """A baseline as JSON, a line for each row and way. about: what it was made from."""
    rows: dict[str, dict[str, list[tuple[object, ...]]]] = {}
    for run in runs:
        rows.setdefault(run.row, {}).setdefault(run.way, []).append(astuple(run)[2:])
    lines = [
        f"  {json.dumps(row)}: {{\n"
        + ",\n".join(f"   {json.dumps(way)}: {json.dumps(of)}" for way, of in ways.items())
        + "\n  }"
        for row, ways in rows.items()
    ]
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in about.items())
    return f'{{\n{head} "rows": {{\n' + ",\n".join(lines) + "\n }\n}\n"
