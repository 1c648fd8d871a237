"""The steps of a share, and what the fallback's own counts say of each.

A step is verified by counts of the fallback that began after it. A fallback that refuses, or whose
answers take far longer than they did, is full: the share goes back to the one before, and for a
time no higher.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.estimation.gateway.fallback import FallbackUse
from servingslo.features.degradation.capacity import FIRST_STEP_RATIO

# Time between two steps: two scrapes, so that a whole window of the fallback's counts lies between.
STEP_SECONDS = 30.0
# A share may grow to this many times the one that was verified.
GROWTH = 2.0
# A share that goes back may fall to this part at once, so that ready replicas meet no jump.
FALL = 0.5
# Gaps between the wanted and the present share that are noise of the measured rates.
UP_RATIO, DOWN_RATIO = 0.02, 0.05
# A fallback that refuses more than this share of its requests is full. A promised share of
# 99 % allows no more.
MOST_REFUSED_RATIO = 0.01
# Answers that take this many times the least mean of the fallback are those of a full one.
# Judgement; measured by the share at which a simulated fallback begins to queue.
SLOWER = 2.0
# A mean of fewer answers, or a share refused of fewer requests, is chance.
LEAST_REQUESTS = 10.0
# For this long a full fallback gets no more than it took.
FULL_SECONDS = 300.0
# After this long without counts of the fallback a step is taken back.
UNSEEN_SECONDS = 120.0


class Verdict(StrEnum):
    """What the fallback's counts say of the present share."""

    WAITING = "waiting"
    GOOD = "good"
    FULL = "full"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The last step and what is known of the fallback. Nothing of it survives a restart.

    share: as seen in force. since_seconds: since when. seen_seconds: when the fallback was counted
    last. verified: the highest share up to this one
    that the fallback took. least_mean_seconds: of its answers. ceiling: the most that it gets until
    ceiling_until_seconds; unseen: because its counts were not found, not because it is full.
    """

    share: float
    since_seconds: float
    seen_seconds: float = 0.0
    verified: float = 0.0
    least_mean_seconds: float | None = None
    ceiling: float = 1.0
    ceiling_until_seconds: float = 0.0
    unseen: bool = False

    def most(self, now_seconds: float) -> float:
        """The most that the fallback may get now, as far as it has shown."""
        return self.ceiling if now_seconds < self.ceiling_until_seconds else 1.0


def followed(memory: StepMemory | None, share: float, now_seconds: float) -> StepMemory:
    """The memory with the share that is in force now.

    A share that is there at the start was verified by the operator before.
    """
    if memory is None:
        return StepMemory(share=share, since_seconds=now_seconds, verified=share)
    if share == memory.share:
        return memory
    return replace(
        memory,
        share=share,
        since_seconds=now_seconds,
        verified=min(memory.verified, share),
        # In the next crowd, requests may be of another length.
        least_mean_seconds=memory.least_mean_seconds if share else None,
    )


def judge(
    memory: StepMemory, use: FallbackUse | None, bound_seconds: float | None, now_seconds: float
) -> tuple[Verdict, StepMemory]:
    """What counts that began after the last step say of it, and the memory with them.

    bound_seconds: that a mean answer of the fallback must not exceed; None if none is known.
    """
    if memory.share == 0.0:
        return Verdict.GOOD, memory
    if use is None:
        last = max(memory.since_seconds, memory.seen_seconds)
        unseen = now_seconds - last >= UNSEEN_SECONDS
        return Verdict.UNSEEN if unseen else Verdict.WAITING, memory
    memory = replace(memory, seen_seconds=now_seconds)
    # A gateway that does not follow the weights yet sends nothing there, which shows nothing.
    if use.began_seconds < memory.since_seconds or use.requests == 0.0:
        return Verdict.WAITING, memory
    mean = use.mean_seconds if use.requests >= LEAST_REQUESTS else None
    least = memory.least_mean_seconds
    bounds = [bound for bound in (bound_seconds, least and SLOWER * least) if bound is not None]
    slow = mean is not None and any(mean > bound for bound in bounds)
    if slow or use.refused_ratio > MOST_REFUSED_RATIO:
        return Verdict.FULL, memory
    if mean is not None:
        memory = replace(memory, least_mean_seconds=mean if least is None else min(mean, least))
    return Verdict.GOOD, replace(memory, verified=max(memory.verified, memory.share))


def takes_more(memory: StepMemory, most: float, now_seconds: float) -> bool:
    """Whether the fallback can still take more than it is known to: then nothing need be refused.

    A step that is not verified in time does not count. most: the greatest share that it may get.
    """
    if memory.verified >= memory.share:
        return memory.share < most
    return now_seconds - memory.since_seconds < UNSEEN_SECONDS


def bounded(memory: StepMemory, ceiling: float, now_seconds: float, *, unseen: bool) -> StepMemory:
    """The memory with a ceiling for a time."""
    until = now_seconds + FULL_SECONDS
    return replace(memory, ceiling=ceiling, ceiling_until_seconds=until, unseen=unseen)


def share_of_full(memory: StepMemory, use: FallbackUse | None) -> float:
    """The share that a full fallback gets: the last one it took, or what it takes now.

    Half, where it is only slow, or too few requests were counted to say what it takes.
    """
    if memory.verified < memory.share:
        return memory.verified
    if use is None or use.refused_ratio == 0.0 or use.requests < LEAST_REQUESTS:
        return memory.share / GROWTH
    return memory.share * (1.0 - use.refused_ratio)


def raised(memory: StepMemory, wanted: float, most: float) -> float:
    """The share after one step up: at most twice the present one, and never less than a first step.

    Smaller first steps would double the steps to what a growing crowd needs.
    """
    return min(max(wanted, FIRST_STEP_RATIO), most, max(FIRST_STEP_RATIO, GROWTH * memory.share))


def lowered(memory: StepMemory, wanted: float) -> float:
    """The share after one step back: at least half of the present one, and none if it is small."""
    share = max(wanted, FALL * memory.share)
    return max(wanted, 0.0) if share < FIRST_STEP_RATIO else share
