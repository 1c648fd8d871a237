"""What was found before anything is decided, as steps of the decision."""

from servingslo.policy.context import TickContext
from servingslo.policy.decision import DecisionStep, StepValue
from servingslo.policy.gateway_use import gateway_step
from servingslo.policy.limits_use import limits_step
from servingslo.policy.margin import margin_step
from servingslo.policy.new_pods import new_pods_step
from servingslo.policy.onset import onset_step
from servingslo.policy.recurrence import recurrence_step
from servingslo.policy.retries import retries_step
from servingslo.policy.seasonality import season_step
from servingslo.policy.slow_pods import slow_pods_step
from servingslo.policy.told_latencies import told_step


def law_step(context: TickContext) -> DecisionStep:
    """Where the service law is from and how far it is known to be off."""
    law = context.estimate.law
    inputs: dict[str, StepValue] = {
        "fit_error": law.fit_error,
        "samples": law.sample_count,
    }
    if law.stated_error_ratio is not None:
        inputs["stated_error"] = law.stated_error_ratio
    return DecisionStep(
        stage="model",
        knob="service-law",
        before=None,
        after=law.source,
        reason=law.reason,
        inputs=inputs,
    )


_STEPS = (
    law_step,
    limits_step,
    gateway_step,
    retries_step,
    new_pods_step,
    season_step,
    onset_step,
    recurrence_step,
    margin_step,
    slow_pods_step,
    told_step,
)


def findings(context: TickContext) -> tuple[DecisionStep, ...]:
    """A step for everything that there is something to say about."""
    told = (step(context) for step in _STEPS)
    return tuple(step for step in told if step is not None)
