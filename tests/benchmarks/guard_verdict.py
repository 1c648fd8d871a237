"""What the guard says of runs beside those of the baseline: pure, and told in numbers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from servingslo.errors import InvalidInputError

MEAN_SHARE_POINTS = 0.3
"""Points of share in SLO that the mean over rows may lose."""
MEAN_COST_RATIO = 0.01
"""Replica-hours more, in the mean over rows."""
ROW_DEVIATIONS = 3.0
"""Of one row over its seeds: what lies further is no luck of the seed."""
# A row that always meets its objectives hardly differs between seeds, and then every change would
# be three deviations: what is less than these is not seen by anybody who pays for it.
LEAST_SHARE_DEVIATION_POINTS, LEAST_COST_DEVIATION_RATIO = 0.1, 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row with one seed.

    share_ratio: of all requests, in SLO. decisions: digest of what was decided. traffic: digest of
    the requests.
    """

    row: str
    seed: int
    share_ratio: float
    replica_hours: float
    decisions: str
    traffic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One row now and in the baseline, both over the same seeds.

    share_deviation_points, cost_deviation_ratio: one standard deviation over all seeds of the
    baseline; of cost relative to its mean. unchanged: every decision with every seed is the same.
    """

    row: str
    share_percent: float
    share_before_percent: float
    replica_hours: float
    replica_hours_before: float
    share_deviation_points: float
    cost_deviation_ratio: float
    unchanged: bool

    @property
    def share_points(self) -> float:
        """Points of share gained; negative where they are lost."""
        return self.share_percent - self.share_before_percent

    @property
    def cost_ratio(self) -> float:
        """Replica-hours more, relative; negative where they are saved."""
        return self.replica_hours / self.replica_hours_before - 1.0

    def failures(self) -> Iterator[str]:
        """What is worse than the luck of seeds explains."""
        allowed = ROW_DEVIATIONS * max(self.share_deviation_points, LEAST_SHARE_DEVIATION_POINTS)
        if -self.share_points >= allowed:
            yield (
                f"{self.row}: share {self.share_before_percent:.2f} % → {self.share_percent:.2f} %,"
                f" {-self.share_points:.2f} points lost of {allowed:.2f} allowed"
            )
        more = ROW_DEVIATIONS * max(self.cost_deviation_ratio, LEAST_COST_DEVIATION_RATIO)
        if self.cost_ratio >= more:
            yield (
                f"{self.row}: {self.replica_hours_before:.2f} → {self.replica_hours:.2f} "
                f"replica-hours, {100 * self.cost_ratio:.1f} % more of {100 * more:.1f} % allowed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All rows that were run."""

    rows: tuple[RowChange, ...]

    @property
    def share_points(self) -> float:
        """Of the mean over rows."""
        return float(np.mean([row.share_points for row in self.rows]))

    @property
    def cost_ratio(self) -> float:
        """Of the mean over rows, each relative to itself."""
        return float(np.mean([row.cost_ratio for row in self.rows]))

    @property
    def unchanged(self) -> bool:
        """Whether every decision is what it was."""
        return all(row.unchanged for row in self.rows)

    def failures(self) -> tuple[str, ...]:
        """Why the guard fails; nothing where it holds."""
        found: list[str] = []
        if -self.share_points >= MEAN_SHARE_POINTS:
            found.append(
                f"mean over rows: {-self.share_points:.2f} points of share lost "
                f"of {MEAN_SHARE_POINTS} allowed"
            )
        if self.cost_ratio >= MEAN_COST_RATIO:
            found.append(
                f"mean over rows: {100 * self.cost_ratio:.2f} % more replica-hours "
                f"of {100 * MEAN_COST_RATIO:.0f} % allowed"
            )
        return (*found, *(line for row in self.rows for line in row.failures()))


def verdict(now: Sequence[Run], before: Sequence[Run]) -> Verdict:
    """These runs beside those of the baseline with the same rows and seeds.

    Raises: InvalidInputError for a run that the baseline does not have, or that was played other
    traffic.
    """
    known = {(run.row, run.seed): run for run in before}
    for run in now:
        there = known.get((run.row, run.seed))
        if there is None:
            allowed = "rows and seeds of the baseline (make guard-baseline writes it anew)"
            raise InvalidInputError("run", f"{run.row}, seed {run.seed}", allowed)
        if there.traffic != run.traffic:
            allowed = f"{there.traffic}, that of the baseline (make guard-baseline writes it anew)"
            raise InvalidInputError(f"traffic of {run.row}, seed {run.seed}", run.traffic, allowed)
    names = dict.fromkeys(run.row for run in now)
    return Verdict(
        rows=tuple(_change(name, [run for run in now if run.row == name], before) for name in names)
    )


def _change(name: str, now: Sequence[Run], before: Sequence[Run]) -> RowChange:
    whole = [run for run in before if run.row == name]
    seeds = {run.seed: run for run in now}
    same = [run for run in whole if run.seed in seeds]
    return RowChange(
        row=name,
        share_percent=100.0 * _mean([run.share_ratio for run in now]),
        share_before_percent=100.0 * _mean([run.share_ratio for run in same]),
        replica_hours=_mean([run.replica_hours for run in now]),
        replica_hours_before=_mean([run.replica_hours for run in same]),
        share_deviation_points=100.0 * _deviation([run.share_ratio for run in whole]),
        cost_deviation_ratio=_deviation([run.replica_hours for run in whole])
        / _mean([run.replica_hours for run in whole]),
        unchanged=all(run.decisions == seeds[run.seed].decisions for run in same),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; 0 where one value says nothing about it."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def told(found: Verdict) -> Iterator[str]:
    """The verdict, a line for each row, then the mean, then what fails."""
    for row in found.rows:
        if row.unchanged:
            yield f"{row.row:<24} {row.share_percent:6.2f} % @ {row.replica_hours:6.2f} h unchanged"
        else:
            yield (
                f"{row.row:<24} {row.share_percent:6.2f} % @ {row.replica_hours:6.2f} h, "
                f"share {row.share_points:+.2f} (sd {row.share_deviation_points:.2f}), "
                f"cost {100 * row.cost_ratio:+.1f} % (sd {100 * row.cost_deviation_ratio:.1f} %)"
            )
    if found.unchanged:
        yield "unchanged: every decision is that of the baseline"
    else:
        yield f"mean: share {found.share_points:+.2f}, cost {100 * found.cost_ratio:+.2f} %"
    yield from (f"FAIL {line}" for line in found.failures())


def read_runs(path: Path) -> list[Run]:
    """The runs of a baseline file.

    Raises: InvalidInputError where there is no such file, or it is no baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return [
            Run(row=name, **run) for name, row in document["rows"].items() for run in row["runs"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        allowed = "a baseline that make guard-baseline wrote"
        raise InvalidInputError("baseline", str(path), allowed) from error


def written(runs: Sequence[Run], about: Mapping[str, str]) -> str:
    """A baseline as JSON: of each row mean and deviation over seeds, and its runs.

    about: what it was made from.
    """
    rows: dict[str, object] = {}
    for name in dict.fromkeys(run.row for run in runs):
        chosen = [run for run in runs if run.row == name]
        shares = [100.0 * run.share_ratio for run in chosen]
        hours = [run.replica_hours for run in chosen]
        listed = [{k: v for k, v in asdict(run).items() if k != "row"} for run in chosen]
        rows[name] = {
            "share_percent": {"mean": _mean(shares), "sd": _deviation(shares)},
            "replica_hours": {"mean": _mean(hours), "sd": _deviation(hours)},
            "runs": listed,
        }
    return json.dumps({**about, "rows": rows}, indent=1) + "\n"
