"""Several pools under one promise beside other ways to scale them.

    python -m tests.benchmarks.pools [--rows path-crowd] [--policies servingslo] [--seeds 6]

Prints a table: attained share, cost, and cost over the best static counts in hindsight of the same
seed. Runs are kept under `out/pools` by all that they depend on, so a stopped call goes on.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import mean

from tests.benchmarks.matrix import ROOT
from tests.benchmarks.simulator import CONVERSATION

from servingslo_lab.cli.backtesting.inputs import PATH_POLICIES, VARIANT_POLICIES
from servingslo_lab.sim.backtest import run
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import OPTIMUM, OURS, STATIC, policy_of
from servingslo_lab.sim.pools.cases import PATH_CASES, VARIANT_CASES
from servingslo_lab.sim.pools.fleet import AnyPools, PoolsSpec, VariantsSpec
from servingslo_lab.sim.scenario import Cell, Scenario
from servingslo_lab.sim.scoring import Score

KEPT = ROOT / "out" / "pools"
MOST_SEEDS = 6
LARGEST_RELATIVE_COST = 1.25
"""Cost over the best static counts in hindsight that the planner may have."""

_PATH = PoolsSpec(prefill=FleetSpec(engine="l4-small"), decode=FleetSpec(engine="l4-small"))
_LARGE_PATH = PoolsSpec(prefill=FleetSpec(engine="h100-8b"), decode=FleetSpec(engine="h100-8b"))
# The median prompt of the conversation: half of the requests go to decode directly.
_HALF_DIRECT = replace(_PATH, skip_prompt_tokens=1020)
_CARDS = {"h100": FleetSpec(engine="h100-8b"), "l4": FleetSpec(engine="l4-small")}
_SPLITS = {
    "by load": VariantsSpec(pools=_CARDS),
    "by pod": VariantsSpec(pools=_CARDS, routing=Routing.ROUND_ROBIN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One policy on one row, over its seeds.

    share_ratio, dollars: means. least_share_ratio: of all seeds. relative_cost: over the best
    static counts, mean and largest; None if none met the share.
    """

    row: str
    policy: str
    share_ratio: float
    least_share_ratio: float
    dollars: float
    relative_cost: tuple[float, float] | None


def scenarios(trace: Path = CONVERSATION) -> dict[str, Scenario]:
    """All rows: eight of prefill and decode, three of two cards under each split."""

    def one(name: str, case: str, pools: AnyPools) -> Scenario:
        first = next(iter(pools.fleets.values()))
        return Scenario(
            name=name, fleet=first, trace_path=str(trace), case=case, warm=True, pools=pools
        )

    rows = {case: one(case, case, _PATH) for case in PATH_CASES}
    name = "path-conversation half direct"
    rows[name] = one(name, "path-conversation", _HALF_DIRECT)
    rows["path-mix"] = one("path-mix", "path-mix", _LARGE_PATH)
    name = "path-mix 20 gpus"
    rows[name] = one(name, "path-mix", replace(_LARGE_PATH, gpu_quota=20))
    for case in VARIANT_CASES:
        for split, pools in _SPLITS.items():
            name = f"{case} {split}"
            rows[name] = one(name, case, pools)
    return rows


def cells_of(scenario: Scenario, policies: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """The runs of a row; the static counts are always among them. policies: empty for all."""
    on_a_path = isinstance(scenario.pools, PoolsSpec)
    known = PATH_POLICIES if on_a_path else (*VARIANT_POLICIES, OPTIMUM)
    chosen = [name for name in known if not policies or name in policies or name == STATIC]
    return [
        Cell(
            scenario=scenario, policy=policy_of(name), seed=seed,
            against_oracle=False, with_timeline=False,
        )
        for name in chosen
        for seed in seeds
    ]  # fmt: skip


def lines_of(outcomes: Sequence[Outcome]) -> Iterator[Line]:
    """A line for each row and policy with a score, in the order of the outcomes."""
    static = {
        (one.scenario, one.seed): dollars_of(one.score)
        for one in outcomes
        if one.policy == STATIC and one.score is not None
    }
    for (row, policy), group in groupby(outcomes, key=lambda one: (one.scenario, one.policy)):
        found = list(group)
        scores = [one.score for one in found if one.score is not None]
        if not scores:
            continue
        relative = [
            dollars_of(one.score) / static[row, one.seed]
            for one in found
            if one.score is not None and (row, one.seed) in static
        ]
        shares = [score.share_ratio for score in scores]
        yield Line(
            row=row,
            policy=policy,
            share_ratio=mean(shares),
            least_share_ratio=min(shares),
            dollars=mean(dollars_of(score) for score in scores),
            relative_cost=(mean(relative), max(relative)) if relative else None,
        )


def dollars_of(score: Score) -> float:
    """Dollars of all pools."""
    return sum(pool.dollars for pool in score.pools)


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The lines as Markdown."""
    yield "| row | policy | in SLO, % | least seed, % | $ | × static, mean | × static, most |"
    yield "|---|---|---|---|---|---|---|"
    for one in lines:
        relative = one.relative_cost
        over = "- | -" if relative is None else f"{relative[0]:.2f} | {relative[1]:.2f}"
        yield (
            f"| {one.row} | {one.policy} | {100 * one.share_ratio:.2f} | "
            f"{100 * one.least_share_ratio:.2f} | {one.dollars:.2f} | {over} |"
        )


def misses(lines: Sequence[Line], target: float) -> Iterator[str]:
    """Where the planner misses the target, or is too expensive; nothing without a static row."""
    for one in lines:
        if one.policy != OURS or one.relative_cost is None:
            continue
        if one.share_ratio < target:
            yield f"{one.row}: {100 * one.share_ratio:.2f} % in SLO"
        if one.relative_cost[0] > LARGEST_RELATIVE_COST:
            yield f"{one.row}: {one.relative_cost[0]:.2f} × the best static counts"


def main() -> None:
    """Run what is missing and print the table; ends with 1 where the planner misses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="words in their names, with commas; all without")
    parser.add_argument("--policies", default="", help="names, with commas between them")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, choices=range(1, MOST_SEEDS + 1))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kept", type=Path, default=KEPT)
    chosen = parser.parse_args()
    words = [word for word in chosen.rows.split(",") if word]
    policies = [name for name in chosen.policies.split(",") if name]
    rows = [
        row for name, row in scenarios().items() if not words or any(word in name for word in words)
    ]
    seeds = range(1, chosen.seeds + 1)
    cells = [cell for row in rows for cell in cells_of(row, policies, seeds)]
    chosen.kept.mkdir(parents=True, exist_ok=True)
    outcomes = run(
        cells,
        chosen.kept,
        processes=chosen.processes,
        done=lambda cell: _say(f"{cell.scenario.name}: {cell.policy.label}, seed {cell.seed}"),
    )
    lines = list(lines_of(outcomes))
    sys.stdout.write("\n".join(table(lines)) + "\n")
    found = list(misses(lines, rows[0].objectives.share)) if rows else []
    sys.stdout.write("".join(f"\nmissed: {one}" for one in found) + "\n" * bool(found))
    sys.exit(1 if found else 0)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
