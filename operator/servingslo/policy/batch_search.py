"""Which batch limits do with the fewest replicas: the largest batch, then the token budget."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.models.capacity import kv_concurrency
from servingslo.models.latency import LatencyMetric, Objective, Routing, latency_model
from servingslo.models.service_time import EngineLimits, ServiceLaw
from servingslo.models.workload import Workload
from servingslo.policy.inputs import BatchingTargets
from servingslo.policy.sizing import Candidates, Load, SizingCase, size
from servingslo.policy.state import BatchLimits

# vLLM's own largest default (API server on cards of 70 GiB and more).
# Source: vLLM engine/arg_utils.py, default max_num_seqs.
LARGEST_SEQUENCES = 1024
# Token budgets that are tried, tokens: powers of two around vLLM's defaults 2,048 and 8,192.
# Source: vLLM engine/arg_utils.py, default max_num_batched_tokens.
TOKEN_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
# A full batch is judged at this share of its saturation rate: there the slots are nearly always
# taken, which is the worst that the limit allows, and the stationary law still exists.
FULL_BATCH_UTILIZATION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCase:
    """What batch limits are judged by.

    limits: of the engine; its memory bounds the batch. case: what replica counts are judged by,
    with the limits in force. load: to be carried. hints: where the search for a count begins.
    """

    workload: Workload
    law: ServiceLaw
    limits: EngineLimits
    case: SizingCase
    load: Load
    objectives: tuple[Objective, ...]
    targets: BatchingTargets = field(default_factory=BatchingTargets)
    hints: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLimits:
    """The best limits, the replicas that they need, and those that the limits in force need."""

    limits: BatchLimits
    replicas: int
    current_replicas: int


def best_limits(batch: BatchCase, current: BatchLimits) -> FoundLimits:
    """The limits with which the fewest replicas carry the load.

    The limits in force where it is a tie, so that nothing is recommended for nothing.
    """
    budgets = sorted({*TOKEN_BUDGETS, current.max_num_batched_tokens})
    now = replicas_needed(batch, current)
    best, needed = current, now
    for budget in budgets:
        sequences = largest_batch(batch, budget)
        if sequences is None or sequences >= budget:
            continue
        trial = BatchLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)
        count = replicas_needed(batch, trial)
        better = count < needed
        nearer = count == needed and _distance(trial, current) < _distance(best, current)
        if better or (nearer and best != current):
            best, needed = trial, count
    if best == current:
        sequences = largest_batch(batch, current.max_num_batched_tokens)
        if sequences is not None:
            trial = replace(current, max_num_seqs=sequences)
            if replicas_needed(batch, trial) <= now:
                best = trial
    return FoundLimits(limits=best, replicas=needed, current_replicas=now)


def largest_batch(batch: BatchCase, budget: int) -> int | None:
    """The most sequences with which a full batch still keeps the inter-token objectives.

    Bounded by memory (sequences whose mean context fills the KV target) and by the tenant. None
    when not even the least allowed does. budget: tokens of a step.
    """
    targets = batch.targets
    fitting = kv_concurrency(batch.workload, batch.limits) * batch.case.kv_cache_target_ratio
    ceiling = LARGEST_SEQUENCES if targets.max_sequences is None else targets.max_sequences
    high = max(min(ceiling, int(fitting), budget - 1), targets.min_sequences)
    low = targets.min_sequences
    if _full_batch_keeps(batch, high, budget):
        return high
    if not _full_batch_keeps(batch, low, budget):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _full_batch_keeps(batch, middle, budget):
            low = middle
        else:
            high = middle
    return low


def replicas_needed(batch: BatchCase, limits: BatchLimits) -> int:
    """Replicas that the load needs under these limits; past the search, its end."""
    engine = replace(
        batch.limits,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )
    trial = replace(batch.case, model=latency_model(batch.workload, batch.law, engine))
    sizing = size(Candidates(trial, batch.load), batch.hints)
    return batch.case.largest_count if sizing.infeasible else sizing.replicas


def _distance(limits: BatchLimits, current: BatchLimits) -> float:
    return abs(limits.max_num_batched_tokens - current.max_num_batched_tokens)


def _full_batch_keeps(batch: BatchCase, sequences: int, budget: int) -> bool:
    """Whether every inter-token objective holds with this many slots nearly always taken."""
    engine = replace(batch.limits, max_num_seqs=sequences, max_num_batched_tokens=budget)
    model = latency_model(batch.workload, batch.law, engine)
    rate = FULL_BATCH_UTILIZATION * model.saturation_rate_per_second
    prediction = model.predict(rate, 1, Routing.POOLED)
    ratio = batch.case.calibration.get(LatencyMetric.TPOT.value, 1.0)
    return all(
        prediction.tpot_seconds(objective.percentile) * ratio <= objective.threshold_seconds
        for objective in batch.objectives
        if objective.metric is LatencyMetric.TPOT
    )
