"""What is decided about limits of dynamic batches, as data."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from servingslo.plugins import Key
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.decisions import BatchingDecision, Decided, KnobDecision
from servingslo.reasons import Reason

# The knob and its actuator.
DYNAMIC_BATCHING = "dynamic-batching"


class BatcherLimits(NamedTuple):
    """Limits as in a model's configuration; max_queue_size 0 is unlimited."""

    max_batch_size: int
    max_queue_delay_microseconds: int
    max_queue_size: int

    def __str__(self) -> str:
        """'8/20000/64'."""
        return "/".join(map(str, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherDecision(KnobDecision):
    """Limits of dynamic batches that are set on servers while they run.

    before: the limits that most pods have. after: the limits that all pods are to have; None if
    none are known, or if the limits from before ours are restored. pods: those that are set at this
    tick. puts_back: they get back the limits from before ours.
    """

    before: BatcherLimits | None = None
    after: BatcherLimits | None = None
    pods: tuple[str, ...] = ()
    puts_back: bool = False

    def hold(self) -> Self:
        """Set no pod."""
        return replace(self, pods=())

    def amended(self, other: Decided) -> Decided:
        """Batch limits are reported as those of dynamic batches, because servers have them."""
        if not isinstance(other, BatchingDecision) or other.reason is Reason.BATCHING_OFF:
            return other
        change = ""
        if self.after is not None and self.after != self.before:
            change = ", ".join(
                f"{name} {before} → {after}"
                for name, before, after in zip(
                    BatcherLimits._fields, self.before or (), self.after, strict=False
                )
                if before != after
            )
        detail = ": ".join(part for part in (change, self.detail) if part)
        return replace(other, reason=self.reason, detail=detail)


# Its place in documents.
BATCHER: Key[KnobDecision] = Key("batcher", BatcherDecision)


def batcher_of(decision: Decision) -> BatcherDecision | None:
    """Limits of dynamic batches; None if none are read from servers."""
    found = decision.knobs.get(DYNAMIC_BATCHING)
    return found if isinstance(found, BatcherDecision) else None
