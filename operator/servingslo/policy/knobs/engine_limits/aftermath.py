"""Whether new batch limits made latency worse, judged at the load that they were found for."""

import math
from dataclasses import dataclass, replace

from servingslo.models.objectives import LatencyMetric
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.knobs.engine_limits.memory import (
    BatchChange,
    BatchingMemory,
    BatchLimits,
    BatchSearch,
)
from servingslo.policy.replicas.context import TickContext
from servingslo.reasons import Reason

# After a rollout: until the windows of observed latency hold only the new limits; after a surge,
# until they hold none of its requests.
VERIFY_AFTER_SECONDS = 180.0
# A change that is not in force by then was undone by another client. A change that could not be
# judged by then stays.
VERIFY_WITHIN_SECONDS = 3600.0
# To take a change back, measured latency must be this many times as long, and beyond its objective.
WORSE_RATIO = 1.1
# Three deviations of a Poisson count of 150 (5/s over two scrapes of 15 s). Up to this ratio, the
# load counts as that of the window before the change.
SAME_LOAD_RATIO = 1.25
# Percentile of the wait that dates the arrival of the requests measured now; the last few are
# outliers.
WAIT_PERCENTILE = 95.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The memory after judging an open change, and the change to take back, if any."""

    memory: BatchingMemory
    rollback: BatchChange | None = None
    steps: tuple[DecisionStep, ...] = ()


def note_load(context: TickContext, memory: BatchingMemory) -> BatchingMemory:
    """Record when arrivals at a replica last exceeded the load that judges an open change."""
    change, rate = memory.verifying, _rate_per_replica_per_second(context)
    if change is None or change.judged_up_to_per_second is None or rate is None:
        return memory
    if rate <= change.judged_up_to_per_second:
        return memory
    return replace(memory, verifying=replace(change, beyond_seconds=context.now_seconds))


def judge(context: TickContext, memory: BatchingMemory, current: BatchLimits) -> Verdict:
    """The verdict on the open change, if there is one and it can be judged."""
    change, waits = memory.verifying, Verdict(memory=memory)
    if change is None or context.observation.rollout_in_progress or context.coming:
        return waits
    closed = Verdict(memory=replace(memory, verifying=None))
    age = context.now_seconds - change.at_seconds
    late = age > VERIFY_WITHIN_SECONDS
    if current != change.after:
        return closed if late or _taken_back(context, memory, change) else waits
    youngest = min((pod.ready_for_seconds or 0.0 for pod in context.serving), default=0.0)
    if min(age, youngest) < VERIFY_AFTER_SECONDS:
        return waits
    if change.rollback or not _worse(context, change):
        return closed
    if not _beyond(context, change):
        return replace(closed, rollback=change)
    return replace(closed, steps=(_not_judged(context, change),)) if late else waits


def judged_up_to_per_second(context: TickContext, search: BatchSearch) -> float | None:
    """Arrivals at a replica up to which the limits found are judged.

    The rate at which the search found them to hold, but at least the load before the change.
    """
    now = _rate_per_replica_per_second(context)
    return None if now is None else max(SAME_LOAD_RATIO * now, search.held_per_replica_per_second)


def greatest_seconds(context: TickContext) -> dict[str, float]:
    """What each objective's percentile is at most, by its key, if there is a bound."""
    found = {}
    for objective in context.targets.objectives:
        latency = context.estimate.observed.get(objective.metric)
        bucket = None if latency is None else latency.bucket_of(objective.percentile)
        if bucket is not None and math.isfinite(bucket[1]):
            found[objective.key] = bucket[1]
    return found


def _rate_per_replica_per_second(context: TickContext) -> float | None:
    """Arrivals at a ready replica; bad limits would also raise running and waiting requests."""
    rate = context.estimate.arrival_rate_per_second
    return None if rate is None or not context.serving else rate / len(context.serving)


def _taken_back(context: TickContext, memory: BatchingMemory, change: BatchChange) -> bool:
    """Whether limits not in force were ordered back: the answer to that order may be lost."""
    refusal = memory.refusal
    return (
        refusal is not None
        and refusal.setting == change.after
        and context.now_seconds < refusal.until_seconds
    )


def _beyond(context: TickContext, change: BatchChange) -> bool:
    """Whether the measured requests arrived while there were too many arrivals.

    Requests that waited for a first token arrived that much earlier: a backlog outlasts its surge.
    """
    if change.beyond_seconds is None:
        return False
    waited = context.estimate.observed.get(LatencyMetric.TTFT)
    bucket = None if waited is None else waited.bucket_of(WAIT_PERCENTILE)
    longest = 0.0 if bucket is None else bucket[1] if math.isfinite(bucket[1]) else bucket[0]
    return context.now_seconds - change.beyond_seconds < VERIFY_AFTER_SECONDS + longest


def _worse(context: TickContext, change: BatchChange) -> bool:
    """Whether an objective is surely missed that was kept before, or missed by surely less."""
    for objective in context.targets.objectives:
        before = change.observed_before.get(objective.key)
        latency = context.estimate.observed.get(objective.metric)
        bucket = None if latency is None else latency.bucket_of(objective.percentile)
        if before is None or bucket is None or bucket[0] < objective.threshold_seconds:
            continue
        least, most, _ = bucket
        kept = before <= objective.threshold_seconds
        if (least if not kept else most) > WORSE_RATIO * before:
            return True
    return False


def _not_judged(context: TickContext, change: BatchChange) -> DecisionStep:
    """Report that limits are kept because the load never reached that of their search."""
    return DecisionStep(
        stage="batching",
        knob="max_num_seqs",
        before=change.before.max_num_seqs,
        after=change.after.max_num_seqs,
        reason=Reason.BATCHING_NOT_JUDGED,
        inputs={
            "rate_per_replica_per_second": _rate_per_replica_per_second(context),
            "beyond_seconds": change.beyond_seconds,
            "judged_up_to_per_second": change.judged_up_to_per_second,
        },
    )
