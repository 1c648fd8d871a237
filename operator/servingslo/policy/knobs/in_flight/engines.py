"""The bound that engines enforce themselves: a flag of each replica's command line.

A change restarts every pod, so it is made together with a change of batch limits, one pod first. It
is made alone only if the bound is missing or far off. It need not follow the replica count: each
replica has its own bound.
"""

import math
from dataclasses import dataclass, replace

from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    InForce,
    LimitKind,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.decisions import (
    GATEWAY_LIMITS,
    AdmissionDecision,
    LimitDecision,
    LimitsPlan,
)
from servingslo.policy.knobs.engine_limits.canary import (
    QUEUE,
    REFUSED,
    standing_canary,
    standing_limits,
)
from servingslo.policy.knobs.in_flight.gateway import (
    FORMER,
    HEADROOM,
    LIMIT,
    LimitMemory,
    bound_reason,
    judge_bound,
)
from servingslo.policy.replicas.context import TickContext
from servingslo.reasons import Reason

# A bound that is off by less stays until the limits change. The right bound of one replica moves by
# a few per cent with every mix, and by half with another kind of requests.
FAR_OFF_RATIO = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineQueue:
    """The bound in the pod template, None if it has none, and the wanted bound.

    today, better: with the limits in force, and with the better ones. refused: the bound that was
    taken back.
    """

    before: int | None
    today: int
    better: int
    refused: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is worth a rollout of its own."""
        return _is_far(self.before, self.today) and _is_far(self.refused, self.today)


def engine_queue(context: TickContext, today: LimitsPlan, better: LimitsPlan) -> EngineQueue | None:
    """The engines' own bound; None if it is not to be written."""
    standing = standing_limits(context)
    if not is_asked(context.targets) or _problem(context) is not None or standing is None:
        return None
    return EngineQueue(
        before=standing.values[QUEUE],
        today=math.ceil(HEADROOM * today.in_flight_limit),
        better=math.ceil(HEADROOM * better.in_flight_limit),
        refused=standing.values.get(f"{REFUSED}{QUEUE}"),
    )


def is_asked(targets: Targets) -> bool:
    """Whether the spec asks engines to bound what they accept."""
    via = targets.admission_via
    asked = targets.admission_mode is AdmissionMode.AUTO
    return asked and via is not None and via.kind is LimitKind.ENGINE_ARGUMENTS


def _is_far(bound: int | None, wanted: int) -> bool:
    return bound is None or not wanted / FAR_OFF_RATIO <= bound <= FAR_OFF_RATIO * wanted


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
    problem = _problem(context)
    if problem is not None:
        return replace(told, reason=problem.reason, detail=problem.detail), None
    if standing_canary(standing) is not None:
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


def _problem(context: TickContext) -> SignalProblem | None:
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
