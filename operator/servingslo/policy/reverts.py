"""Who puts the count back each time that we change it, and how long to leave it alone then.

A GitOps controller that heals itself, or a job that sets a count every minute, and an autoscaler
would write against each other for ever: each write makes pods that the next one deletes.
"""

from dataclasses import dataclass, replace

from servingslo.policy.decision import StepValue

# One edit is a person's, two may be chance; the third of the same count is a program.
REVERTS_BEFORE_PAUSE = 3
# A write that stands so long was not put back: longer than the five minutes in which Argo CD and
# most jobs come round (argo-cd v3, timeout.reconciliation 180 s), and than Flux by default.
STANDING_SECONDS = 600.0
# The pause after the third revert, doubled with each further one: two ticks of a minute's job at
# first, and at last one try in half an hour.
FIRST_PAUSE_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverts:
    """How often one count was put back in a row.

    replicas: the count. at_seconds: when it was put back last. by: the field manager that did, None
    where the target does not tell.
    """

    replicas: int
    count: int
    at_seconds: float
    by: str | None = None

    @property
    def until_seconds(self) -> float:
        """Until when the count is left alone; the time of the last revert while they are few."""
        more = self.count - REVERTS_BEFORE_PAUSE
        if more < 0:
            return self.at_seconds
        return self.at_seconds + min(FIRST_PAUSE_SECONDS * 2.0**more, LONGEST_PAUSE_SECONDS)

    def pauses(self, now_seconds: float) -> bool:
        """Whether the count is left alone now; a clock that went back ends no pause late."""
        return self.at_seconds <= now_seconds < self.until_seconds

    def inputs(self) -> dict[str, StepValue]:
        """The numbers and names that a decision tells."""
        whose = self.by or "an unnamed field manager"
        return {
            "reverts": self.count,
            "put_back_to": self.replicas,
            "field_manager": self.by,
            "until_seconds": self.until_seconds,
            "detail": f"put back to {self.replicas} {self.count} times in a row by {whose}: "
            "the count is left to it for a while",
        }


def reverted(
    before: Reverts | None, *, replicas: int, by: str | None, now_seconds: float
) -> Reverts:
    """The memory after somebody set another count than the one that we had written."""
    if before is None or before.replicas != replicas:
        return Reverts(replicas=replicas, count=1, at_seconds=now_seconds, by=by)
    return replace(before, count=before.count + 1, at_seconds=now_seconds, by=by)


def standing(before: Reverts | None, *, since_seconds: float, now_seconds: float) -> Reverts | None:
    """The memory while a count of ours stands: none once it stood long enough.

    since_seconds: when it was written.
    """
    if before is None:
        return None
    needed = max(STANDING_SECONDS, before.until_seconds - before.at_seconds)
    stood = now_seconds - max(since_seconds, before.at_seconds)
    return None if stood >= needed else before
