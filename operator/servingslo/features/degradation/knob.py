"""Degrade before refusing: the weight of a fallback in the workload's own route.

Up only while no further replica can be had and the ready ones cannot take what arrives; back as
they can. Beyond the greatest share, or what the fallback takes, the bound in flight refuses.
"""

from dataclasses import dataclass, replace

from servingslo.estimation.gateway.fallback import FallbackUse
from servingslo.features.degradation.capacity import nothing_more, wanted_share_ratio
from servingslo.features.degradation.share import (
    FORMER,
    ROUTE_WEIGHTS,
    SHARE,
    TARGETS,
    THOUSANDTHS,
    DegradationDecision,
)
from servingslo.features.degradation.steps import (
    DOWN_RATIO,
    STEP_SECONDS,
    UP_RATIO,
    StepMemory,
    Verdict,
    bounded,
    followed,
    judge,
    lowered,
    raised,
    share_of_full,
    takes_more,
)
from servingslo.models.objectives import LatencyMetric
from servingslo.plugins import Key
from servingslo.policy.inputs import InForce, SignalProblem, Targets
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.policy.knobs.protocol import Outcome, PlainKnob, Turn
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.reasons import Reason


class DegradationKnob(PlainKnob):
    """The share of the requests that goes to the fallback."""

    name = ROUTE_WEIGHTS
    key: Key[KnobDecision] = Key(TARGETS.name, DegradationDecision)

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the share; nothing if none is asked for or nothing is carried out."""
        asked = TARGETS.of(turn.context.targets.features)
        standing = turn.context.observation.in_force.get(ROUTE_WEIGHTS)
        if asked is None or standing is None or not (turn.acting or FORMER in standing.values):
            return Outcome(None)
        share = (standing.values.get(SHARE) or 0) / THOUSANDTHS
        told = DegradationDecision(
            reason=Reason.DEGRADED if share else Reason.NOT_DEGRADED,
            route=asked.route,
            fallback=asked.fallback,
            max_share_ratio=asked.max_share_ratio,
            before=share,
            after=share,
            unread=SHARE not in standing.values,
        )
        if not turn.acting:
            held = acting_limit(turn.context.targets, turn.context.limits)
            return Outcome(replace(told, reason=held or told.reason))
        known = memory if isinstance(memory, StepMemory) else None
        if standing.refused is not None:
            return _refused(told, standing, standing.refused, known)
        context = turn.context
        known = followed(known, share, context.now_seconds)
        use = context.estimate.fallback
        told = replace(told, detail=_in_requests(use, context) if share else "")
        if context.signals.no_metrics is not None:
            return Outcome(replace(told, reason=context.signals.no_metrics.reason), known)
        steady_seconds = context.now_seconds - known.since_seconds
        situation = Situation(
            now_seconds=context.now_seconds,
            wanted=wanted_share_ratio(context, turn.requirement, share, steady_seconds),
            cause=nothing_more(context),
            counted=context.observation.gateway is not None,
            bound_seconds=_bound_seconds(context.targets),
        )
        return next_share(told, known, use, situation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a step depends on besides the fallback's own counts.

    wanted: the share of all requests that should go there, before any bound. cause: why no further
    replica can be had, None if one can. counted: a gateway's counts are read. bound_seconds: that a
    mean answer must not exceed; None if none is known.
    """

    now_seconds: float
    wanted: float
    cause: Reason | None
    counted: bool = True
    bound_seconds: float | None = None


def next_share(
    told: DegradationDecision, memory: StepMemory, use: FallbackUse | None, situation: Situation
) -> Outcome:
    """The share of the next moment, from what the fallback shows and what is wanted."""
    now_seconds = situation.now_seconds
    verdict, memory = judge(memory, use, situation.bound_seconds, now_seconds)
    if verdict in {Verdict.FULL, Verdict.UNSEEN}:
        return _taken_back(told, memory, verdict, use, now_seconds)
    share, wanted = memory.share, situation.wanted
    due = now_seconds - memory.since_seconds >= STEP_SECONDS
    most = min(told.max_share_ratio, memory.most(now_seconds))
    told = replace(told, takes_more=situation.counted and takes_more(memory, most, now_seconds))
    if wanted < share - DOWN_RATIO or (wanted <= 0.0 < share):
        after = lowered(memory, wanted) if due else share
        return _moved(told, memory, after, Reason.DEGRADATION_LOWERED)
    if wanted <= share + UP_RATIO:
        return Outcome(told, memory)
    if share >= most:
        reason = Reason.MAX_SHARE_REACHED
        if most < told.max_share_ratio:
            reason = Reason.FALLBACK_UNSEEN if memory.unseen else Reason.FALLBACK_FULL
        return Outcome(replace(told, reason=reason), memory)
    if situation.cause is None or not situation.counted:
        return Outcome(told, memory)
    told = replace(told, cause=situation.cause)
    after = raised(memory, wanted, most) if due and verdict is Verdict.GOOD else share
    return _moved(told, memory, after, Reason.DEGRADATION_RAISED)


def _taken_back(
    told: DegradationDecision,
    memory: StepMemory,
    verdict: Verdict,
    use: FallbackUse | None,
    now_seconds: float,
) -> Outcome:
    """A step back from a fallback that is full, or not counted."""
    unseen = verdict is Verdict.UNSEEN
    told = replace(told, reason=Reason.FALLBACK_UNSEEN if unseen else Reason.FALLBACK_FULL)
    share = 0.0 if unseen else share_of_full(memory, use)
    if not unseen and now_seconds - memory.since_seconds < STEP_SECONDS:
        return Outcome(told, memory)
    memory = bounded(memory, _thousandths(share), now_seconds, unseen=unseen)
    return _moved(told, memory, share, told.reason)


def _moved(
    told: DegradationDecision, memory: StepMemory, share: float, change_reason: Reason
) -> Outcome:
    """The decision that sets another share; the memory follows once it is in force."""
    after = _thousandths(share)
    if after == told.before:
        return Outcome(told, memory)
    return Outcome(
        replace(told, after=after, change_reason=change_reason, puts_back=after == 0.0), memory
    )


def _refused(
    told: DegradationDecision,
    standing: InForce,
    problem: SignalProblem,
    memory: StepMemory | None,
) -> Outcome:
    """Stop changing weights; put them back if they are ours, because nothing follows them now."""
    told = replace(told, reason=problem.reason, detail=problem.detail)
    if problem.reason is Reason.CLUSTER_UNAVAILABLE:
        return Outcome(told, memory)
    if FORMER not in standing.values:
        return Outcome(told)
    return Outcome(replace(told, after=0.0, change_reason=Reason.WEIGHTS_PUT_BACK, puts_back=True))


def _thousandths(share: float) -> float:
    """The share as weights can say it, rounded down, so that no bound is exceeded."""
    # The added tenth of a thousandth keeps 0.3 from becoming 0.299.
    return int(share * THOUSANDTHS + 0.1) / THOUSANDTHS


def _in_requests(use: FallbackUse | None, context: TickContext) -> str:
    """'12 of 40 requests/s go there, 0.5/s are refused there'."""
    offered = context.estimate.offered_rate_per_second
    if use is None or not offered:
        return "no count of it yet"
    said = f"{use.requests_per_second:.3g} of {offered:.3g} requests/s go there"
    if use.refused_per_second > 0.0:
        said = f"{said}, {use.refused_per_second:.2g}/s are refused there"
    return said


def _bound_seconds(targets: Targets) -> float | None:
    """The threshold of whole requests; None without such an objective."""
    found = [
        one.threshold_seconds for one in targets.objectives if one.metric is LatencyMetric.LATENCY
    ]
    return min(found, default=None)


PART = DegradationKnob()
