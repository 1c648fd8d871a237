"""The outcome of a run: its score, the fleet over time, and the planner's decisions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from servingslo.explain.log_line import log_line
from servingslo.policy.decision import Decision
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.scenario import Cell
from servingslo_lab.sim.scoring import Objectives, Score, score

_MINUTE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine:
    """One decision of the planner, in short. text: its line in the operator's log.

    pool: its pool, if there are several.
    """

    time_seconds: float
    before: int | None
    after: int | None
    reason: str
    binding: str | None
    rate_per_second: float | None
    planned_rate_per_second: float | None
    text: str
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLine:
    """One of several pools at each tick."""

    name: str
    ready: tuple[int, ...]
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run over time. Per minute: requests per second, share in SLO, TTFT; per tick: the fleet.

    None means no value: a minute without requests, an infinite percentile.
    pools: set if there are several; the other columns are then sums.
    """

    offered_per_second: tuple[float, ...]
    share_ratio: tuple[float | None, ...]
    ttft_p99_seconds: tuple[float | None, ...]
    tick_seconds: tuple[float, ...]
    desired: tuple[int, ...]
    ready: tuple[int, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    decisions: tuple[DecisionLine, ...] = ()
    pools: tuple[PoolLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a cell; score None if no setting meets the share (hindsight only)."""

    scenario: str
    policy: str
    seed: int
    score: Score | None
    timeline: Timeline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleOutcome:
    """The oracle of a scenario and seed, with the values that later runs need."""

    replicas: tuple[int, ...]
    outcome: Outcome


def outcome_of(
    cell: Cell,
    result: RunResult,
    oracle_hours: float | None,
    decisions: Sequence[Decision],
    *,
    dollars_per_hour: float | None = None,
) -> Outcome:
    """The outcome of a run; oracle_hours: the oracle's cost, None to omit it.

    dollars_per_hour: price of a replica; None for the fleet's price.
    """
    scenario = cell.scenario
    price = scenario.fleet.dollars_per_hour if dollars_per_hour is None else dollars_per_hour
    return Outcome(
        scenario=scenario.name,
        policy=cell.policy.label,
        seed=cell.seed,
        score=score(
            result,
            scenario.objectives,
            dollars_per_hour=price,
            oracle_hours=oracle_hours,
        ),
        timeline=_timeline(result, scenario.objectives, decisions) if cell.with_timeline else None,
    )


def nothing_found(cell: Cell) -> Outcome:
    """The outcome if no schedule meets the share."""
    return Outcome(
        scenario=cell.scenario.name,
        policy=cell.policy.label,
        seed=cell.seed,
        score=None,
        timeline=None,
    )


def _timeline(result: RunResult, objectives: Objectives, decisions: Sequence[Decision]) -> Timeline:
    shares = objectives.minutes_of(result)
    minute = (result.arrival_seconds // _MINUTE_SECONDS).astype(np.int64)
    count = len(shares)
    lasted = np.full(count, _MINUTE_SECONDS)
    # A short last minute has its own rate.
    lasted[-1] = max(result.duration_seconds - (count - 1) * _MINUTE_SECONDS, 1.0)
    offered = np.bincount(minute, minlength=count)[:count] / lasted
    slow: list[float | None] = []
    for place in range(count):
        values = result.ttft_seconds[minute == place]
        worst = float(np.quantile(values, 0.99, method="higher")) if len(values) else np.inf
        slow.append(worst if np.isfinite(worst) else None)
    ticks = result.ticks
    return Timeline(
        offered_per_second=tuple(float(value) for value in offered),
        share_ratio=tuple(None if np.isnan(s) else float(s) for s in shares),
        ttft_p99_seconds=tuple(slow),
        tick_seconds=tuple(tick.time_seconds for tick in ticks),
        desired=tuple(tick.desired for tick in ticks),
        ready=tuple(tick.ready for tick in ticks),
        running=tuple(tick.running for tick in ticks),
        waiting=tuple(tick.waiting for tick in ticks),
        decisions=tuple(told(decisions)),
    )


def told(decisions: Sequence[Decision]) -> Iterator[DecisionLine]:
    """The decisions with a change or a new reason."""
    last = None
    for d in decisions:
        if d.replicas_before != d.replicas_after or d.reason is not last:
            yield DecisionLine(
                time_seconds=d.time_seconds,
                before=d.replicas_before,
                after=d.replicas_after,
                reason=d.reason.value,
                binding=None if d.binding is None else d.binding.value,
                rate_per_second=d.demand.arrival_rate_per_second,
                planned_rate_per_second=d.demand.forecast_rate_per_second,
                text=log_line(d),
            )
        last = d.reason
