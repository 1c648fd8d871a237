"""All runs of a plan, made or kept."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.matrix import (
    KEPT,
    LARGE,
    MINE,
    SMALL,
    Plan,
    cells_of,
    outcomes,
    scenario,
)
from tests.benchmarks.matrix_day import DAY_SEEDS, PERCENTILES, outcomes_of_days, scenario_of
from tests.benchmarks.matrix_gap import SOURCE, Gap, capacity, gap_of
from tests.benchmarks.matrix_offices import outcomes_of_offices
from tests.benchmarks.matrix_parts import outcomes_without, scenarios
from tests.benchmarks.matrix_search import CASES, SEED, Setting, near, searched

from servingslo_lab.sim.bounds import bound
from servingslo_lab.sim.kept import key_of, store
from servingslo_lab.sim.policies import ORACLE, OURS, policy_of
from servingslo_lab.sim.scenario import Cell, Scenario
from servingslo_lab.sim.scoring import interval
from servingslo_lab.sim.standard import SHARE_TARGET
from servingslo_lab.sim.summary import PolicySummary, summaries


class Findings:
    """All runs of a plan, by scenario, with the settings that were searched."""

    def __init__(self, plan: Plan, processes: int) -> None:
        self.plan = plan
        cells = cells_of(plan)
        # What the searched settings are held against, on their own seed.
        ours = [
            Cell(scenario=scenario(case, engine), policy=policy_of(name), seed=SEED,
                 with_timeline=False)
            for engine in (LARGE, SMALL) for case in CASES for name in MINE
        ]  # fmt: skip
        self.searched = searched()
        self.ours_searched = outcomes(ours, processes) if self.searched else []
        self.outcomes = outcomes(cells, processes)
        # A setting that was chosen for one seed has that seed's luck in it.
        self._near = outcomes(self._near_cells(), processes)
        # Parts of the planner are taken out on the first seeds alone, and days are long.
        first = plan.seeds[:2]
        self.without = outcomes_without(first)
        self.whole = outcomes(
            [Cell(scenario=where, policy=policy_of(OURS), seed=seed)
             for where in scenarios() for seed in first],
            processes,
        )  # fmt: skip
        self.days = outcomes_of_days(DAY_SEEDS)
        self.offices = outcomes_of_offices(processes)
        self.by_scenario = {
            where.name: summaries(
                [o for o in self.outcomes if o.scenario == where.name],
                dollars_per_hour=where.fleet.dollars_per_hour,
            )
            for where in plan.scenarios
        }
        self.bounds = {
            where.name: interval([_bound(where, seed) for seed in plan.seeds])
            for where in plan.scenarios
        }
        self.gaps = {
            where.name: _gaps(where, plan.seeds)
            for where in plan.scenarios
            if self.get(where.name, ORACLE) is not None
        }
        self.day_bounds = {
            percentile: interval(
                [_bound(scenario_of(percentile, seed), seed) for seed in DAY_SEEDS]
            )
            for percentile in PERCENTILES
        }

    def settings(self, where: str) -> list[Setting]:
        """Every searched setting of other rules on a scenario."""
        return [setting for setting in self.searched if setting.scenario == where]

    def near_settings(self, where: Scenario) -> list[PolicySummary]:
        """The searched settings that came near ours, on the seeds of the plan."""
        found = [o for o in self._near if o.scenario == where.name]
        return summaries(found, dollars_per_hour=where.fleet.dollars_per_hour)

    def _near_cells(self) -> list[Cell]:
        scores = [(o.scenario, o.score) for o in self.ours_searched if o.score is not None]
        return [
            Cell(scenario=where, policy=policy_of(text), seed=seed, with_timeline=False)
            for where in self.plan.scenarios
            for text in dict.fromkeys(
                setting.policy
                for name, mine in scores
                if name == where.name
                for setting in near(self.settings(where.name), mine.share_ratio, mine.replica_hours)
            )
            for seed in self.plan.seeds
        ]

    def get(self, where: str, policy: str) -> PolicySummary | None:
        """One policy on a scenario; None where it has no result."""
        return next((s for s in self.by_scenario[where] if s.policy == policy), None)


def strongest(found: Sequence[PolicySummary]) -> PolicySummary | None:
    """The cheapest peer that meets the target; else the one with the largest share."""
    peers = [s for s in found if not s.in_hindsight and not s.policy.startswith(OURS)]
    good = [s for s in peers if s.share_ratio.mean >= SHARE_TARGET]
    if good:
        return min(good, key=lambda s: s.replica_hours.mean)
    return max(peers, key=lambda s: s.share_ratio.mean, default=None)


def _gaps(where: Scenario, seeds: Sequence[int]) -> list[Gap]:
    """The fleets between bound and oracle with each seed; what a replica can take is kept."""
    cell = Cell(scenario=where, policy=policy_of(ORACLE), seed=seeds[0])
    sources = SOURCE.read_bytes() + Path(bound.__file__).read_bytes()
    source = hashlib.sha256(sources).hexdigest()[:16]
    path = KEPT / f"capacity-{key_of(cell)}-{source}.json"
    if path.exists():
        taken: float = json.loads(path.read_bytes())
    else:
        taken = capacity(where, seeds[0])
        store(path, json.dumps(taken).encode())
    return [gap_of(where, seed, taken) for seed in seeds]


def _bound(where: Scenario, seed: int) -> float:
    """Replica-hours that no schedule on this trace is below, kept beside the runs."""
    cell = Cell(scenario=where, policy=policy_of(ORACLE), seed=seed)
    source = hashlib.sha256(Path(bound.__file__).read_bytes()).hexdigest()[:16]
    path = KEPT / f"bound-{key_of(cell)}-{source}.json"
    if path.exists():
        known: float = json.loads(path.read_bytes())
        return known
    found = bound.least_replica_hours(where.fleet, where.trace(seed), where.objectives)
    store(path, json.dumps(found).encode())
    return found
