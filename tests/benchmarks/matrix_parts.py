"""What each part of the planner is worth: the same runs with one part taken out.

A stage is left out of the tuple that a planner is made with. What is no stage is taken out from
outside while a run lasts, so that the planner has no switches for it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import TypeAdapter
from tests.benchmarks.matrix import KEPT, LARGE, SMALL, VARIED_CASES, scenario

from servingslo.estimation import estimator
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.forecast.demand import Forecast
from servingslo.models.fleet import frontier
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.replicas import demand
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.sizing import SizingCase
from servingslo.policy.rules import requirement
from servingslo.policy.rules.guards import Guard, check_step_down
from servingslo.policy.stages import STAGES, Learner, Stages, calibrate
from servingslo.records import record
from servingslo_lab.sim import production
from servingslo_lab.sim.backtest import oracle_of
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.kept import key_of, store
from servingslo_lab.sim.outcome import Outcome, outcome_of
from servingslo_lab.sim.policies import OURS, policy_of
from servingslo_lab.sim.scenario import Cell, Scenario, autoscaler_of, fleet_of

MEDIAN = 50.0
GREATEST_UTILIZATION = 0.95
_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)

Taken = Callable[[ExitStack], None]


@record(frozen=True, slots=True, kw_only=True)
class PresentForecast(Forecast):
    """What is known of the rate now, at whatever lead."""

    def mean_per_second(self, _lead_seconds: float) -> float:
        """Expected rate now."""
        return Forecast.mean_per_second(self, 0.0)

    def quantile_per_second(self, _lead_seconds: float, probability: float) -> float:
        """Quantile of the rate now."""
        return Forecast.quantile_per_second(self, 0.0, probability)


def _estimates(change: Callable[[Estimate], Estimate]) -> Taken:
    inner = estimator.update

    def update(state: EstimatorState, sample: FleetSample) -> tuple[EstimatorState, Estimate]:
        state, estimate = inner(state, sample)
        return state, change(estimate)

    return lambda stack: _put(stack, estimator, "update", update)


def _put(stack: ExitStack, module: Any, name: str, value: object) -> None:
    stack.enter_context(patch.object(module, name, value))


def _present(estimate: Estimate) -> Estimate:
    known = estimate.forecast
    fields = {name: getattr(known, name) for name in Forecast.__dataclass_fields__}
    return replace(estimate, forecast=PresentForecast(**fields))


def _without_quantile(stack: ExitStack) -> None:
    _put(stack, demand, "planned_probability", lambda *_: MEDIAN / 100.0)
    _put(stack, demand, "step_down_probability", lambda *_: MEDIAN / 100.0)


def _left_out(one: Learner | Guard) -> Taken:
    """A stage less, where a planner is made."""
    stages = Stages(
        learners=tuple(stage for stage in STAGES.learners if stage is not one),
        guards=tuple(stage for stage in STAGES.guards if stage is not one),
    )
    return lambda stack: _put(stack, production, "STAGES", stages)


def _by_means(stack: ExitStack) -> None:
    def seconds(prediction: Prediction, metric: LatencyMetric, _percentile: float) -> float:
        if metric is LatencyMetric.TPOT:
            return prediction.itl_mean_seconds
        return prediction.ttft_seconds(MEDIAN)

    _put(stack, frontier, "metric_seconds", seconds)


def _without_ceiling(stack: ExitStack) -> None:
    inner = requirement.sizing_case

    def case(context: TickContext, prepared: PreparedModel) -> SizingCase:
        return replace(inner(context, prepared), utilization_target_ratio=GREATEST_UTILIZATION)

    _put(stack, requirement, "sizing_case", case)


def _by_means_alone(stack: ExitStack) -> None:
    _without_ceiling(stack)
    _by_means(stack)


PARTS: Mapping[str, tuple[Taken, str]] = {
    "forecast": (_estimates(_present), "the plan is for the present rate, with its uncertainty"),
    "quantile": (_without_quantile, "the plan is for the median of demand, in calm and in crowds"),
    "N − 1": (_left_out(check_step_down), "steps down are not checked against future demand"),
    "percentiles": (_by_means, "TPOT is sized by its mean, TTFT by its median"),
    "ceiling": (
        _without_ceiling,
        f"the utilization ceiling is {GREATEST_UTILIZATION:g} whatever demand did",
    ),
    "ceiling and percentiles": (_by_means_alone, "both, as in rules that size by means"),
    "calibration": (_left_out(calibrate), "the laws are not corrected by observed latencies"),
    "backlog": (
        lambda stack: _put(stack, demand, "_backlog_at_lead", lambda *_, **__: 0.0),
        "no replicas are ordered to drain the queue",
    ),
}


@contextmanager
def without(part: str) -> Iterator[None]:
    """The planner without one of PARTS, as long as the block lasts."""
    with ExitStack() as stack:
        PARTS[part][0](stack)
        yield


def outcome_without(part: str, cell: Cell, folder: Path = KEPT) -> Outcome:
    """The outcome of a run of the planner without a part, from those that are kept if possible."""
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    place = list(PARTS).index(part)
    path = folder / f"{key_of(cell)}-without-{place}-{source}.json"
    if path.exists():
        return _OUTCOME.validate_json(path.read_bytes())
    oracle = oracle_of(cell, folder)
    where, trace = cell.scenario, cell.scenario.trace(cell.seed)
    fleet = fleet_of(where, trace, oracle.replicas)
    score = oracle.outcome.score
    with without(part):
        result = simulate(
            fleet, trace, autoscaler_of(cell.policy, where, fleet, trace), seed=cell.seed
        )
    found = outcome_of(cell, result, score.replica_hours if score else None, [])
    found = replace(found, policy=f"without {part}")
    store(path, _OUTCOME.dump_json(found))
    return found


def scenarios() -> tuple[Scenario, ...]:
    """Where parts are taken out."""
    return tuple(scenario(case, card) for card in (LARGE, SMALL) for case in VARIED_CASES)


def outcomes_without(seeds: Sequence[int]) -> list[Outcome]:
    """The planner without each of its parts."""
    return [
        outcome_without(
            part, Cell(scenario=where, policy=policy_of(OURS), seed=seed, with_timeline=False)
        )
        for where in scenarios()
        for part in PARTS
        for seed in seeds
    ]
