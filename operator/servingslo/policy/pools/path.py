"""Prefill and decode under one promise: how each threshold is divided between the two pools.

A request waits and is prefilled in one pool, its KV cache is transferred, and it waits for a first
step in the other. Decode is planned to keep the time per token, so a first token takes two of its
steps and the transfer, whatever the mix: its part of a threshold is that, and prefill's the rest.
Time per output token is decode's alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from servingslo.estimation.estimate import Estimate
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
from servingslo.policy.stages import View

# With so many requests through prefill, the others move no percentile of an objective at 99 %.
WHOLLY_THROUGH_RATIO = 0.995
# A transfer that nothing measures: a fixed part, and the tokens over 200 Gb/s at 128 KiB each.
# Source: Splitwise (ISCA 2024), section 6; Llama 3.1 8B with 16 bits.
ASSUMED_TRANSFER_SECONDS, ASSUMED_TOKENS_PER_SECOND = 5e-3, 190e3

# Steps of decode until a first token: the rest of the one in progress, and its own.
STEPS_TO_FIRST_TOKEN = 2.0
# A transfer at a percentile over a mean one: it is in proportion to the prompt, and the 99th
# percentile of the conversation's prompts is three and a half times their mean.
LONG_TRANSFER_RATIO = 3.5
# Decode's part of a threshold without an objective on the time per token, which would bound its
# steps; and the most of one that it may have.
PLAIN_PART, LARGEST_PART = 0.25, 0.5
# A new part that differs by less is no reason to divide anew: what is measured moves by as much.
SAME_PART_RATIO = 0.25


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


def decode_view(through_ratio: float | None) -> View | None:
    """The requests of a decode pool: most come with their cache, the others are prefilled there.

    One cached share for all would hide the few long prompts. None if all come with their cache.
    """
    if through_ratio is None or through_ratio >= WHOLLY_THROUGH_RATIO:
        return None
    return partial(_with_direct, through_ratio=through_ratio)


def divide_path(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> tuple[dict[str, Seen], PathUse, FleetState]:
    """Each pool with its part of demand and thresholds, for the report, and the memory."""
    prefill, decode = (targets.of_role(role)[0] for role in (Role.PREFILL, Role.DECODE))
    forecast = forecast_of(targets, state, now_seconds)
    through = 1.0 if state.through_ratio is None else state.through_ratio
    shares = {prefill.name: through, decode.name: 1.0}
    transfer_seconds, source = _transfer(
        targets, seen[prefill.name].context, seen[decode.name].context
    )
    limits = state.limits_seconds
    # A pool that is not observed says nothing about a division: the last one stays.
    if all(one.planned for one in seen.values()):
        parts = _decode_parts(targets, {n: one.context for n, one in seen.items()}, transfer_seconds)
        limits = _kept_or_new(targets, limits, prefill.name, decode.name, parts)
    own = path_targets(targets, limits)
    contexts = {
        name: replanned(
            one.context,
            forecast.share(shares[name]) if forecast.known else one.context.estimate.forecast,
            own.pool(name).targets,
        )
        for name, one in seen.items()
    }
    use = PathUse(
        through_ratio=through,
        transfer_seconds=transfer_seconds,
        transfer_source=source,
        limits_seconds=limits,
    )
    state = replace(state, limits_seconds=limits)
    return {n: replace(one, context=contexts[n]) for n, one in seen.items()}, use, state


def _with_direct(estimate: Estimate, through_ratio: float) -> Estimate:
    if estimate.workload is None:
        return estimate
    workload = observed_decode_workload(estimate.workload, through_ratio)
    return replace(estimate, workload=workload)


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


def _decode_parts(
    targets: FleetTargets, contexts: Mapping[str, TickContext], transfer_seconds: float
) -> dict[Objective, float]:
    """Decode's part of each threshold, in seconds, without those of which nothing is known."""
    objectives = targets.pools[0].targets.objectives
    steps = [o.threshold_seconds for o in objectives if o.metric is LatencyMetric.TPOT]
    first = None
    if steps:
        first = STEPS_TO_FIRST_TOKEN * min(steps) + LONG_TRANSFER_RATIO * transfer_seconds
    found = {}
    for objective in objectives:
        if not ROW_OF[objective.metric].along_path:
            continue
        whole = objective.threshold_seconds
        if objective.metric is LatencyMetric.LATENCY:
            share = _mean_share(targets, contexts)
            if share is not None:
                found[objective] = whole * share
            continue
        part = PLAIN_PART * whole if first is None else first
        found[objective] = min(part, LARGEST_PART * whole)
    return found


def _mean_share(targets: FleetTargets, contexts: Mapping[str, TickContext]) -> float | None:
    """Decode's share of the mean time of a whole request; None while one is not observed."""
    means = {}
    for role in (Role.PREFILL, Role.DECODE):
        estimate = contexts[targets.of_role(role)[0].name].estimate
        key = LatencyMetric.LATENCY.value
        seen = estimate.observed.get(key) or estimate.means.get(key)
        means[role] = None if seen is None else seen.mean
    first, last = means[Role.PREFILL], means[Role.DECODE]
    if first is None or not last:
        return None
    return max(last / (first + last), LARGEST_PART)


def _kept_or_new(
    targets: FleetTargets,
    limits: PoolLimits,
    prefill: str,
    decode: str,
    parts: Mapping[Objective, float],
) -> PoolLimits:
    """The limits as they are, unless a part of decode differs by more than it is known to."""
    before = limits.get(decode, {})
    new: dict[str, dict[str, float]] = {prefill: {}, decode: {}}
    for objective, part in parts.items():
        key = objective_key(objective)
        known = before.get(key)
        if known is not None and abs(part / known - 1.0) <= SAME_PART_RATIO:
            part = known  # noqa: PLW2901 - the part in force
        new[decode][key] = part
        new[prefill][key] = objective.threshold_seconds - part
    return new
