"""The sizing question answered by the planner's own sizing, before anything is deployed."""

from dataclasses import dataclass, field

from servingslo.errors import InvalidInputError
from servingslo.models import cost
from servingslo.models.engine.capacity import concurrency_cap
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import LatencyModel, Objective, Routing, latency_model
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.workload import Workload
from servingslo.policy.decision_parts import ConstraintNeed
from servingslo.policy.inputs import BatchingTargets, Limits, ReplicaTargets, ScaleTarget, Targets
from servingslo.policy.replicas.demand import SCRAPE_SECONDS, wait_budget_seconds
from servingslo.policy.replicas.prepared_model import renewed_model
from servingslo.policy.replicas.sizing import (
    KV_PERCENTILE,
    Load,
    Sizing,
    SizingCase,
    carried_rate_per_second,
    size,
)
from servingslo.policy.rules.batch_search import (
    BatchCase,
    BatchLimits,
    LimitsPlan,
    best_limits,
)
from servingslo.policy.rules.needs import UTILIZATION_CEILING
from servingslo.policy.rules.requirement import LEAST_SEARCH, SEARCH_FACTOR
from servingslo_lab.cli.sizing.inputs import objective_name

# The search for a count ends at this multiple of what utilization alone needs: at a hundredth of
# the load per replica every latency is all but that of a request alone.
_SEARCH_BREADTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be sized.

    workload: at the arrival rate of now. growth_per_second2: how fast the rate may rise while a
    replica starts, in requests/s per second. gpu_hourly: price of one GPU for an hour, in the
    currency.
    """

    workload: Workload
    law: ServiceLaw
    limits: EngineLimits
    objectives: tuple[Objective, ...]
    routing: Routing = Routing.POOLED
    utilization_target_ratio: float = UTILIZATION_CEILING
    kv_cache_target_ratio: float = 0.9
    replicas: ReplicaTargets = field(default_factory=ReplicaTargets)
    growth_per_second2: float = 0.0
    cold_start_seconds: float = 0.0
    gpu_hourly: float | None = None
    gpus_per_replica: int = 1
    currency: str = "USD"
    engines_per_replica: int = 1

    @property
    def rate_per_second(self) -> float:
        """Arrivals when capacity ordered now would be ready: scrape, tick and cold start later."""
        lead = self.cold_start_seconds + Limits().tick_seconds + SCRAPE_SECONDS
        growth = self.growth_per_second2 * lead if self.growth_per_second2 else 0.0
        return self.workload.arrival_rate_per_second + growth

    @property
    def replica_hourly(self) -> float | None:
        """Price of one replica for an hour; None where no price is stated."""
        return None if self.gpu_hourly is None else self.gpu_hourly * self.gpus_per_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedAnswer:
    """What one constraint alone needs; replicas None where no count is enough.

    least_feasible_seconds: what the largest count searched gives, where no count is enough.
    """

    constraint: str
    objective: str | None
    replicas: int | None
    least_feasible_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePrediction:
    """One objective at one count; predicted_seconds None where the count is overloaded."""

    objective: str
    threshold_seconds: float
    predicted_seconds: float | None
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CountAnswer:
    """What one replica count gives while all of it serves.

    kv_usage_p95_ratio: not exceeded 95 % of the time. meets: every constraint holds, with the
    tolerated failures lost.
    """

    replicas: int
    stable: bool
    utilization_ratio: float
    kv_usage_p95_ratio: float | None
    itl_mean_seconds: float | None
    running_mean: float | None
    objectives: tuple[ObjectivePrediction, ...]
    meets: bool
    cost_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """Batch limits as stated and the best ones, with the replicas that they need.

    best_meets: whether those keep every objective; replicas_saved is 0 where they do not.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    best_max_num_seqs: int
    best_max_num_batched_tokens: int
    best_replicas: int
    best_meets: bool
    replicas_saved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAnswer:
    """Cost of the count at the arrival rate of now, in the currency of the price."""

    per_hour: float
    per_million_output_tokens: float
    per_million_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to the sizing question.

    feasible: every objective can be met within the allowed counts. replicas: with the spare ones
    for tolerated failures. rate_per_second: that was sized for. concurrency_cap: running sequences
    of an engine at saturation. greatest_rate_per_second: that this count carries, failures
    tolerated. largest_count: where the search for a count ended. queue_limit: requests that may
    wait at one replica and still meet the objectives.
    """

    feasible: bool
    replicas: int
    binding: str
    rate_per_second: float
    needs: tuple[NeedAnswer, ...]
    saturation_rate_per_second: float
    concurrency_cap: float
    greatest_rate_per_second: float
    largest_count: int
    queue_limit: int
    counts: tuple[CountAnswer, ...]
    batching: BatchAnswer
    cost: CostAnswer | None
    prompt_tokens_mean: float
    output_tokens_mean: float


def answered(question: Question) -> Answer:
    """The least count that keeps every constraint, as the operator would decide it.

    Raises: InvalidInputError when the engine cannot hold a single request.
    """
    case = sizing_case(question)
    load = Load(rate_per_second=question.rate_per_second)
    sizing = size(case, load)
    count = _allowed(question, sizing.replicas)
    spare = question.replicas.tolerated_failures
    counts = tuple(
        _count_answer(question, case, sizing, n) for n in range(max(count - 1, 1), count + 2)
    )
    return Answer(
        feasible=is_feasible(question, sizing),
        replicas=count,
        binding=_binding(question, sizing),
        rate_per_second=question.rate_per_second,
        needs=_needs(question, case, sizing),
        saturation_rate_per_second=case.saturation_per_second,
        concurrency_cap=case.model.cap,
        greatest_rate_per_second=carried_rate_per_second(
            case, sizing.infeasible, max(count - spare, 1)
        ),
        largest_count=question.replicas.maximum or case.largest_count,
        queue_limit=_queue_limit(question, case),
        counts=counts,
        batching=_batching(question, case, load),
        cost=_cost(question, count, case.saturation_per_second),
        prompt_tokens_mean=question.workload.prompt.mean_tokens,
        output_tokens_mean=question.workload.output.mean_tokens,
    )


def sizing_case(question: Question) -> SizingCase:
    """What counts are judged by. Raises: InvalidInputError when nothing fits into the engine."""
    held = question.workload.held_tokens_per_sequence
    if concurrency_cap(question.workload, question.limits) < 1.0:
        allowed = f"at least {held:.0f}, what one running request holds on average"
        raise InvalidInputError("--kv-tokens", question.limits.kv_capacity_tokens, allowed)
    model = latency_model(question.workload, question.law, question.limits)
    return SizingCase(
        frontier=Frontier(model),
        routing=question.routing,
        objectives=question.objectives,
        utilization_target_ratio=question.utilization_target_ratio,
        kv_cache_target_ratio=question.kv_cache_target_ratio,
        largest_count=_largest_count(question, model),
        engines_per_replica=question.engines_per_replica,
    )


def sized(question: Question) -> tuple[int, Sizing]:
    """The count with spare ones and bounds, and the sizing behind it."""
    load = Load(rate_per_second=question.rate_per_second)
    sizing = size(sizing_case(question), load)
    return _allowed(question, sizing.replicas), sizing


def _allowed(question: Question, needed: int) -> int:
    """The count with spare ones for tolerated failures, within the bounds that are stated."""
    wanted = max(needed + question.replicas.tolerated_failures, question.replicas.minimum)
    return min(wanted, question.replicas.maximum or wanted)


def is_feasible(question: Question, sizing: Sizing) -> bool:
    """Whether every objective can be met, and within the largest count allowed."""
    wanted = sizing.replicas + question.replicas.tolerated_failures
    met = all(need.replicas is not None for need in sizing.needs)
    return met and wanted <= (question.replicas.maximum or wanted)


def _largest_count(question: Question, model: LatencyModel) -> int:
    capacity = model.saturation_rate_per_second * question.engines_per_replica
    by_utilization = question.rate_per_second / (capacity * question.utilization_target_ratio)
    widest = SEARCH_FACTOR * (question.replicas.maximum or 0)
    return max(round(_SEARCH_BREADTH * by_utilization), widest, LEAST_SEARCH)


def _binding(question: Question, sizing: Sizing) -> str:
    wanted = sizing.replicas + question.replicas.tolerated_failures
    return "min-replicas" if question.replicas.minimum > wanted else sizing.binding.value


def _needs(question: Question, case: SizingCase, sizing: Sizing) -> tuple[NeedAnswer, ...]:
    """The needs in the order of sizing."""
    return tuple(
        NeedAnswer(constraint=need.constraint.value, objective=None, replicas=need.replicas)
        if need.objective is None
        else _objective_need(question, need, need.objective, case)
        for need in sizing.needs
    )


def _objective_need(
    question: Question, need: ConstraintNeed, objective: Objective, case: SizingCase
) -> NeedAnswer:
    """What an objective needs, or what the largest count searched would give it."""
    least = None
    if need.replicas is None:
        prediction = case.predicted(case.largest_count, question.rate_per_second)
        least = _seconds(case, objective, prediction)
    return NeedAnswer(
        constraint=need.constraint.value,
        objective=objective_name(objective),
        replicas=need.replicas,
        least_feasible_seconds=least,
    )


def _count_answer(question: Question, case: SizingCase, sizing: Sizing, count: int) -> CountAnswer:
    prediction = case.predicted(count, question.rate_per_second)
    stable = prediction.stable
    left = count - question.replicas.tolerated_failures
    price = question.replica_hourly
    predictions = tuple(
        ObjectivePrediction(
            objective=objective_name(objective),
            threshold_seconds=objective.threshold_seconds,
            predicted_seconds=_seconds(case, objective, prediction),
            met=case.greatest_rate_per_second(objective, count) >= question.rate_per_second,
        )
        for objective in question.objectives
    )
    return CountAnswer(
        replicas=count,
        stable=stable,
        utilization_ratio=prediction.utilization,
        kv_usage_p95_ratio=prediction.kv_usage_quantile(KV_PERCENTILE) if stable else None,
        itl_mean_seconds=prediction.itl_mean_seconds if stable else None,
        running_mean=prediction.running_mean if stable else None,
        objectives=predictions,
        meets=not sizing.infeasible and left >= sizing.replicas,
        cost_per_hour=None if price is None else price * count,
    )


def _seconds(case: SizingCase, objective: Objective, prediction: Prediction) -> float | None:
    """The objective's percentile; None at saturation and above."""
    if not prediction.stable:
        return None
    raw = metric_seconds(prediction, objective.metric, objective.percentile)
    return raw * case.ratio(objective.metric)


def _queue_limit(question: Question, case: SizingCase) -> int:
    """What may wait at one replica: what drains within the wait budget, as admission has it."""
    targets = Targets(
        target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="sized"),
        objectives=question.objectives,
        replicas=question.replicas,
    )
    prepared = renewed_model(
        None,
        workload=question.workload,
        law=question.law,
        limits=question.limits,
        now_seconds=0.0,
    )
    drained = case.saturation_per_second * wait_budget_seconds(targets, prepared)
    return max(1, int(drained))


def _batching(question: Question, case: SizingCase, load: Load) -> BatchAnswer:
    current = BatchLimits(
        max_num_seqs=question.limits.max_num_seqs,
        max_num_batched_tokens=question.limits.max_num_batched_tokens,
    )
    found = best_limits(
        BatchCase(
            workload=question.workload,
            law=question.law,
            limits=question.limits,
            case=case,
            load=load,
            objectives=question.objectives,
            targets=BatchingTargets(),
        ),
        current,
    )
    best, now = (_allowed(question, plan.replicas) for plan in (found.better, found.today))
    meets = _is_met(question, found.better)
    return BatchAnswer(
        max_num_seqs=current.max_num_seqs,
        max_num_batched_tokens=current.max_num_batched_tokens,
        best_max_num_seqs=found.better.max_num_seqs,
        best_max_num_batched_tokens=found.better.max_num_batched_tokens,
        best_replicas=best,
        best_meets=meets,
        replicas_saved=now - best if meets else 0,
    )


def _is_met(question: Question, plan: LimitsPlan) -> bool:
    wanted = plan.replicas + question.replicas.tolerated_failures
    return plan.meets_objectives and wanted <= (question.replicas.maximum or wanted)


def _cost(question: Question, count: int, saturation_per_second: float) -> CostAnswer | None:
    """What the count costs; a token is one that is served, where more arrives than that."""
    if question.replica_hourly is None:
        return None
    per_hour = question.replica_hourly * count
    rate = min(question.workload.arrival_rate_per_second, count * saturation_per_second)
    output = rate * question.workload.output.mean_tokens
    prompt = rate * question.workload.prompt.mean_tokens
    return CostAnswer(
        per_hour=per_hour,
        per_million_output_tokens=cost.cost_per_megatoken(per_hour, output),
        per_million_tokens=cost.cost_per_megatoken(per_hour, prompt + output),
    )
