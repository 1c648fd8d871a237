"""The stages of a trial: one pod first, compared, then everywhere or back, and refused for a time.

Pods are compared with each other over the same time, never with an earlier time. A surge, longer
prompts or a slow network reach all of them alike, and say nothing about the setting.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from servingslo.models.fleet.latency import Objective
from servingslo.policy.knobs.trial.comparison import LEAST_REQUESTS, Sample, worse_in_words
from servingslo.reasons import Reason

# A pod that has just started has an empty batch and cold caches.
WARM_UP_SECONDS = 60.0
COMPARED_WITHIN_SECONDS = 900.0
# For this long, no setting in the direction of the one taken back is tried: the same load may recur
# daily, and each search finds a slightly different setting.
REFUSED_SECONDS = 86400.0

C = TypeVar("C")


class Stage(StrEnum):
    """Where a trial goes next: it stays on the first pod, or ends."""

    FIRST_POD = "first-pod"
    EVERYWHERE = "everywhere"
    BACK = "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(Generic[C]):
    """Counters at the start of the comparison, by name; it starts again after a restart.

    since_seconds: when the trial was ordered.
    """

    since_seconds: float
    began_seconds: float
    counters: Mapping[str, C] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A setting that was taken back, as numbers, and until when none like it is tried."""

    setting: tuple[int, ...]
    until_seconds: float = math.inf

    def forbids(self, current: Sequence[int], wanted: Sequence[int], now_seconds: float) -> bool:
        """Whether the change is refused now."""
        moves = zip(wanted, self.setting, current, strict=True)
        toward = any((to - now) * (no - now) > 0 for to, no, now in moves)
        return toward and now_seconds < self.until_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPod(Generic[C]):
    """The first pod and its siblings at one tick, as the knob reads them.

    since_seconds: when the trial was ordered. start_seconds: how long the pod may take to serve.
    failed: why it will not serve with the setting; '' while it may. serves: it does. settled: for
    WARM_UP_SECONDS. comparable: something without the setting is left. readable: counters are
    fresh. counters: of all pods now, by name. new, old: since the comparison began. needed:
    requests of the first pod, or of a sibling on average, for a verdict.
    """

    since_seconds: float
    start_seconds: float
    serves: bool
    settled: bool
    comparable: bool
    counters: Mapping[str, C]
    new: Sample
    old: Sample
    needed: int
    failed: str = ""
    readable: bool = True


class Verdict(NamedTuple, Generic[C]):
    """The next stage, why, and the comparison's memory. detail: for people."""

    stage: Stage
    reason: Reason
    began: Began[C] | None = None
    detail: str = ""


def judge_first_pod(
    pod: FirstPod[C],
    began: Began[C] | None,
    objectives: Sequence[Objective],
    now_seconds: float,
) -> Verdict[C]:
    """Decide the next stage of a trial whose setting one pod has."""
    if pod.failed and (not pod.serves or began is None):
        return Verdict(Stage.BACK, Reason.BATCHING_CANARY_FAILED, detail=pod.failed)
    if pod.serves and not pod.comparable:
        detail = "no pod has the limits from before any more"
        return Verdict(Stage.BACK, Reason.BATCHING_CANARY_NOT_COMPARED, detail=detail)
    if began is None and pod.settled and pod.readable:
        began = Began(
            since_seconds=pod.since_seconds, began_seconds=now_seconds, counters=pod.counters
        )
    late = now_seconds - pod.since_seconds > (
        pod.start_seconds + WARM_UP_SECONDS + COMPARED_WITHIN_SECONDS
    )
    if began is not None:
        late = late or now_seconds - began.began_seconds >= COMPARED_WITHIN_SECONDS
    new, old = pod.new, pod.old
    detail = f"{new.requests:.0f} of {pod.needed} requests compared"
    known = pod.readable and min(new.requests, old.requests) >= LEAST_REQUESTS
    # A pod that is far slower than its siblings would take too long to serve as many requests.
    enough = max(new.requests, old.requests_per_engine) >= pod.needed
    if not late and not (known and enough):
        return Verdict(Stage.FIRST_POD, Reason.BATCHING_CANARY_RUNNING, began, detail)
    if not known:
        return Verdict(Stage.BACK, Reason.BATCHING_CANARY_NOT_COMPARED, detail=detail)
    worse = worse_in_words(objectives, new, old)
    if worse:
        return Verdict(Stage.BACK, Reason.BATCHING_ROLLED_BACK, detail=worse)
    detail = f"{new.requests:.0f} requests, no worse than {old.requests:.0f} elsewhere"
    return Verdict(Stage.EVERYWHERE, Reason.BATCHING_CHANGED, detail=detail)


def refuse(setting: tuple[int, ...], now_seconds: float) -> Refusal:
    """The refusal of a setting that is taken back now."""
    return Refusal(setting=setting, until_seconds=now_seconds + REFUSED_SECONDS)
