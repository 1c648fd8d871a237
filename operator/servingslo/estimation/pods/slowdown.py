"""How fast each pod is beside its siblings: its windows against the law of all of them.

A card that throttles, a neighbour on the same host, a bad link: such a pod serves, only slower. The
pooled law learns what the fleet carries on average; which pods pull it down is told here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from servingslo.estimation.law.least_squares import Vector
from servingslo.estimation.law.rows import Row

# Windows of a pod that count: two minutes at 15 s scrapes.
MEMORY_WINDOWS = 8.0
LEAST_WINDOWS = 8
# Steps this many times as long as the siblings' are no scatter: windows are known to 1 to 5 %, and
# what the law leaves out (few sequences, long prompts) moves all of them alike.
SLOW_RATIO = 1.3
# One wild window must not name a pod.
LARGEST_LOG = math.log(4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSlowdown:
    """Logarithm of observed over predicted busy time, a moving average; windows that entered."""

    pod: str
    log_ratio: float = 0.0
    window_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPod:
    """A pod whose steps take ratio times as long as those of its siblings."""

    pod: str
    ratio: float


def observe(
    slowdowns: Sequence[PodSlowdown],
    rows: Mapping[str, Sequence[Row]],
    law: Vector | None,
    pods: frozenset[str],
) -> tuple[PodSlowdown, ...]:
    """The slowdowns after one tick's equations by pod, against the law before them.

    pods: of the configuration in force; others are forgotten.
    """
    known = {slowdown.pod: slowdown for slowdown in slowdowns if slowdown.pod in pods}
    if law is None:
        return tuple(known.values())
    for pod, equations in rows.items():
        for row in equations:
            predicted = sum(x * value for x, value in zip(row.x, law, strict=True))
            if row.scored and predicted > 0:
                known[pod] = _after(known.get(pod) or PodSlowdown(pod=pod), -math.log(predicted))
    return tuple(known.values())


def slow_pods(slowdowns: Sequence[PodSlowdown]) -> tuple[SlowPod, ...]:
    """Pods that are slower than their siblings, the slowest first; none where fewer than two."""
    settled = [slowdown for slowdown in slowdowns if slowdown.window_count >= LEAST_WINDOWS]
    if len(settled) < 2:
        return ()
    usual = median_low([slowdown.log_ratio for slowdown in settled])
    found = [
        SlowPod(pod=slowdown.pod, ratio=math.exp(slowdown.log_ratio - usual))
        for slowdown in settled
        if slowdown.log_ratio - usual > math.log(SLOW_RATIO)
    ]
    return tuple(sorted(found, key=lambda pod: (-pod.ratio, pod.pod)))


def _after(slowdown: PodSlowdown, log_ratio: float) -> PodSlowdown:
    bounded = min(max(log_ratio, -LARGEST_LOG), LARGEST_LOG)
    share = 1.0 / min(slowdown.window_count + 1.0, MEMORY_WINDOWS)
    return PodSlowdown(
        pod=slowdown.pod,
        log_ratio=slowdown.log_ratio + share * (bounded - slowdown.log_ratio),
        window_count=slowdown.window_count + 1,
    )
