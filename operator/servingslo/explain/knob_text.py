"""The part of a decision on batch limits, cost and admission, for people."""

from collections.abc import Iterator

from servingslo.explain import features
from servingslo.explain.conditions.cause import dependent_verdict
from servingslo.explain.format import (
    count,
    counted,
    each_proxy,
    joined,
    number,
    per_second,
    percent,
    seconds,
)
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import CostReport
from servingslo.policy.knobs.decisions import (
    AdmissionDecision,
    BatchingDecision,
    LimitDecision,
    RolloutCost,
)
from servingslo.policy.rules.batch_search import LimitsPlan
from servingslo.reasons import Reason
from servingslo.units import SECONDS_PER_HOUR


def knob_lines(decision: Decision) -> Iterator[str]:
    """Batch limits, cost and admission, one statement a line."""
    unknown = decision.batching.reason is Reason.LIMITS_UNKNOWN
    if not unknown or dependent_verdict(decision) is None:
        yield from _batching(decision.batching)
    if decision.cost is not None:
        yield f"Cost: {'; '.join(_cost(decision.cost))}"
    yield f"Admission: {_admission(decision.admission)}"
    if decision.gateway_limit is not None:
        yield f"  {_bound(decision.gateway_limit)}"
    yield from features.knob_lines(decision.knobs)


def _admission(admission: AdmissionDecision) -> str:
    rate, queue = per_second(admission.admitted_rate_per_second), admission.queue_limit
    in_flight = admission.in_flight_limit
    parts = (
        admission.reason.value,
        rate and f"admitted {rate}",
        None if queue is None else f"queue limit {queue}",
        None if in_flight is None else f"in flight {in_flight} a replica",
    )
    return joined(parts)


def _bound(bound: LimitDecision) -> str:
    """'BackendTrafficPolicy/chat: LimitVerified, 45 in flight at each of 2 proxies'."""
    set_to = "no bound of its own" if bound.after is None else f"{bound.after} in flight"
    at = each_proxy(bound.proxies)
    told = f"{bound.kind}/{bound.object_name}: {bound.reason.value}, {set_to} at {at}"
    return joined((told, bound.detail), "; ")


def _batching(batching: BatchingDecision) -> Iterator[str]:
    """The limits; if others would be better, both plans and the cost of the change."""
    limits = (f"{name} {_limit(now, wanted)}" for name, now, wanted in batching.limits)
    yield f"Batching: {joined((batching.reason.value, *limits))}"
    if batching.detail:
        yield f"  {batching.detail}"
    if batching.today is None or batching.better is None:
        return
    yield f"  with today's limits {_plan(batching.today)}"
    yield f"  with better limits {_plan(batching.better)}: {_saving(batching)}"
    if batching.rollout is not None:
        yield f"  the change {_rollout(batching.rollout)}"


def _limit(now: int | None, wanted: int | None) -> str:
    """The value in force, and the recommended one if it differs."""
    return count(now) if wanted in {None, now} else f"{count(now)} → {wanted}"


def _cost(cost: CostReport) -> Iterator[str]:
    yield f"{number(cost.per_hour)} {cost.currency} an hour"
    if cost.per_million_output_tokens is not None and cost.per_million_tokens is not None:
        yield (
            f"a million output tokens {number(cost.per_million_output_tokens)}, "
            f"with prompts {number(cost.per_million_tokens)}"
        )
    if cost.saved_per_hour:
        yield f"the better limits save {number(cost.saved_per_hour)} an hour"


def _plan(plan: LimitsPlan) -> str:
    missing = "" if plan.meets_objectives else ", which miss an objective"
    in_flight = counted(plan.in_flight_limit, "request")
    return f"{counted(plan.replicas, 'replica')}, {in_flight} in flight at each{missing}"


def _rollout(rollout: RolloutCost) -> str:
    hours = number(rollout.surge_replica_seconds / SECONDS_PER_HOUR)
    back = rollout.payback_seconds
    paid = "" if back is None else f", paid back after {seconds(back)}"
    return f"restarts {counted(rollout.restarted_replicas, 'pod')}, {hours} replica-hours{paid}"


def _saving(batching: BatchingDecision) -> str:
    saved = batching.replicas_saved or 0
    today, better = batching.today, batching.better
    if today is None or better is None:
        return "saves no replica now"
    if better.meets_objectives and not today.meets_objectives:
        return "meets the objectives; today's limits do not"
    if saved > 0:
        return f"saves {saved} ({percent(saved / today.replicas)})"
    misses = not today.meets_objectives
    return "serves more, but still misses an objective" if misses else "saves no replica now"
