"""What the guard says of runs beside those of the baseline: pure, in numbers.

The promise comes first. The price of a row is its replica-hours, and a tenth of them more for each
point of share that is missing to its target; nothing is earned above the target. Where the target
is out of reach even for a rule with foresight of the mean of demand, that rule's share is the
target.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from servingslo.errors import InvalidInputError

TARGET_PERCENT = 99.0
"""Share of requests that all rows declare."""
PRICE_OF_A_POINT = 0.10
"""Of the replica-hours, for each point of share below the target."""
MEAN_PRICE_RATIO = 0.01
"""Price more, in the mean over rows."""
ROW_DEVIATIONS = 3.0
"""Of one row over its seeds: what lies further is no luck of the seed."""
# A row that always meets its objectives hardly differs between seeds, and then every change would
# be three deviations: what is less than this is not seen by anybody who pays for it.
LEAST_DEVIATION_RATIO = 0.005


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
class Foresight:
    """What a rule that knows the mean of demand one cold start ahead reaches on a row."""

    share_percent: float
    replica_hours: float


def price(share_percent: float, replica_hours: float, target_percent: float) -> float:
    """Replica-hours with what is missing to the target."""
    missing = max(target_percent - share_percent, 0.0)
    return replica_hours * (1.0 + PRICE_OF_A_POINT * missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One row now and in the baseline, both over the same seeds.

    price_deviation_ratio: one standard deviation over all seeds of the baseline, relative to the
    mean. foresight: None where it was not looked for. unchanged: every decision with every seed is
    the same.
    """

    row: str
    share_percent: float
    share_before_percent: float
    replica_hours: float
    replica_hours_before: float
    price: float
    price_before: float
    price_deviation_ratio: float
    foresight: Foresight | None
    unchanged: bool

    @property
    def target_percent(self) -> float:
        """The share that is asked of this row."""
        return target_of(self.foresight)

    @property
    def price_ratio(self) -> float:
        """Price more, relative; negative where the row is better."""
        return self.price / self.price_before - 1.0

    def failures(self) -> Iterator[str]:
        """What is worse than the luck of seeds explains."""
        allowed = ROW_DEVIATIONS * max(self.price_deviation_ratio, LEAST_DEVIATION_RATIO)
        if self.price_ratio >= allowed:
            yield (
                f"{self.row}: {self.share_before_percent:.2f} % @ {self.replica_hours_before:.2f} h"
                f" → {self.share_percent:.2f} % @ {self.replica_hours:.2f} h, price "
                f"{100 * self.price_ratio:+.1f} % of {100 * allowed:.1f} % allowed"
            )


def target_of(foresight: Foresight | None) -> float:
    """The declared share, or what foresight reaches where that is less."""
    if foresight is None:
        return TARGET_PERCENT
    return min(TARGET_PERCENT, foresight.share_percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All rows that were run."""

    rows: tuple[RowChange, ...]

    @property
    def price_ratio(self) -> float:
        """Of the mean over rows, each relative to itself."""
        return float(np.mean([row.price_ratio for row in self.rows]))

    @property
    def kept(self) -> int:
        """Rows that reach their target."""
        return sum(row.share_percent >= row.target_percent for row in self.rows)

    @property
    def unchanged(self) -> bool:
        """Whether every decision is what it was."""
        return all(row.unchanged for row in self.rows)

    def failures(self) -> tuple[str, ...]:
        """Why the guard fails; nothing where it holds."""
        found: list[str] = []
        if self.price_ratio >= MEAN_PRICE_RATIO:
            found.append(
                f"mean over rows: price {100 * self.price_ratio:+.2f} % "
                f"of {100 * MEAN_PRICE_RATIO:.0f} % allowed"
            )
        return (*found, *(line for row in self.rows for line in row.failures()))


def verdict(
    now: Sequence[Run], before: Sequence[Run], foresights: Mapping[str, Foresight]
) -> Verdict:
    """These runs beside those of the baseline with the same rows and seeds.

    foresights: by row, as far as they were looked for.
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
        rows=tuple(
            _change(name, [run for run in now if run.row == name], before, foresights.get(name))
            for name in names
        )
    )


def _change(
    name: str, now: Sequence[Run], before: Sequence[Run], foresight: Foresight | None
) -> RowChange:
    whole = [run for run in before if run.row == name]
    seeds = {run.seed: run for run in now}
    same = [run for run in whole if run.seed in seeds]
    target = target_of(foresight)
    prices = _prices(whole, target)
    return RowChange(
        row=name,
        share_percent=100.0 * _mean([run.share_ratio for run in now]),
        share_before_percent=100.0 * _mean([run.share_ratio for run in same]),
        replica_hours=_mean([run.replica_hours for run in now]),
        replica_hours_before=_mean([run.replica_hours for run in same]),
        price=_mean(_prices(now, target)),
        price_before=_mean(_prices(same, target)),
        price_deviation_ratio=_deviation(prices) / _mean(prices),
        foresight=foresight,
        unchanged=all(run.decisions == seeds[run.seed].decisions for run in same),
    )


def _prices(runs: Sequence[Run], target_percent: float) -> list[float]:
    return [price(100.0 * run.share_ratio, run.replica_hours, target_percent) for run in runs]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; 0 where one value says nothing about it."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def report(found: Verdict) -> Iterator[str]:
    """The verdict: rows that miss their target first, then the others, the mean, and what fails."""
    for row in sorted(found.rows, key=lambda one: one.share_percent >= one.target_percent):
        missed = row.share_percent < row.target_percent
        line = (
            f"{'MISSED' if missed else 'kept':<7} {row.row:<36} {row.share_percent:6.2f} % "
            f"@ {row.replica_hours:6.2f} h"
        )
        if row.unchanged:
            line += ", unchanged"
        else:
            line += (
                f", before {row.share_before_percent:.2f} % @ {row.replica_hours_before:.2f} h, "
                f"price {100 * row.price_ratio:+.1f} % (sd {100 * row.price_deviation_ratio:.1f} %)"
            )
        if missed and row.foresight is not None:
            line += (
                f"; foresight of the mean {row.foresight.share_percent:.2f} % "
                f"@ {row.foresight.replica_hours:.2f} h"
            )
        yield line
    yield f"{found.kept} of {len(found.rows)} rows reach their target"
    if found.unchanged:
        yield "unchanged: every decision is that of the baseline"
    else:
        yield f"mean: price {100 * found.price_ratio:+.2f} %"
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


def read_foresights(path: Path) -> dict[str, Foresight]:
    """What foresight reaches, by row, of a baseline file that `read_runs` reads."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {
        name: Foresight(**row["foresight"]) for name, row in rows.items() if row.get("foresight")
    }


def written(
    runs: Sequence[Run], foresights: Mapping[str, Foresight], about: Mapping[str, str]
) -> str:
    """A baseline as JSON: of each row mean and deviation over seeds, and its runs.

    about: what it was made from.
    """
    rows: dict[str, object] = {}
    for name in dict.fromkeys(run.row for run in runs):
        chosen = [run for run in runs if run.row == name]
        shares = [100.0 * run.share_ratio for run in chosen]
        hours = [run.replica_hours for run in chosen]
        listed = [{k: v for k, v in asdict(run).items() if k != "row"} for run in chosen]
        foresight = foresights.get(name)
        rows[name] = {
            "share_percent": {"mean": _mean(shares), "sd": _deviation(shares)},
            "replica_hours": {"mean": _mean(hours), "sd": _deviation(hours)},
            "foresight": None if foresight is None else asdict(foresight),
            "runs": listed,
        }
    return json.dumps({**about, "rows": rows}, indent=1) + "\n"
