"""Prefill and decode under one promise: how each threshold is divided between the two pools.

A request waits and is prefilled in one pool, its KV cache is transferred, and it waits for a first
step in the other. The cheapest pair of counts at which the law of the sum keeps every objective
decides how much of each threshold a pool may use. Time per output token is decode's alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from servingslo.models.disaggregated.division import PairRole, divide
from servingslo.models.disaggregated.pair import cheapest_pair
from servingslo.models.disaggregated.path import Path, TransferLaw
from servingslo.models.disaggregated.pools import PoolModel
from servingslo.models.disaggregated.workloads import observed_decode_workload
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.context import TickContext
from servingslo.policy.inputs import Targets
from servingslo.policy.planner import Seen
from servingslo.policy.pools.decision import PathUse
from servingslo.policy.pools.demand import forecast_of, replanned
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.pools.state import FleetState, PoolLimits
from servingslo.policy.replicas.prepared_model import RENEWAL_SECONDS
from servingslo.policy.replicas.requirement import sizing_case
from servingslo.policy.replicas.sizing import KV_PERCENTILE
from servingslo.policy.stages import Mix

# With so many requests through prefill, the others move no percentile of an objective at 99 %.
WHOLLY_THROUGH_RATIO = 0.995
# A transfer that nothing measures: a fixed part, and the tokens over 200 Gb/s at 128 KiB each.
# Source: Splitwise (ISCA 2024), section 6; Llama 3.1 8B with 16 bits.
ASSUMED_TRANSFER_SECONDS, ASSUMED_TOKENS_PER_SECOND = 5e-3, 190e3

# The least part of a threshold that is divided in proportion to means.
# Judgement: as `models.disaggregated.division` keeps of each threshold at least.
LEAST_SHARE = 0.05
# What a pool has at least, over its observed percentile, while that is within half of a threshold.
# Judgement: rounding and the next window's scatter stay below; measured by orders of a pool that
# queues nothing while the other one is short.
LEAST_OVER_OBSERVED = 1.25


def objective_key(objective: Objective) -> str:
    """Name of an objective among the limits, such as 'ttft:95'."""
    return f"{objective.metric.value}:{objective.percentile:g}"


def path_targets(targets: FleetTargets, limits: PoolLimits) -> FleetTargets:
    """The pools with their own objectives: those that they decide, at their part of the threshold.

    Without limits a pool may use the whole threshold. Combined pools keep theirs.
    """
    if not targets.disaggregated:
        return targets
    found = {pool.name: _own_targets(pool, limits.get(pool.name, {})) for pool in targets.pools}
    return targets.with_targets(found)


def decode_mix(state: FleetState) -> Mix | None:
    """The requests of a decode pool: most come with their cache, the others are prefilled there.

    One cached share for all would hide the few long prompts. None if all come with their cache.
    """
    through = state.through_ratio
    if through is None or through >= WHOLLY_THROUGH_RATIO:
        return None
    return partial(observed_decode_workload, through_ratio=through)


def divide_path(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> tuple[dict[str, Seen], PathUse, FleetState]:
    """Each pool with its part of demand and thresholds, for the report, and the memory."""
    prefill, decode = (targets.of_role(role)[0] for role in (Role.PREFILL, Role.DECODE))
    forecast = forecast_of(targets, state, now_seconds)
    through = 1.0 if state.through_ratio is None else state.through_ratio
    shares = {prefill.name: through, decode.name: 1.0}
    limits = state.limits_seconds
    own = path_targets(targets, limits)
    contexts = {
        name: replanned(one.context, forecast.share(shares[name]), own.pool(name).targets)
        if forecast.known
        else one.context
        for name, one in seen.items()
    }
    transfer_seconds, source = _transfer(targets, contexts[prefill.name], contexts[decode.name])
    path = Path(
        through_ratio=through,
        transfer=TransferLaw(
            mean_seconds=transfer_seconds,
            fixed_seconds=min(ASSUMED_TRANSFER_SECONDS, transfer_seconds),
        ),
    )
    # A pool that is not observed says nothing about a division: the last one stays.
    observed = all(one.planned for one in seen.values())
    if observed and _is_due(state, contexts, now_seconds):
        models = {pool.name: _pool_model(pool, contexts[pool.name]) for pool in (prefill, decode)}
        found = _by_laws(targets, prefill, decode, models, path, contexts)
        divided = found or _in_proportion(targets, (prefill, decode), contexts, transfer_seconds)
        if divided and divided != limits:
            limits = divided
            own = path_targets(targets, limits)
            contexts = {
                name: replanned(one, one.estimate.forecast, own.pool(name).targets)
                for name, one in contexts.items()
            }
        state = replace(
            state, limits_seconds=limits, divided_seconds=now_seconds if found else None
        )
    use = PathUse(
        through_ratio=through,
        transfer_seconds=transfer_seconds,
        transfer_source=source,
        limits_seconds=limits,
    )
    return {n: replace(one, context=contexts[n]) for n, one in seen.items()}, use, state


def _own_targets(pool: PoolTargets, limits: Mapping[str, float]) -> Targets:
    objectives = tuple(
        replace(one, threshold_seconds=limits.get(objective_key(one), one.threshold_seconds))
        for one in pool.targets.objectives
        if ROW_OF[one.metric].along_path or pool.role is Role.DECODE
    )
    return replace(pool.targets, objectives=objectives)


def _transfer(
    targets: FleetTargets, prefill: TickContext, decode: TickContext
) -> tuple[float, str]:
    """Mean time of a transfer, and where it is from."""
    if targets.transfer_seconds is not None:
        return targets.transfer_seconds, "stated"
    # Either side may export it: the engine that reads the cache, or the one that sends it.
    for context in (decode, prefill):
        if context.estimate.transfer_mean_seconds is not None:
            return context.estimate.transfer_mean_seconds, "measured"
    prompt = prefill.estimate.prompt_tokens_mean or 0.0
    return ASSUMED_TRANSFER_SECONDS + prompt / ASSUMED_TOKENS_PER_SECOND, "assumed"


def _is_due(state: FleetState, contexts: Mapping[str, TickContext], now_seconds: float) -> bool:
    """Whether thresholds are to be divided anew: a mix or a law changed, or time has passed."""
    at = state.divided_seconds
    if at is None or now_seconds - at >= RENEWAL_SECONDS:
        return True
    prepared = [one.prepared for one in contexts.values()]
    return any(one is not None and one.at_seconds > at for one in prepared)


def _pool_model(pool: PoolTargets, context: TickContext) -> PoolModel | None:
    """The pool for the search of a pair; None while its law does not decide."""
    if context.prepared is None or context.demand is None or not context.trusted:
        return None
    case = sizing_case(context, context.prepared)
    return PoolModel(
        frontier=case.frontier,
        engines_per_replica=case.engines_per_replica,
        routing=case.routing,
        price=pool.replica_price,
        least=max(context.bounds.minimum, 1),
        most=case.largest_count,
        utilization_ceiling_ratio=case.utilization_target_ratio,
        kv_ceiling_ratio=case.kv_cache_target_ratio,
        kv_percentile=KV_PERCENTILE,
        calibration=case.calibration,
    )


def _by_laws(
    targets: FleetTargets,
    prefill: PoolTargets,
    decode: PoolTargets,
    models: Mapping[str, PoolModel | None],
    path: Path,
    contexts: Mapping[str, TickContext],
) -> PoolLimits | None:
    """Thresholds by the cheapest pair; None while a law is missing or nothing arrives."""
    first, second = models[prefill.name], models[decode.name]
    demand = contexts[decode.name].demand
    if first is None or second is None or demand is None or demand.idle:
        return None
    rate = demand.scale_up_load.rate_per_second
    objectives = targets.pools[0].targets.objectives
    current = contexts[prefill.name].current, contexts[decode.name].current
    parts = divide(cheapest_pair(first, second, path, objectives, rate, current))
    return {
        pool.name: {objective_key(one): seconds for one, seconds in parts[role].items()}
        for pool, role in ((prefill, PairRole.PREFILL), (decode, PairRole.DECODE))
    }


def _in_proportion(
    targets: FleetTargets,
    pools: Sequence[PoolTargets],
    contexts: Mapping[str, TickContext],
    transfer_seconds: float,
) -> dict[str, dict[str, float]]:
    """Thresholds in proportion to the mean times that requests take in the two pools now.

    An objective with an unknown mean is not divided. A mean of zero has a small part: no count
    could keep a threshold of zero. A pool that keeps half of the threshold is not to be faster than
    it is, however long requests wait in the other one.
    """
    found: dict[str, dict[str, float]] = {pool.name: {} for pool in pools}
    first, second = (pool.name for pool in pools)
    for objective in targets.pools[0].targets.objectives:
        if not ROW_OF[objective.metric].along_path:
            continue
        means = {pool.name: _mean_seconds(contexts[pool.name], objective.metric) for pool in pools}
        left = objective.threshold_seconds
        if not ROW_OF[objective.metric].only_waits:
            left = max(left - transfer_seconds, 0.5 * left)
        known = {name: mean for name, mean in means.items() if mean is not None}
        whole = sum(known.values())
        if len(known) < len(means) or whole <= 0.0:
            continue
        share = min(max(known[first] / whole, LEAST_SHARE), 1.0 - LEAST_SHARE)
        least, of_other = (_least_part(contexts[name], objective, left) for name in (first, second))
        part = min(max(left * share, least), left - of_other)
        found[first][objective_key(objective)] = part
        found[second][objective_key(objective)] = left - part
    return {name: limits for name, limits in found.items() if limits}


def _least_part(context: TickContext, objective: Objective, left_seconds: float) -> float:
    """What a pool needs of a threshold as it is now, at most; half of it if it may be more."""
    seen = context.estimate.observed.get(objective.metric.value)
    bucket = None if seen is None else seen.bucket_of(objective.percentile)
    return 0.0 if bucket is None else min(LEAST_OVER_OBSERVED * bucket[1], 0.5 * left_seconds)


def _mean_seconds(context: TickContext, metric: LatencyMetric) -> float | None:
    """The mean that was observed; None if nothing was."""
    seen = context.estimate.observed.get(metric.value) or context.estimate.means.get(metric.value)
    return None if seen is None else seen.mean
