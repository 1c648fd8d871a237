"""The benchmark: every policy on the standard cases, from `make benchmark`.

Runs are kept under `out/benchmark` by all that they depend on, so a second call goes on where one
stopped, and after a change makes only those runs again that the change can touch.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.backtest import run, runs_of
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import FORESIGHT, ORACLE, OURS, RULES, STATIC, Policy, policy_of
from servingslo_lab.sim.scenario import Cell, Scenario
from servingslo_lab.sim.standard import CASE_NAMES

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "examples" / "traces" / "azure_llm_2023_conversation.csv"
KEPT = ROOT / "out" / "benchmark"
LARGE, SMALL = "h100-8b", "l4-small"
COLD_START_SECONDS = 90.0
# One pod in two hours: on a fleet of fifteen, one failure every eight minutes.
FAILING_SECONDS = 7200.0
_TELL_EVERY = 20
VARIED_CASES = ("azure-conv", "ramp", "flash")


@dataclass(frozen=True)
class Plan:
    """What one call of the benchmark runs."""

    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]


def scenario(
    case: str,
    engine: str,
    *,
    cold_start_seconds: float = COLD_START_SECONDS,
    failing: bool = False,
    part: float = 1.0,
) -> Scenario:
    """A standard case on a card; its name says what differs from the standard."""
    fleet = FleetSpec(
        engine=engine,
        cold_start=ColdStart(mean_seconds=cold_start_seconds),
        mean_seconds_to_failure=FAILING_SECONDS if failing else None,
    )
    name = f"{engine.partition('-')[0]} {case}"
    if cold_start_seconds != COLD_START_SECONDS:
        name += f", cold start {cold_start_seconds:.0f} s"
    if failing:
        name += ", pods fail"
    return Scenario(name=name, fleet=fleet, trace_path=str(TRACE), case=case, part=part, warm=True)


def peers() -> tuple[str, ...]:
    """Every rule of others, at its defaults and at the settings that the search found."""
    return tuple(f"{rule}{kind}" for rule in RULES for kind in ("", ":tuned"))


def settings_of(rule: str) -> Iterator[str]:
    """Every setting of a rule's grid, as policies are written."""
    grid = RULES[rule].grid
    for values in product(*grid.values()):
        chosen = ",".join(f"{key}={v:g}" for key, v in zip(grid, values, strict=True))
        yield f"{rule}:{chosen}"


MINE = (OURS, f"{OURS}+knobs")
ALL_POLICIES = (ORACLE, STATIC, FORESIGHT, *MINE, *peers())


def small() -> Plan:
    """Eight cases that take the measure in half an hour of one core."""
    cases = [(SMALL, "flash"), (SMALL, "azure-conv"), (LARGE, "ramp"), (LARGE, "poisson"),
             (LARGE, "flash"), (LARGE, "azure-conv"), (LARGE, "diurnal"),
             (LARGE, "long-context")]  # fmt: skip
    return Plan(
        scenarios=tuple(scenario(case, engine) for engine, case in cases),
        seeds=(1, 2, 3),
        policies=ALL_POLICIES,
    )


def standard() -> Plan:
    """All cases on two cards; cold starts and failures one at a time on three traces."""
    found = [scenario(case, engine) for engine in (LARGE, SMALL) for case in CASE_NAMES]
    for case in VARIED_CASES:
        found += [scenario(case, SMALL, cold_start_seconds=s) for s in (30.0, 240.0)]
        found.append(scenario(case, SMALL, failing=True))
    return Plan(scenarios=tuple(found), seeds=(1, 2, 3), policies=ALL_POLICIES)


def full() -> Plan:
    """The whole product: cases, cards, cold starts, failures."""
    found = tuple(
        scenario(case, engine, cold_start_seconds=cold_start, failing=failing)
        for engine in (LARGE, SMALL)
        for case in CASE_NAMES
        for cold_start in (30.0, COLD_START_SECONDS, 240.0)
        for failing in (False, True)
    )
    return Plan(scenarios=found, seeds=(1, 2, 3), policies=ALL_POLICIES)


PLANS = {"small": small, "standard": standard, "full": full}


def cells_of(plan: Plan) -> list[Cell]:
    """The runs of a plan; a rule without tuned settings for a card is left out there."""
    return [
        Cell(scenario=where, policy=policy, seed=seed)
        for where in plan.scenarios
        for seed in plan.seeds
        for policy in _policies(plan.policies, where.fleet.engine)
    ]


def _policies(names: Sequence[str], engine: str) -> Iterator[Policy]:
    for name in names:
        try:
            yield policy_of(name, tuned_for=engine)
        except InvalidInputError:
            if not name.endswith(":tuned"):
                raise


class Counter:
    """Says on standard error how far the benchmark is."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, cell: Cell) -> None:
        """One more run is there."""
        self._done += 1
        if self._done % _TELL_EVERY and self._done != self._total:
            return
        place = f"{cell.scenario.name}, seed {cell.seed}, {cell.policy.label}"
        sys.stderr.write(f"[{self._done}/{self._total}] {place}\n")


def outcomes(cells: Sequence[Cell], processes: int) -> list[Outcome]:
    """The outcomes of these runs, those that are kept and new ones."""
    return run(cells, KEPT, processes=processes, done=Counter(runs_of(cells)))


def arguments() -> argparse.ArgumentParser:
    """What all commands of the benchmark take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", choices=PLANS, default="standard")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seeds", type=int, help="how many, instead of the plan's")
    parser.add_argument(
        "--policies",
        choices=("all", "others"),
        default="all",
        help="others: make and keep the runs that do not depend on the planner, write no page",
    )
    return parser


def plan_of(chosen: argparse.Namespace) -> Plan:
    """The plan that the command line asks for."""
    plan = PLANS[chosen.plan]()
    if chosen.seeds is not None:
        plan = replace(plan, seeds=tuple(range(1, chosen.seeds + 1)))
    if chosen.policies == "others":
        plan = replace(plan, policies=tuple(p for p in plan.policies if p not in MINE))
    return plan
