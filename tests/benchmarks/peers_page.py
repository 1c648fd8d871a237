"""The tables of docs/benchmarks-peers.md and the one of README, from docs/benchmarks/peers.csv."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from operator import itemgetter
from statistics import mean

from tests.benchmarks.matrix import ROOT
from tests.benchmarks.matrix_search import today
from tests.benchmarks.matrix_tables import table
from tests.benchmarks.peers import PeerRun, first_rows

from servingslo_lab.sim.peers import aibrix, dynamo, hpa, knative
from servingslo_lab.sim.policies import OURS, REAL
from servingslo_lab.sim.standard import SHARE_TARGET

DATA = ROOT / "docs" / "benchmarks" / "peers.csv"
PAGE, README = ROOT / "docs" / "benchmarks-peers.md", ROOT / "README.md"
BEGIN, END = "<!-- made by make benchmark-peers -->", "<!-- end -->"
TARGET_PERCENT = 100.0 * SHARE_TARGET
# README shows the recorded traffic, the rows that a peer wins, the least share of ours, and this.
USUAL_ROW = "h100 flash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A policy on a row, mean over the seeds, as the data have it."""

    row: str
    seeds: str
    policy: str
    in_slo_percent: float
    replica_hours: float
    version: str
    date: str

    @property
    def is_kept(self) -> bool:
        """Whether the promise is kept."""
        return self.in_slo_percent >= TARGET_PERCENT

    @property
    def rank(self) -> tuple[bool, float]:
        """The promise first, then the cost; of those that break it, the share."""
        return not self.is_kept, self.replica_hours if self.is_kept else -self.in_slo_percent

    @property
    def peer(self) -> str:
        """'hpa'; of ours its name."""
        return self.policy.removeprefix(f"{REAL}:").partition(":")[0]

    @property
    def text(self) -> str:
        """Share in SLO, % @ replica-hours (setting)."""
        setting = self.policy.partition("=")[2]
        shown = f"{self.in_slo_percent:.1f} @ {self.replica_hours:.1f}"
        return f"{shown} ({setting})" if setting else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """Ours, and every peer at its best in hindsight and at its defaults, each by rank."""

    ours: Line
    best: tuple[Line, ...]
    default: tuple[Line, ...]

    @property
    def winner(self) -> Line | None:
        """The cheapest of those that keep the promise; None if none does."""
        first = min((self.ours, *self.best), key=lambda line: line.rank)
        return first if first.is_kept else None

    @property
    def is_won_by_a_peer(self) -> bool:
        """Whether a peer at its best keeps the promise, and ours does not or costs more."""
        return self.winner not in {None, self.ours}


def store_runs(runs: Sequence[PeerRun]) -> None:
    """Put means over the seeds of these runs in place of the lines of the same row and peer."""
    new = lines_of(runs)
    made = {(line.row, line.peer) for line in new}
    kept = [line for line in stored() if (line.row, line.peer) not in made]
    with DATA.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Line)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, sorted((*kept, *new), key=lambda one: (one.row, one.policy))))


def stored() -> list[Line]:
    """Every line of the data."""
    with DATA.open(encoding="utf-8") as file:
        return [
            Line(
                in_slo_percent=float(row.pop("in_slo_percent")),
                replica_hours=float(row.pop("replica_hours")),
                **row,
            )
            for row in csv.DictReader(file)
        ]


def lines_of(runs: Sequence[PeerRun]) -> list[Line]:
    """A line for each policy on each row."""
    found = []
    runs = sorted(runs, key=lambda run: (run.row, run.policy, run.seed))
    for (row, policy), group in groupby(runs, key=lambda run: (run.row, run.policy)):
        of = list(group)
        found.append(
            Line(
                row=row,
                seeds="-".join(str(seed) for seed in dict.fromkeys((of[0].seed, of[-1].seed))),
                policy=policy,
                in_slo_percent=round(100.0 * mean(run.share_ratio for run in of), 2),
                replica_hours=round(mean(run.replica_hours for run in of), 2),
                version=version_of(policy.removeprefix(f"{REAL}:")),
                date=today(),
            )
        )
    return found


def version_of(peer: str) -> str:
    """What was driven; empty for ours."""
    known = {OURS: "", "hpa": hpa.VERSION, "aibrix": aibrix.VERSION, "knative": knative.VERSION}
    return known[name] if (name := re.split("[-:]", peer)[0]) in known else dynamo.sources()


def results(lines: Sequence[Line]) -> list[RowResult]:
    """Rows with ours: recorded traffic first, then those that a peer wins."""
    found = []
    for ours in (line for line in lines if line.policy == OURS):
        of = sorted((one for one in lines if one.row == ours.row), key=lambda one: one.rank)
        best: dict[str, Line] = {}
        for one in of:
            best.setdefault(one.peer, one)
        best.pop(OURS)
        default = tuple(one for one in of if one.policy == f"{REAL}:{one.peer}")
        found.append(RowResult(ours=ours, best=tuple(best.values()), default=default))
    first = [*first_rows()]

    def place(row: RowResult) -> tuple[int, bool]:
        name = row.ours.row
        return first.index(name) if name in first else len(first), not row.is_won_by_a_peer

    return sorted(found, key=place)


def page_tables(rows: Sequence[RowResult]) -> Iterator[str]:
    """Lines of the page between its marks."""
    known = {(one.date, one.version) for row in rows for one in row.best}
    for date, of in groupby(sorted(known), key=itemgetter(0)):
        yield f"- Run on {date}: {'; '.join(version for _, version in of)}."
    winners = [row.winner for row in rows]
    ours = sum(row.winner is row.ours for row in rows)
    yield ""
    yield (
        f"**Of {len(rows)} rows ours keeps {TARGET_PERCENT:g} % on"
        f" {sum(row.ours.is_kept for row in rows)}, for the least on {ours}; a peer at its best"
        f" does for the least on {sum(row.is_won_by_a_peer for row in rows)}, and no one keeps it"
        f" on {winners.count(None)}.**"
    )
    head = ["row", "seeds", OURS, f"peers that keep {TARGET_PERCENT:g} %, cheapest first", "others"]
    for title, best in (("its best setting on that very row", True), ("its defaults", False)):
        yield from ("", f"### At {title}", "")
        body = [[row.ours.row, row.ours.seeds, row.ours.text, *_peers(row, best=best)]
                for row in rows]  # fmt: skip
        yield from table([head, *body])


def _peers(row: RowResult, *, best: bool) -> tuple[str, str]:
    """Those that keep the promise, and the others; with a star those of fewer seeds."""
    lines = row.best if best else row.default
    texts = [f"{one.peer} {one.text}{'*' * (one.seeds != row.ours.seeds)}" for one in lines]
    kept = sum(one.is_kept for one in lines)
    return "; ".join(texts[:kept]) or "none", "; ".join(texts[kept:]) or "-"


def readme_table(rows: Sequence[RowResult]) -> Iterator[str]:
    """Ours, the HPA at its default here, and the best of the peers that ran with all seeds."""
    worst = min(rows, key=lambda row: row.ours.in_slo_percent)
    columns = "ServingSLO | our form of the HPA, at 100 | best peer of all seeds, in hindsight"
    yield from (f"| in SLO, % @ replica-hours (seeds) | {columns} |", "|---|---|---|---|")
    for row in rows:
        name, seeds = row.ours.row, row.ours.seeds
        if name in {*first_rows(), USUAL_ROW} or row is worst or row.is_won_by_a_peer:
            default = next(one.text for one in row.default if one.peer == "hpa")
            first = next(one for one in row.best if one.seeds == seeds)
            count = int(seeds[-2:]) - int(seeds[:2]) + 1
            yield f"| {name} ({count}) | {row.ours.text} | {default} | {first.peer} {first.text} |"


def write_page() -> None:
    """Write the tables between the marks of both pages."""
    rows = results(stored())
    for page, lines in ((PAGE, page_tables(rows)), (README, readme_table(rows))):
        text = page.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        shown = "".join(f"{line}\n" for line in ("", *lines, ""))
        page.write_text(f"{before}{BEGIN}\n{shown}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_page()
