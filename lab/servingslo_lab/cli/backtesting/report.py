"""The result of a backtest as data: what `-o json` prints, and what text and page are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo_lab.cli.backtesting.inputs import Inputs
from servingslo_lab.cli.backtesting.verdict import verdict
from servingslo_lab.sim.bounds.bound import least_replica_hours
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import ORACLE
from servingslo_lab.sim.scenario import Scenario
from servingslo_lab.sim.scoring import Score
from servingslo_lab.sim.summary import PolicySummary, summaries

_WORST_MINUTES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScore:
    """The score of one run; None where no count or schedule met the share."""

    policy: str
    seed: int
    score: Score | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstMinute:
    """A minute of one run in which the least share met the objectives. minute: from 0."""

    policy: str
    seed: int
    minute: int
    share_ratio: float
    offered_per_second: float
    ready_replicas: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestResult:
    """What a backtest found. Thresholds in seconds, None where there is no such objective.

    least_replica_hours: proven, below which no schedule meets the target at the engines' own
    limits; mean over seeds, None unless costs are set beside an oracle. past_seconds: how far back
    before the trace the planner, and nobody else, is told arrival rates. earlier_seconds: of the
    trace's own first part, which is not played. verdict: sentences.
    """

    trace: str
    request_count: int
    duration_seconds: float
    engine: str
    seeds: tuple[int, ...]
    ttft_seconds: float | None
    tpot_seconds: float | None
    latency_seconds: float | None
    target_share_ratio: float
    policies: tuple[PolicySummary, ...]
    least_replica_hours: float | None
    past_seconds: float
    earlier_seconds: float
    frontier: tuple[str, ...]
    without_solution: tuple[str, ...]
    worst_minutes: tuple[WorstMinute, ...]
    runs: tuple[SeedScore, ...]
    verdict: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A result with the runs it came from."""

    inputs: Inputs
    result: BacktestResult
    outcomes: tuple[Outcome, ...]


def report_of(inputs: Inputs, outcomes: Sequence[Outcome]) -> Report:
    """The report of these runs."""
    scenario = inputs.scenario
    objectives = scenario.objectives
    found = summaries(outcomes, dollars_per_hour=scenario.fleet.dollars_per_hour)
    known = {one.policy for one in found}
    result = BacktestResult(
        trace=scenario.trace_path,
        request_count=inputs.request_count,
        duration_seconds=inputs.duration_seconds,
        engine=_engine(scenario),
        seeds=inputs.seeds,
        ttft_seconds=_finite(objectives.ttft_seconds),
        tpot_seconds=_finite(objectives.tpot_seconds),
        latency_seconds=_finite(objectives.latency_seconds),
        target_share_ratio=objectives.share,
        policies=tuple(found),
        least_replica_hours=_least(inputs),
        past_seconds=0.0 if scenario.past is None else scenario.past.duration_seconds,
        earlier_seconds=scenario.skipped_seconds,
        frontier=tuple(one.policy for one in found if one.on_frontier and not one.in_hindsight),
        without_solution=tuple(p.label for p in inputs.policies if p.label not in known),
        worst_minutes=tuple(
            worst for one in found for worst in worst_minutes(outcomes, one.policy)
        ),
        runs=tuple(SeedScore(policy=o.policy, seed=o.seed, score=o.score) for o in outcomes),
        verdict=verdict(scenario, outcomes, found),
    )
    return Report(inputs=inputs, result=result, outcomes=tuple(outcomes))


def _engine(scenario: Scenario) -> str:
    if scenario.pools is None:
        return scenario.fleet.engine
    return ", ".join(f"{one.engine} for {name}" for name, one in scenario.pools.fleets.items())


def oracle_over_bound(result: BacktestResult) -> float | None:
    """What the oracle costs over the proven bound; None without an oracle."""
    oracle = next((one for one in result.policies if one.policy == ORACLE), None)
    if oracle is None or not result.least_replica_hours:
        return None
    return oracle.replica_hours.mean / result.least_replica_hours


def _least(inputs: Inputs) -> float | None:
    scenario = inputs.scenario
    if not inputs.against_oracle or scenario.fleet.dynamic_batching is not None:
        return None
    found = [
        least_replica_hours(scenario.fleet, scenario.trace(seed), scenario.objectives)
        for seed in inputs.seeds
    ]
    return sum(found) / len(found)


def worst_minutes(outcomes: Sequence[Outcome], policy: str) -> list[WorstMinute]:
    """The minutes of a policy that missed the most, over all seeds, worst first."""
    found = []
    for outcome in outcomes:
        if outcome.policy != policy or outcome.timeline is None:
            continue
        line = outcome.timeline
        for minute, share in enumerate(line.share_ratio):
            if share is None or share >= 1.0:
                continue
            found.append(
                WorstMinute(
                    policy=policy,
                    seed=outcome.seed,
                    minute=minute,
                    share_ratio=share,
                    offered_per_second=line.offered_per_second[minute],
                    ready_replicas=_ready_in(line.tick_seconds, line.ready, minute),
                )
            )
    return sorted(found, key=lambda worst: worst.share_ratio)[:_WORST_MINUTES]


def _ready_in(ticks: Sequence[float], ready: Sequence[int], minute: int) -> int | None:
    """The fewest replicas that were ready in the minute."""
    inside = [n for at, n in zip(ticks, ready, strict=True) if minute * 60 <= at < minute * 60 + 60]
    return min(inside, default=None)


def _finite(seconds: float) -> float | None:
    return seconds if seconds < float("inf") else None
