"""The bound that engines enforce themselves: a flag of each replica's command line.

It is read here; a change restarts every pod, so whoever changes batch limits there writes it.
"""

from dataclasses import replace

from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    InForce,
    LimitKind,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.decisions import (
    BATCH_LIMITS,
    GATEWAY_LIMITS,
    AdmissionDecision,
    LimitDecision,
)
from servingslo.policy.knobs.in_flight.gateway import (
    FORMER,
    LIMIT,
    LimitMemory,
    bound_reason,
    judge_bound,
)
from servingslo.policy.replicas.context import TickContext
from servingslo.reasons import Reason

# Names of values in force: the bound in the pod template's command line, and when one pod got
# others on trial.
QUEUE, SINCE = "max_num_queued_reqs", "since_seconds"


def standing_limits(context: TickContext) -> InForce | None:
    """The values in force of batch limits, in addition to the pods'; None if none are changed."""
    return context.observation.in_force.get(BATCH_LIMITS)


def is_asked(targets: Targets) -> bool:
    """Whether the spec asks engines to bound what they accept."""
    via = targets.admission_via
    asked = targets.admission_mode is AdmissionMode.AUTO
    return asked and via is not None and via.kind is LimitKind.ENGINE_ARGUMENTS


def engine_limit(
    context: TickContext,
    _admission: AdmissionDecision,
    memory: LimitMemory | None,
    *,
    acting: bool,
) -> tuple[LimitDecision | None, LimitMemory | None]:
    """State of the engines' own bound: in force or why not, and whether it holds.

    The change of batch limits writes it. Each replica is reported as a proxy of its own.
    """
    standing = standing_limits(context)
    if not acting:
        return None, None
    serving = max(len(context.serving), 1)
    told = LimitDecision(
        reason=Reason.LIMIT_UNVERIFIED,
        kind=LimitKind.ENGINE_ARGUMENTS,
        object_name=context.targets.target.name,
        proxies=serving,
    )
    problem = bound_problem(context)
    if problem is not None:
        return replace(told, reason=problem.reason, detail=problem.detail), None
    if standing is not None and standing.values.get(SINCE) is not None:
        return replace(told, detail="one pod tries another one"), memory
    queue = None if standing is None else standing.values[QUEUE]
    told = replace(told, before=queue, after=queue)
    if queue is None:
        return replace(told, detail="it is in no pod template yet"), None
    checked = judge_bound(
        context,
        memory or LimitMemory(),
        InForce(values={LIMIT: queue, FORMER: None}),
        serving,
        refusing=context.estimate.rejected_per_second > 0.0,
    )
    return replace(told, reason=bound_reason(checked)), checked


def bound_problem(context: TickContext) -> SignalProblem | None:
    """Why engines get no bound; None if they do."""
    allowed, standing = context.observation.in_force.get(GATEWAY_LIMITS), standing_limits(context)
    if allowed is not None and allowed.refused is not None:
        return allowed.refused
    if not context.limits.pod_templates_patched:
        detail = "the administrator lets no pod template be patched"
        return SignalProblem(reason=Reason.NOT_PERMITTED, detail=detail)
    if context.targets.batching.mode is not BatchingMode.AUTO:
        missing = "batching.mode Auto, with which it is changed"
    elif standing is None or QUEUE not in standing.values:
        missing = "a flag by which these engines bound what they accept"
    else:
        return None
    detail = f"it needs {missing}"
    return SignalProblem(reason=Reason.LIMIT_NOT_ENFORCEABLE, detail=detail)
