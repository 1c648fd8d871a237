"""Scale to zero and back, if a gateway reports that requests arrive again.

Without a gateway that counts this workload's requests nothing would wake it, so the last replica
stays. Missing data is never taken for quiet: the idle time starts again after every gap.
"""

from dataclasses import replace

from servingslo.estimation.estimate import Estimate
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import Observation, SignalProblem, Targets
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.demand import DRAIN_SECONDS
from servingslo.policy.replicas.proposal import Proposal
from servingslo.policy.replicas.signals import Signals
from servingslo.policy.replicas.sizing import Load, size
from servingslo.policy.rules.needs import NEEDS
from servingslo.policy.rules.requirement import sizing_case
from servingslo.policy.rules.step_down import step_down_blocks
from servingslo.reasons import BOUND_REASON, Reason

STAGE = "zero"
# A gateway that counts fewer requests than the engines, or impossible numbers, would miss the first
# request too.
_COUNTED = frozenset({Reason.GATEWAY_COUNTS, Reason.GATEWAY_REFUSALS_ADDED})
# No pod is ready, or no ready pod was scraped yet.
_STARTING = frozenset({Reason.PENDING_PODS, Reason.WARMING_UP})
# Percentile of the time to first token that is reported if no objective states one.
_PLAIN_PERCENTILE = 95.0
_NO_SIGNAL = "no gateway is read that counts this workload's requests: nothing would wake it"


def sleeps(observation: Observation, targets: Targets) -> bool:
    """Whether the target is at zero and may be: requests wake it."""
    return observation.desired_replicas == 0 and targets.replicas.may_sleep


def gateway_requests(observation: Observation, estimate: Estimate) -> float | None:
    """Above 0 if requests arrive or wait at the gateway; None if there is no signal.

    If there is no gateway signal and another scaler wakes the target, that scaler watches it: 0.
    Some gateways count nothing without a pod; a zero from them is no signal.
    """
    use = estimate.gateway
    unheard = 0.0 if observation.woken_by_others else None
    if use is None or use.reason not in _COUNTED or use.gateway_per_second is None:
        return unheard
    told = use.gateway_per_second + use.refused_per_second + estimate.backlog_requests
    return unheard if observation.not_woken and told == 0.0 else told


def sleeping_signals(signals: Signals, observation: Observation, estimate: Estimate) -> Signals:
    """The signals of a target without pods: only the gateway's exist."""
    if gateway_requests(observation, estimate) is None:
        problem = SignalProblem(reason=Reason.NO_WAKE_UP_SIGNAL, detail=_no_signal(observation))
        return replace(signals, reason=problem.reason, no_metrics=problem)
    return replace(signals, reason=Reason.METRICS_FRESH, no_metrics=None)


def wakes(context: TickContext) -> bool:
    """Whether the first pods after zero are starting: the count that woke them is kept."""
    problem = context.signals.no_metrics
    pending = problem is not None and problem.reason in _STARTING
    return pending and context.targets.replicas.may_sleep


def quiet_since(context: TickContext, since_seconds: float | None) -> float | None:
    """Since when engines and gateway have had no requests; None if not quiet or not known."""
    quiet = context.signals.reason is Reason.METRICS_FRESH and _told(context) == 0.0
    if not quiet or context.state.idle_since_seconds is None:
        return None
    return context.now_seconds if since_seconds is None else since_seconds


def first_request_seconds(context: TickContext) -> float:
    """Time to the first token of the first request after zero: reaction and cold start included."""
    prepared = context.prepared or context.state.prepared
    if prepared is None:
        return context.lead_seconds
    percentile = max(
        (o.percentile for o in context.targets.objectives if o.metric is LatencyMetric.TTFT),
        default=_PLAIN_PERCENTILE,
    )
    return context.lead_seconds + prepared.frontier.unloaded_seconds(LatencyMetric.TTFT, percentile)


def put_to_sleep(context: TickContext, proposal: Proposal) -> Proposal:
    """Set zero instead of the minimum, once no request has arrived for the stated time."""
    allowed = context.targets.replicas
    settled = (
        proposal.replicas == context.current <= context.bounds.minimum + allowed.tolerated_failures
    )
    idle = proposal.requirement.idle
    if allowed.minimum > 0 or not idle or not settled or step_down_blocks(context):
        return proposal
    if _told(context) is None:
        detail = _no_signal(context.observation)
        return proposal.held(STAGE, context.current, Reason.NO_WAKE_UP_SIGNAL, detail=detail)
    since_seconds = quiet_since(context, context.state.quiet_since_seconds)
    quiet = 0.0 if since_seconds is None else context.now_seconds - since_seconds
    if allowed.idle_seconds is None or quiet < allowed.idle_seconds:
        return proposal
    return proposal.required(
        STAGE,
        0,
        Reason.IDLE,
        idle_seconds=quiet,
        first_request_seconds=first_request_seconds(context),
    )


def sleep_or_wake(context: TickContext) -> Proposal:
    """Zero while no requests arrive; otherwise the replicas that they, or waiting work, need."""
    seconds = first_request_seconds(context)
    asleep = Proposal.of(0)
    needs = [need for rule in NEEDS.parts() if (need := rule(context, None)) is not None]
    told = _told(context)
    if not told and not needs:
        requirement = replace(asleep.requirement, idle=True)
        asleep = asleep.noted(STAGE, 0, Reason.ASLEEP, first_request_seconds=seconds)
        return replace(asleep, requirement=requirement)
    use = context.estimate.gateway
    woken = asleep.required(
        STAGE,
        max((_woken_replicas(context), *(need.replicas for need in needs))),
        Reason.WOKEN_BY_REQUESTS if told else BOUND_REASON[needs[0].constraint],
        gateway_per_second=None if use is None else use.gateway_per_second,
        waiting_requests=context.estimate.backlog_requests,
        first_request_seconds=seconds,
    )
    asked = tuple(one for need in needs for one in need.reported)
    requirement = replace(woken.requirement, replicas=woken.replicas, needs=asked)
    return replace(woken, requirement=requirement)


def _no_signal(observation: Observation) -> str:
    return (
        f"{observation.not_woken}; nothing would wake it" if observation.not_woken else _NO_SIGNAL
    )


def _told(context: TickContext) -> float | None:
    return gateway_requests(context.observation, context.estimate)


def _woken_replicas(context: TickContext) -> int:
    """The minimum, or what the queue needs: replicas ordered later would start later."""
    least = max(1, context.targets.replicas.tolerated_failures + 1)
    prepared = context.prepared or context.state.prepared
    if prepared is None:
        return least
    load = Load(
        rate_per_second=0.0, drain_per_second=context.estimate.backlog_requests / DRAIN_SECONDS
    )
    return max(least, size(sizing_case(context, prepared), load).replicas)


def own_reason(proposal: Proposal) -> Reason | None:
    """Why the count is zero or no longer zero; None if this stage did not set it."""
    return next(
        (
            s.reason
            for s in reversed(proposal.steps)
            if s.stage == STAGE and s.after == proposal.replicas
        ),
        None,
    )
