"""Which batch limits the plan rests on, and how they are known."""

from servingslo.estimation.limits import Limit, LimitSource
from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep, LimitsUse, StepValue
from servingslo.policy.state import LIMIT_FIELDS
from servingslo.reasons import Reason


def limits_use(context: TickContext) -> LimitsUse:
    """Both limits with their sources."""
    in_force = context.estimate.in_force
    sequences, budget = in_force.max_num_seqs, in_force.max_num_batched_tokens
    return LimitsUse(
        max_num_seqs=None if sequences is None else sequences.value,
        max_num_seqs_source=None if sequences is None else sequences.source.value,
        max_num_batched_tokens=None if budget is None else budget.value,
        max_num_batched_tokens_source=None if budget is None else budget.source.value,
        unread=in_force.unread,
    )


def limits_step(context: TickContext) -> DecisionStep | None:
    """A limit that nobody gave: the default, or what data show in its place; None without one.

    A limit that is learnt is told with the default that it takes the place of.
    """
    in_force = context.estimate.in_force
    named = zip(LIMIT_FIELDS, (in_force.max_num_seqs, in_force.max_num_batched_tokens), strict=True)
    unstated: list[tuple[str, Limit]] = [
        (name, limit)
        for name, limit in named
        if limit is not None and limit.source in {LimitSource.LEARNT, LimitSource.DEFAULT}
    ]
    if not unstated:
        return None
    learnt = [one for one in unstated if one[1].source is LimitSource.LEARNT]
    knob, told = (learnt or unstated)[0]
    inputs: dict[str, StepValue] = {}
    for name, limit in unstated:
        inputs[name] = limit.value
        inputs[f"{name}_source"] = limit.source.value
        inputs[f"{name}_default"] = limit.assumed
    return DecisionStep(
        stage="observed",
        knob=knob,
        before=told.assumed,
        after=told.value,
        reason=Reason.LIMITS_LEARNT if learnt else Reason.LIMITS_ASSUMED,
        inputs=inputs,
    )


def flags_absent(context: TickContext) -> tuple[str, ...]:
    """Limits whose flags no serving container's command line has; none where that is unknown."""
    launches = [pod.launch for pod in context.serving if pod.launch is not None]
    if not launches:
        return ()
    had = {name for launch in launches for name in launch.flags}
    return tuple(name for name in LIMIT_FIELDS if name not in had)
