"""The tables of docs/benchmarks-peers.md and the one of README, from the runs that are kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from tests.benchmarks.matrix import ROOT
from tests.benchmarks.peers import PeerRun, settings_of

from servingslo_lab.sim.peers import aibrix, dynamo, hpa, knative
from servingslo_lab.sim.policies import OURS, REAL, REAL_RULES
from servingslo_lab.sim.standard import SHARE_TARGET

PAGE, README = ROOT / "docs" / "benchmarks-peers.md", ROOT / "README.md"
BEGIN, END = "<!-- made by make benchmark-peers -->", "<!-- end -->"
# README shows the rows that a peer wins, the least share of ours, and these two of the page: the
# recorded conversation, and a crowd.
USUAL_ROWS = ("h100 azure-conv", "h100 flash")
_PERCENT = 100.0
# Of the replica-hours, for each point of share below the target.
PRICE_OF_A_POINT = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A policy on a row, mean over the seeds."""

    policy: str
    seeds: tuple[int, ...]
    share_ratio: float
    replica_hours: float

    @property
    def price(self) -> float:
        """Replica-hours and the shortfall; share above the target earns nothing."""
        missing = _PERCENT * max(SHARE_TARGET - self.share_ratio, 0.0)
        return self.replica_hours * (1.0 + PRICE_OF_A_POINT * missing)

    @property
    def text(self) -> str:
        """Share in SLO, % @ replica-hours."""
        return f"{_PERCENT * self.share_ratio:.1f} @ {self.replica_hours:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """Ours and every peer on a row; best: in hindsight, of peers whose whole grid was run."""

    row: str
    ours: Mean
    defaults: dict[str, Mean]
    best: dict[str, Mean]

    @property
    def is_won_by_a_peer(self) -> bool:
        """Whether one at its best has the lower price and, up to the target, no smaller share.

        By the price alone a fleet that is released wins in the worst crowds.
        """
        least = min(self.ours.share_ratio, SHARE_TARGET)
        return any(
            one.price < self.ours.price and one.share_ratio >= least for one in self.best.values()
        )


def best_of(means: Sequence[Mean]) -> Mean:
    """Of those that reach the target the one with the fewest hours; else the largest share."""
    reached = [one for one in means if one.share_ratio >= SHARE_TARGET]
    if reached:
        return min(reached, key=lambda one: one.replica_hours)
    return max(means, key=lambda one: one.share_ratio)


def results(runs: Sequence[PeerRun]) -> list[RowResult]:
    """Rows with ours, on the seeds that ours was run with; won by a peer first."""
    found = []
    for row in dict.fromkeys(run.row for run in runs):
        here = [run for run in runs if run.row == row]
        seeds = tuple(run.seed for run in here if run.policy == OURS)
        if not seeds:
            continue
        ours = _mean(here, OURS, seeds)
        assert ours is not None
        defaults, best = {}, {}
        for peer in REAL_RULES:
            means = [_mean(here, one, seeds) for one in settings_of(peer)]
            known = [mean for mean in means if mean is not None]
            if means[0] is not None:
                defaults[peer] = means[0]
            if len(known) == len(means):
                best[peer] = best_of(known)
        found.append(RowResult(row=row, ours=ours, defaults=defaults, best=best))
    return sorted(found, key=lambda one: not one.is_won_by_a_peer)


def _mean(runs: Sequence[PeerRun], policy: str, seeds: Sequence[int]) -> Mean | None:
    """None unless the policy was run with all of these seeds."""
    of = {run.seed: run for run in runs if run.policy == policy}
    if any(seed not in of for seed in seeds):
        return None
    chosen = [of[seed] for seed in seeds]
    return Mean(
        policy=policy,
        seeds=tuple(seeds),
        share_ratio=float(np.mean([run.share_ratio for run in chosen])),
        replica_hours=float(np.mean([run.replica_hours for run in chosen])),
    )


def page_tables(rows: Sequence[RowResult]) -> Iterator[str]:
    """Lines of the page between its marks."""
    yield f"Versions: {'; '.join(versions())}."
    for title, of in (
        ("At its best setting on that very row", lambda row: row.best),
        ("At its defaults", lambda row: row.defaults),
    ):
        peers = [peer for peer in REAL_RULES if any(peer in of(row) for row in rows)]
        names = [peer.removeprefix(f"{REAL}:") for peer in peers]
        yield from ("", f"### {title}", "")
        yield f"| row | seeds | servingslo | {' | '.join(names)} |"
        yield "|" + "---|" * (len(names) + 3)
        for row in rows:
            cells = [_cell(of(row).get(peer)) for peer in peers]
            seeds = _range(row.ours.seeds)
            yield f"| {row.row} | {seeds} | {row.ours.text} | {' | '.join(cells)} |"


def _range(seeds: Sequence[int]) -> str:
    """Seeds that follow each other: '61' or '61-66'."""
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"


def _cell(mean: Mean | None) -> str:
    if mean is None:
        return "not run"
    setting = mean.policy.removeprefix(f"{REAL}:").partition(":")[2].partition("=")[2]
    return f"{mean.text} ({setting})" if setting else mean.text


def versions() -> list[str]:
    """What was driven."""
    found = []
    for name in dynamo.DISTRIBUTIONS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} not installed here")
    return [*found, aibrix.VERSION, knative.VERSION, hpa.VERSION]


def strongest(rows: Sequence[RowResult]) -> str | None:
    """The peer that at its best reaches the target on the most rows; None without one.

    Then the one with the larger mean share, above the target not counted, then the cheapest. Only
    of peers that were run on every row.
    """
    peers = [peer for peer in REAL_RULES if rows and all(peer in row.best for row in rows)]

    def rank(peer: str) -> tuple[int, float, float]:
        shares = [min(row.best[peer].share_ratio, SHARE_TARGET) for row in rows]
        costs = [row.best[peer].replica_hours / row.ours.replica_hours for row in rows]
        reached = sum(share == SHARE_TARGET for share in shares)
        return -reached, -float(np.mean(shares)), float(np.mean(costs))

    return min(peers, key=rank, default=None)


def readme_table(rows: Sequence[RowResult]) -> Iterator[str]:
    """Ours and the strongest peer, on some rows on which a peer's whole grid was run.

    Those that a peer wins come first, then our least share and the usual rows.
    """
    whole = [row for row in rows if row.best]
    peer = strongest(whole)
    if peer is None:
        return
    name = peer.removeprefix(f"{REAL}:")
    yield (
        f"| in SLO, % @ replica-hours (seeds) | ServingSLO |"
        f" {name}, at its defaults | at its best on that row |"
    )
    yield "|---|---|---|---|"
    worst = min(whole, key=lambda row: row.ours.share_ratio)
    chosen = [row for row in whole if row.is_won_by_a_peer or row is worst]
    chosen += [row for row in whole if row.row in USUAL_ROWS and row not in chosen]
    for row in chosen:
        label, default, best = f"{row.row} ({len(row.ours.seeds)})", row.defaults, row.best
        yield f"| {label} | {row.ours.text} | {default[peer].text} | {_cell(best[peer])} |"


def write_page(runs: Sequence[PeerRun]) -> None:
    """Write the tables between the marks of both pages."""
    rows = results(runs)
    for page, lines in ((PAGE, page_tables(rows)), (README, readme_table(rows))):
        text = page.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n{_joined(lines)}{END}{after}", encoding="utf-8")


def _joined(lines: Iterator[str]) -> str:
    """Lines of Markdown; an empty one before the closing mark, so that a table ends."""
    return "".join(f"{line}\n" for line in ("", *lines, ""))
