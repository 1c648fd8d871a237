"""The part of a decision on batch limits, cost and admission, for people."""

from collections.abc import Iterator

from servingslo.explain.classes import class_text
from servingslo.explain.conditions.cause import dependent_verdict
from servingslo.explain.format import count, counted, number, percent, seconds
from servingslo.explain.parts.degradation import degradation_lines
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import CostReport
from servingslo.policy.knobs.decisions import (
    AdmissionDecision,
    BatchingDecision,
    LimitDecision,
    LimitsPlan,
    RolloutCost,
)
from servingslo.reasons import Reason
from servingslo.units import SECONDS_PER_HOUR


def knob_lines(decision: Decision) -> Iterator[str]:
    """Batch limits, cost and admission, one statement a line."""
    unknown = decision.batching.reason is Reason.LIMITS_UNKNOWN
    if not unknown or dependent_verdict(decision) is None:
        yield from _batching(decision.batching)
    if decision.cost is not None:
        yield f"Cost: {'; '.join(_cost(decision.cost))}"
    yield f"Admission: {', '.join(_admission(decision.admission))}"
    if decision.gateway_limit is not None:
        yield f"  {_bound(decision.gateway_limit)}"
    yield from class_text(decision)
    yield from degradation_lines(decision.degradation)


def _admission(admission: AdmissionDecision) -> Iterator[str]:
    yield admission.reason.value
    if admission.admitted_rate_per_second is not None:
        yield f"admitted {number(admission.admitted_rate_per_second)}/s"
    if admission.queue_limit is not None:
        yield f"queue limit {admission.queue_limit}"
    if admission.in_flight_limit is not None:
        yield f"in flight {admission.in_flight_limit} a replica"


def _bound(bound: LimitDecision) -> str:
    """'BackendTrafficPolicy/chat: LimitVerified, 45 in flight at each of 2 proxies'."""
    set_to = "no bound of its own" if bound.after is None else f"{bound.after} in flight"
    many = "its proxy" if bound.proxies == 1 else f"each of {bound.proxies} proxies"
    told = f"{bound.kind}/{bound.object_name}: {bound.reason.value}, {set_to} at {many}"
    return f"{told}; {bound.detail}" if bound.detail else told


def _batching(batching: BatchingDecision) -> Iterator[str]:
    """The limits; if others would be better, both plans and the cost of the change."""
    sequences = _knob(batching.current_max_num_seqs, batching.recommended_max_num_seqs)
    tokens = _knob(
        batching.current_max_num_batched_tokens, batching.recommended_max_num_batched_tokens
    )
    yield (
        f"Batching: {batching.reason.value}, max_num_seqs {sequences}, "
        f"max_num_batched_tokens {tokens}"
    )
    if batching.detail:
        yield f"  {batching.detail}"
    if batching.today is None or batching.better is None:
        return
    yield f"  with today's limits {_plan(batching.today)}"
    yield f"  with better limits {_plan(batching.better)}: {_saving(batching)}"
    if batching.rollout is not None:
        yield f"  the change {_rollout(batching.rollout)}"


def _knob(now: int | None, wanted: int | None) -> str:
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
    paid = ""
    if rollout.payback_seconds is not None:
        paid = f", paid back after {seconds(rollout.payback_seconds)}"
    return f"restarts {counted(rollout.restarted_replicas, 'pod')}, {hours} replica-hours{paid}"


def _saving(batching: BatchingDecision) -> str:
    saved = batching.replicas_saved or 0
    today, better = batching.today, batching.better
    if today is None or better is None:
        return "saves no replica now"
    if better.meets_objectives and not today.meets_objectives:
        return "meets the objectives; today's limits do not"
    if saved <= 0 and not today.meets_objectives:
        return "serves more, but still misses an objective"
    if saved <= 0:
        return "saves no replica now"
    return f"saves {saved} ({percent(saved / today.replicas)})"
