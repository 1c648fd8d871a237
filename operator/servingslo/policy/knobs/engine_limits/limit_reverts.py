"""How often our batch limits were reverted, and how long the operator then leaves them alone."""

from dataclasses import dataclass

from servingslo.policy.replicas.reverts import manager_in_words, pause_seconds

# Pause for batch limits, from the first revert on, because each revert has cost two rollouts. An
# hour is Flux's longest usual interval; refused limits are left alone for a day.
FIRST_LIMITS_PAUSE_SECONDS = 3600.0
LONGEST_LIMITS_PAUSE_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReverts:
    """How often our batch limits were reverted to the same ones in a row.

    limits: those, sequences and tokens. at_seconds: time of the last revert. by: the field manager
    that did it, None if the target does not report it.
    """

    limits: tuple[int, int]
    count: int
    at_seconds: float
    by: str | None = None

    @property
    def until_seconds(self) -> float:
        """End of the pause."""
        return self.at_seconds + pause_seconds(
            self.count - 1, FIRST_LIMITS_PAUSE_SECONDS, LONGEST_LIMITS_PAUSE_SECONDS
        )

    def pauses(self, now_seconds: float) -> bool:
        """Whether the limits are left alone now; setting a clock back does not extend a pause."""
        return self.at_seconds <= now_seconds < self.until_seconds

    @property
    def detail(self) -> str:
        """Which client reverted which limits how often, for people."""
        sequences, budget = self.limits
        times = "once" if self.count == 1 else f"{self.count} times in a row"
        return (
            f"put back to max_num_seqs {sequences}, max_num_batched_tokens {budget} {times} by "
            f"{manager_in_words(self.by)}: batch limits are left to it for a while"
        )


def limits_reverted(
    before: LimitReverts | None, *, limits: tuple[int, int], by: str | None, now_seconds: float
) -> LimitReverts:
    """The memory after another client restored the limits from before our change."""
    count = 1 if before is None or before.limits != limits else before.count + 1
    return LimitReverts(limits=limits, count=count, at_seconds=now_seconds, by=by)


def limits_standing(
    before: LimitReverts | None, *, since_seconds: float, now_seconds: float
) -> LimitReverts | None:
    """The memory while our limits stay in the template: none once they have stayed long enough."""
    if before is None:
        return None
    stood = now_seconds - max(since_seconds, before.at_seconds)
    return None if stood >= before.until_seconds - before.at_seconds else before
