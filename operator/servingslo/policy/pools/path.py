"""Prefill and decode under one promise: how each threshold is divided between the two pools.

A request waits and is prefilled in one pool, its KV cache is transferred, and it waits for a first
step in the other. Decode is planned to keep the time per token, so a first token takes one or two
of its steps and the transfer, whatever the mix: that is its part of a threshold, and prefill has
the rest. Time per output token is decode's alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.requests.lengths import memory_seconds
from servingslo.estimation.requests.mix_change import CHANGED_RATIO, LONGEST_SECONDS
from servingslo.estimation.requests.observed import RECENT_SECONDS
from servingslo.models.decode_workload import decode_workload
from servingslo.models.fleet.objective_metrics import ROW_OF
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import Targets
from servingslo.policy.planner import Seen
from servingslo.policy.pools.decision import PathUse
from servingslo.policy.pools.demand import forecast_of, replanned
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.pools.state import FleetState, PoolLimits
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.stages import (
    Learner,
    Stages,
    calibrate,
    choose_reserve,
    count_promise,
    measure_capacity,
)

# With so many requests through prefill, the others move no percentile of an objective at 99 %.
WHOLLY_THROUGH_RATIO = 0.995
# A transfer that nothing measures: a fixed part, and the tokens over 200 Gb/s at 128 KiB each.
# Source: Splitwise (ISCA 2024), section 6; Llama 3.1 8B with 16 bits.
ASSUMED_TRANSFER_SECONDS, ASSUMED_TOKENS_PER_SECOND = 5e-3, 190e3

# Steps of decode until a first token: its own, and half of the one in progress, or all of it.
MEAN_STEPS, LONG_STEPS = 1.5, 2.0
# A long transfer over a mean one: it is in proportion to the prompt, and the 99th percentile of the
# conversation's prompts is three and a half times their mean.
LONG_TRANSFER_RATIO = 3.5
# Decode's part of a threshold without an objective on the time per token, which would bound its
# steps; and the most of one that it may have: of a first token, and of a whole answer.
PLAIN_PART, LARGEST_PART, LARGEST_LATENCY_PART = 0.25, 0.5, 0.95
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


def waits_for_room(decode: Seen) -> bool:
    """Whether requests wait in decode for more than a moment; a preempted one waits as well."""
    return decode.context.estimate.saturation_signal.waiting_sustained


def stages_of(role: Role, state: FleetState, stages: Stages, now_seconds: float) -> Stages:
    """The stages of a pool, as far as others say what its observation means.

    While decode waits for room an engine of prefill keeps the prompts that it has computed. Its
    waits and its KV use are decode's then: nothing is learnt from them, and they order nothing, but
    forbid steps down. The same holds while latencies of that time are observed. Most requests of a
    decode pool come with their cache, the others are prefilled there, and one cached share for all
    would hide the few long prompts. Pools of whole requests are divided by their common demand,
    which knows no reserve yet.
    """
    if role is Role.COMBINED:
        return _without(stages, choose_reserve)
    at, through = state.no_room_seconds, state.through_ratio
    if role is Role.PREFILL and at is not None and now_seconds - at < RECENT_SECONDS:
        own = _without(stages, calibrate, count_promise, measure_capacity)
        return replace(own, held_up=True)
    if role is Role.DECODE and through is not None and through < WHOLLY_THROUGH_RATIO:
        return replace(stages, view=partial(_with_direct, through_ratio=through))
    return stages


def _with_direct(estimate: Estimate, through_ratio: float) -> Estimate:
    if estimate.workload is None:
        return estimate
    return replace(estimate, workload=decode_workload(estimate.workload, through_ratio))


def _without(stages: Stages, *learners: Learner) -> Stages:
    kept = tuple(one for one in stages.learners if one not in learners)
    return replace(stages, learners=kept)


def divide_path(
    targets: FleetTargets, state: FleetState, seen: Mapping[str, Seen], now_seconds: float
) -> tuple[dict[str, Seen], PathUse, FleetState]:
    """Each pool with its part of demand and thresholds, for the report, and the memory."""
    prefill, decode = targets.path
    forecast = forecast_of(targets, state, now_seconds)
    through = 1.0 if state.through_ratio is None else state.through_ratio
    # A pool of one role has one kind of work, so a queue of longer requests grows within a minute.
    both = [seen[one.name].context for one in (prefill, decode)]
    longer = [_at_lead(context, kind) for kind, context in enumerate(both)]
    work_ratio = max(longer[1], _context_ratio(both, longer))
    shares = {prefill.name: through * longer[0], decode.name: work_ratio}
    transfer_seconds, source = _transfer(
        targets, seen[prefill.name].context, seen[decode.name].context
    )
    limits = state.limits_seconds
    contexts = {name: one.context for name, one in seen.items()}
    # A pool that is not observed says nothing about a division: the last one stays.
    known = contexts[prefill.name].estimate.prompt_tokens_mean is not None
    if known and all(one.planned for one in seen.values()):
        divided = _divided(targets, contexts, transfer_seconds)
        limits = _kept_or_new(limits, (prefill.name, decode.name), divided)
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


def _at_lead(context: TickContext, kind: int) -> float:
    """How many times as long requests will be at the lead as those of the mix; at least 1.

    kind: 0 for prompts, 1 for answers. What is remembered is older by its memory than the last
    minute, so what has grown between them grows on at that pace, up to what is another mix.
    """
    now = context.estimate.longer_ratios[kind]
    ahead = context.lead_seconds + 0.5 * LONGEST_SECONDS
    grown = (now - 1.0) * ahead / memory_seconds(context.estimate.load_per_second or 0.0)
    return min(now + grown, max(now, CHANGED_RATIO))


def _context_ratio(both: Sequence[TickContext], longer: Sequence[float]) -> float:
    """How many times as many tokens a sequence of decode holds: its prompt and half its answer."""
    prompt, output = both[0].estimate.prompt_tokens_mean, both[1].estimate.output_tokens_mean
    if not prompt or not output:
        return 1.0
    return (longer[0] * prompt + longer[1] * 0.5 * output) / (prompt + 0.5 * output)


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


def _divided(
    targets: FleetTargets, contexts: Mapping[str, TickContext], transfer_seconds: float
) -> dict[Objective, tuple[float, float]]:
    """What prefill and decode may use of each threshold, in seconds; none while it is unknown.

    Prefill has what a mean first token of decode leaves: where its times vary most, a percentile of
    the sum is its own percentile and the other's mean. Decode has what its long ones take.
    """
    objectives = targets.pools[0].targets.objectives
    steps = [o.threshold_seconds for o in objectives if o.metric is LatencyMetric.TPOT]
    found = {}
    for objective in objectives:
        whole, mean, long = objective.threshold_seconds, None, None
        if not ROW_OF[objective.metric].along_path:
            continue
        if objective.metric is LatencyMetric.LATENCY:
            mean = long = _mean_latency_part(targets, contexts, whole)
        elif steps:
            mean = MEAN_STEPS * min(steps) + transfer_seconds
            long = LONG_STEPS * min(steps) + LONG_TRANSFER_RATIO * transfer_seconds
        else:
            mean = long = PLAIN_PART * whole
        if mean is not None and long is not None:
            most = LARGEST_PART * whole
            if objective.metric is LatencyMetric.LATENCY:
                most = LARGEST_LATENCY_PART * whole
            found[objective] = whole - min(mean, most), min(long, most)
    return found


def _mean_latency_part(
    targets: FleetTargets, contexts: Mapping[str, TickContext], whole_seconds: float
) -> float | None:
    """Decode's part in proportion to mean times of requests; None while one is not observed."""
    means = []
    for pool in targets.path:
        estimate = contexts[pool.name].estimate
        key = LatencyMetric.LATENCY.value
        seen = estimate.observed.get(key) or estimate.means.get(key)
        means.append(None if seen is None else seen.mean)
    first, last = means
    if first is None or not last:
        return None
    return whole_seconds * min(last / (first + last), LARGEST_LATENCY_PART)


def _kept_or_new(
    limits: PoolLimits,
    names: tuple[str, str],
    divided: Mapping[Objective, tuple[float, float]],
) -> PoolLimits:
    """The limits as they are, unless a part of decode differs by more than it is known to."""
    new = {name: dict(limits.get(name, {})) for name in names}
    for objective, parts in divided.items():
        key = objective_key(objective)
        before = new[names[1]].get(key)
        if before is None or abs(parts[1] / before - 1.0) > SAME_PART_RATIO:
            for name, part in zip(names, parts, strict=True):
                new[name][key] = part
    return {name: own for name, own in new.items() if own}
