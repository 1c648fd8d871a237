"""What is decided about the batch limits of a pod template."""

from dataclasses import dataclass
from enum import StrEnum

from servingslo.plugins import Key
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.decisions import BATCH_LIMITS, BatchingDecision, KnobDecision


class CanaryAct(StrEnum):
    """What to do about new batch limits that one pod has first.

    HOLD: no step happens by itself. LEAVE: keep the limits that another client set meanwhile.
    """

    START = "start"
    HOLD = "hold"
    COMPLETE = "complete"
    TAKE_BACK = "take-back"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDecision(BatchingDecision):
    """Batch limits of the command line in a pod template.

    flags_removed: limits whose flags are removed, because they were added by the change that is
    taken back. flags_added: limits that get a flag for the first time. queue: the engines' own
    bound, before and after; empty if it stays. canary: what apply does.
    """

    flags_removed: tuple[str, ...] = ()
    flags_added: tuple[str, ...] = ()
    queue: tuple[int | None, ...] = ()
    canary: CanaryAct | None = None


# Its place in documents.
TEMPLATE_LIMITS: Key[KnobDecision] = Key("batching", TemplateDecision)


def decided(decision: Decision) -> TemplateDecision | None:
    """What was decided; None if nothing was."""
    found = decision.knobs.get(BATCH_LIMITS)
    return found if isinstance(found, TemplateDecision) else None
