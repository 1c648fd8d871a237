"""How often batch limits of ours were put back, and for how long they are left alone then."""

from dataclasses import dataclass

from servingslo.policy.replicas.reverts import manager_in_words, pause_seconds

# Of batch limits, from the first revert on: what is put back has cost a rollout each way. An hour
# is Flux's longest usual interval, and a day is how long refused limits are left alone.
FIRST_LIMITS_PAUSE_SECONDS = 3600.0
LONGEST_LIMITS_PAUSE_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReverts:
    """How often our batch limits were put back to the same ones in a row.

    limits: those, sequences and tokens. at_seconds: when they were put back last. by: the field
    manager that did, None where the target does not tell.
    """

    limits: tuple[int, int]
    count: int
    at_seconds: float
    by: str | None = None

    @property
    def until_seconds(self) -> float:
        """Until when the limits are left alone."""
        return self.at_seconds + pause_seconds(
            self.count - 1, FIRST_LIMITS_PAUSE_SECONDS, LONGEST_LIMITS_PAUSE_SECONDS
        )

    def pauses(self, now_seconds: float) -> bool:
        """Whether the limits are left alone now; a clock that went back ends no pause late."""
        return self.at_seconds <= now_seconds < self.until_seconds

    @property
    def detail(self) -> str:
        """Who put what back how often, for people."""
        sequences, budget = self.limits
        times = "once" if self.count == 1 else f"{self.count} times in a row"
        return (
            f"put back to max_num_seqs {sequences}, max_num_batched_tokens {budget} {times} by "
            f"{manager_in_words(self.by)}: batch limits are left to it for a while"
        )


def limits_reverted(
    before: LimitReverts | None, *, limits: tuple[int, int], by: str | None, now_seconds: float
) -> LimitReverts:
    """The memory after somebody put back the limits from before our change."""
    count = 1 if before is None or before.limits != limits else before.count + 1
    return LimitReverts(limits=limits, count=count, at_seconds=now_seconds, by=by)


def limits_standing(
    before: LimitReverts | None, *, since_seconds: float, now_seconds: float
) -> LimitReverts | None:
    """The memory while limits of ours stand in the template: none once they stood long enough."""
    if before is None:
        return None
    stood = now_seconds - max(since_seconds, before.at_seconds)
    return None if stood >= before.until_seconds - before.at_seconds else before
