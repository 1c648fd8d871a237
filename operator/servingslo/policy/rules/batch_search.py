"""Find the batch limits with which a replica carries most: first the batch, then the budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from servingslo.models.engine.admission import EngineBound, in_flight_bound
from servingslo.models.engine.capacity import kv_concurrency
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import Objective, Routing, latency_model
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import Workload
from servingslo.policy.inputs import BatchingTargets
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import DEFAULT_WAIT_BUDGET_SECONDS
from servingslo.policy.replicas.sizing import (
    Load,
    SizingCase,
    carried_rate_per_second,
    size,
)
from servingslo.runtimes.launch.write_refusals import BUDGET_BLOCK_TOKENS

# vLLM's own largest default (API server on cards of 70 GiB and more).
# Source: vLLM engine/arg_utils.py, default max_num_seqs.
LARGEST_SEQUENCES = 1024
# Token budgets that are tried, tokens: powers of two around vLLM's defaults 2,048 and 8,192.
# Source: vLLM engine/arg_utils.py, default max_num_batched_tokens.
TOKEN_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
# A full batch is judged at this share of its saturation rate. The slots are then nearly always
# taken, which is the worst case that the limit allows, and the stationary law still exists.
FULL_BATCH_UTILIZATION = 0.95
# Batches closer than this behave alike; the answer is at most this share too small.
BATCH_RESOLUTION = 0.05
# Limits that carry this share of the best rate are as good: the models' own error is 3 %.
EQUAL_RATE_RATIO = 0.97
# A step full of prefill takes at most this share of the inter-token objective. Laws fitted at light
# load are off by 5 % on average. With long prompts, a budget beyond the objective costs a fifth of
# the capacity, and a budget a tenth below it costs 2 %.
FULL_STEP_RATIO = 0.9
# Limits are compared as if tokens took this much longer (those 5 %). A law that is a little too
# fast would choose a budget whose full steps all miss the objective.
LAW_ERROR_RATIO = 1.05
# A full step is judged with the batch that is seldom exceeded at the carried rate.
BATCH_DEVIATIONS = 2.0
# Fleet on which limits are compared: large enough for the gain of pooling, and always the same.
COMPARED_REPLICAS = 4


class BatchLimits(NamedTuple):
    """The two batch limits of an engine."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPlan:
    """Replicas, batch limits and bound on running + waiting requests that belong together.

    replicas: for the demand planned for, tolerated failures included, before other guards.
    in_flight_limit: of one replica. meets_objectives: whether this count meets them all; if no
    count meets one of them, the replicas are those for the others.
    """

    replicas: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_limit: int
    meets_objectives: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCase:
    """The inputs for the comparison of batch limits.

    limits: of the engine; its memory bounds the batch. case: the constraints on replica counts,
    with the limits in force. load: to be carried. wait_budget_seconds: how long a request may wait
    for a slot.
    """

    workload: Workload
    law: ServiceLaw
    limits: EngineLimits
    case: SizingCase
    load: Load
    objectives: tuple[Objective, ...]
    targets: BatchingTargets = field(default_factory=BatchingTargets)
    wait_budget_seconds: float = DEFAULT_WAIT_BUDGET_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLimits:
    """The plan with the limits in force and the cheapest one; equal if none is better.

    Replicas are those that the load needs, without spare ones and before bounds. gain_ratio: what a
    replica carries with the better limits divided by what it carries now; 1 if no limits keep every
    objective.
    """

    today: LimitsPlan
    better: LimitsPlan
    gain_ratio: float = 1.0


def within_reach(context: TickContext) -> BatchingTargets:
    """What is allowed, without batches beyond those that run and those a bent law is known for."""
    targets, limits = context.targets.batching, context.estimate.limits
    reach = context.estimate.law.reach_sequences
    if reach is None or limits is None:
        return targets
    most = max(int(reach), limits.max_num_seqs)
    return replace(targets, max_sequences=min(targets.max_sequences or most, most))


def best_limits(batch: BatchCase, current: BatchLimits) -> FoundLimits:
    """The limits with which a replica carries most of this mix within every constraint.

    That depends on the mix alone, so the answer does not follow every move of demand. The budgets
    tried are powers of two, the one in force, and the largest whose full step keeps the inter-token
    objectives. The batch is the largest one that keeps them when full: a larger batch hides
    overload in running requests. Limits in force that carry as many requests stay, unless their
    batch is too large.
    """
    present = _compared(batch, current)
    budgets = sorted({*TOKEN_BUDGETS, current.max_num_batched_tokens})
    safe = _largest_batches(batch, budgets)
    # Each search of a rate begins where the one before it ended.
    tried = {current: present}
    for budget, sequences in safe.items():
        _try(batch, budget, sequences, tried)
    full = full_step_budget(batch, max(tried.values(), key=_carried))
    if full is not None and full not in safe:
        _try(batch, full, largest_batch(batch, full, current.max_num_seqs), tried)
    carried = {limits: _carried(case) for limits, case in tried.items()}
    most = max(carried.values())
    good = [limits for limits, rate in carried.items() if rate >= EQUAL_RATE_RATIO * most]
    largest = safe[current.max_num_batched_tokens]
    if current in good and (largest is None or current.max_num_seqs <= largest):
        best = current
    else:
        best = min(good, key=lambda limits: (_distance(limits, current), limits == current))
    return _compared_plans(batch, current, best, tried)


def plans_with(batch: BatchCase, current: BatchLimits, best: BatchLimits) -> FoundLimits:
    """The plans with limits that were found before, for the present load and mix."""
    cases = {limits: _compared(batch, limits) for limits in dict.fromkeys((current, best))}
    return _compared_plans(batch, current, best, cases)


def _compared_plans(
    batch: BatchCase,
    current: BatchLimits,
    best: BatchLimits,
    cases: Mapping[BatchLimits, SizingCase],
) -> FoundLimits:
    today, carried_today = _plan(batch, current, cases[current])
    if best == current:
        return FoundLimits(today=today, better=today)
    better, carried_better = _plan(batch, best, cases[best])
    if carried_better <= 0.0:
        return FoundLimits(today=today, better=better)
    gain = carried_better / carried_today if carried_today > 0.0 else math.inf
    return FoundLimits(today=today, better=better, gain_ratio=gain)


def _plan(batch: BatchCase, limits: BatchLimits, compared: SizingCase) -> tuple[LimitsPlan, float]:
    """Replicas and bound in flight for these limits, and the rate that a few replicas carry."""
    case = replace(compared, calibration=batch.case.calibration)
    sizing, carried = size(case, batch.load), _carried(case)
    rate = carried / (COMPARED_REPLICAS * case.engines_per_replica)
    plan = LimitsPlan(
        replicas=sizing.replicas,
        meets_objectives=all(need.replicas is not None for need in sizing.needs),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        in_flight_limit=in_flight_bound(
            case.model.engine.at_rate(rate).demand,
            rate,
            EngineBound(
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                saturation_rate_per_second=case.model.saturation_rate_per_second,
                wait_budget_seconds=batch.wait_budget_seconds,
                engine_count=case.engines_per_replica,
                full_batch=case.frontier.full_batch(
                    batch.objectives, limits.max_num_seqs, case.ratio(LatencyMetric.TPOT)
                ),
            ),
        ),
    )
    return plan, carried


def _with_batch(budget: int, sequences: int | None) -> BatchLimits | None:
    """The limits with this batch; None if no batch is safe, or if the budget cannot hold it."""
    if sequences is None or sequences >= budget:
        return None
    return BatchLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)


def _try(
    batch: BatchCase, budget: int, sequences: int | None, tried: dict[BatchLimits, SizingCase]
) -> None:
    """Add the case with this budget and its largest batch to those tried."""
    trial = _with_batch(budget, sequences)
    if trial is not None and trial not in tried:
        beside = tried[next(reversed(tried))].frontier
        tried[trial] = _compared(batch, trial, beside)
        _carried(tried[trial])


def full_step_budget(batch: BatchCase, case: SizingCase) -> int | None:
    """The largest budget with which a step full of prefill keeps every inter-token objective.

    n + (T − a − (b + d·k)·n)/c tokens, n the batch that the limits of the case seldom exceed at the
    rate they carry. None without such an objective, or if a block alone takes too long.
    """
    thresholds = [o.threshold_seconds for o in batch.objectives if o.metric is LatencyMetric.TPOT]
    demand = case.model.demand
    if not thresholds or demand.prefill_per_token_seconds <= 0.0:
        return None
    running = case.model.predict(_carried(case), COMPARED_REPLICAS, case.routing)
    if not running.stable:
        return None
    sequences = running.running_mean + BATCH_DEVIATIONS * math.sqrt(running.running_variance)
    demand = case.model.engine.at_sequences(sequences)
    step = demand.step_fixed_seconds + demand.step_growth_seconds * sequences
    ratio = batch.case.ratio(LatencyMetric.TPOT)
    left = FULL_STEP_RATIO * min(thresholds) / ratio - step
    tokens = sequences + left / demand.prefill_per_token_seconds
    blocks = int(tokens / BUDGET_BLOCK_TOKENS)
    return min(blocks * BUDGET_BLOCK_TOKENS, TOKEN_BUDGETS[-1]) if blocks > 0 else None


def _largest_batches(batch: BatchCase, budgets: Sequence[int]) -> dict[int, int | None]:
    """The largest batch by budget; each search begins where the one before it ended."""
    safe: dict[int, int | None] = {}
    near = None
    for budget in budgets:
        near = safe[budget] = largest_batch(batch, budget, near)
    return safe


def _most_sequences(batch: BatchCase, budget: int) -> int:
    """The largest batch that memory, the tenant and the budget allow."""
    targets = batch.targets
    fitting = kv_concurrency(batch.workload, batch.limits) * batch.case.kv_cache_target_ratio
    ceiling = LARGEST_SEQUENCES if targets.max_sequences is None else targets.max_sequences
    return max(min(ceiling, int(fitting), budget - 1), targets.min_sequences)


def largest_batch(batch: BatchCase, budget: int, near: int | None = None) -> int | None:
    """The most sequences with which a full batch still keeps the inter-token objectives.

    Bounded by memory (sequences whose mean context fills the KV target) and by the tenant. None if
    not even the least allowed batch keeps them. budget: tokens of a step. near: where the search
    begins; it saves evaluations and changes the answer by no more than its resolution.
    """
    low, high = batch.targets.min_sequences, _most_sequences(batch, budget)
    if _full_batch_keeps(batch, high, budget):
        return high
    known = False
    if near is not None and low < near < high:
        known = _full_batch_keeps(batch, near, budget)
        low, high = (near, high) if known else (low, near)
        above = int(near * (1.0 + BATCH_RESOLUTION)) + 1
        if known and above < high and not _full_batch_keeps(batch, above, budget):
            return near
    if not known and not _full_batch_keeps(batch, low, budget):
        return None
    while high - low > max(1, int(BATCH_RESOLUTION * low)):
        middle = (low + high) // 2
        if _full_batch_keeps(batch, middle, budget):
            low = middle
        else:
            high = middle
    return low


def _carried(case: SizingCase) -> float:
    """Requests per second that a few replicas carry."""
    return carried_rate_per_second(case, (), COMPARED_REPLICAS)


def _compared(batch: BatchCase, limits: BatchLimits, beside: Frontier | None = None) -> SizingCase:
    """The case with these limits, as if tokens took longer. beside: frontier of similar limits.

    The limits in force keep the frontier of the plan, with what it knows of this mix and the last.
    """
    engine = replace(
        batch.limits,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )
    frontier = batch.case.frontier
    if engine != batch.limits:
        model = latency_model(batch.workload, batch.law, engine)
        frontier = Frontier(model, beside or frontier)
    slower = batch.case.ratio(LatencyMetric.TPOT) * LAW_ERROR_RATIO
    return replace(
        batch.case,
        frontier=frontier,
        calibration={**batch.case.calibration, LatencyMetric.TPOT.value: slower},
    )


def _distance(limits: BatchLimits, current: BatchLimits) -> float:
    return abs(limits.max_num_batched_tokens - current.max_num_batched_tokens)


def _full_batch_keeps(batch: BatchCase, sequences: int, budget: int) -> bool:
    """Whether every inter-token objective holds with this many slots nearly always taken."""
    engine = replace(batch.limits, max_num_seqs=sequences, max_num_batched_tokens=budget)
    model = latency_model(batch.workload, batch.law, engine)
    rate = FULL_BATCH_UTILIZATION * model.saturation_rate_per_second
    prediction = model.predict(rate, 1, Routing.POOLED)
    ratio = batch.case.ratio(LatencyMetric.TPOT)
    return all(
        prediction.tpot_seconds(objective.percentile) * ratio <= objective.threshold_seconds
        for objective in batch.objectives
        if objective.metric is LatencyMetric.TPOT
    )
