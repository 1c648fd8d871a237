"""Find pods slower than their siblings: compare each pod's windows with the law of all of them.

A card that throttles, a busy neighbour on the host or a bad link makes a pod serve slowly. The
pooled law shows only the fleet's average. This module finds the pods that lower it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from servingslo.estimation.law.rows import Row
from servingslo.estimation.law.seen import predicted_ratios
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.records import record

# Windows of a pod that count: two minutes at 15 s scrapes.
PACE_MEMORY_WINDOWS = 8.0
LEAST_PACE_WINDOWS = 8
# Steps this many times as long as the siblings' are no scatter: windows are known to 1 to 5 %, and
# effects outside the law (few sequences, long prompts) move all of them alike.
# Judgement; measured by `python -m tests.benchmarks.pod_laws`: slow pods found, and false ones.
SLOW_RATIO = 1.3
# One wild window must not accuse a pod.
LARGEST_LOG = math.log(4.0)


@record(frozen=True, slots=True, kw_only=True)
class PodSlowdown:
    """Logarithm of observed over predicted busy time, a moving average, and the windows in it."""

    pod: str
    log_ratio: float = 0.0
    window_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPod:
    """A pod whose steps take `ratio` times as long as those of its siblings."""

    pod: str
    ratio: float


def observe(
    slowdowns: Sequence[PodSlowdown],
    rows: Mapping[str, Sequence[Row]],
    law: ServiceLaw | None,
    pods: frozenset[str],
) -> tuple[PodSlowdown, ...]:
    """Return the slowdowns after one tick's equations by pod, compared with the previous law.

    pods: of the configuration in force; others are forgotten.
    """
    known = {slowdown.pod: slowdown for slowdown in slowdowns if slowdown.pod in pods}
    if law is None:
        return tuple(known.values())
    every = [(pod, row) for pod, equations in rows.items() for row in equations]
    ratios = predicted_ratios(law, [row for _, row in every])
    for (pod, row), predicted in zip(every, ratios, strict=True):
        if row.scored and predicted > 0:
            known[pod] = _after(known.get(pod) or PodSlowdown(pod=pod), -math.log(predicted))
    return tuple(known.values())


def slow_pods(slowdowns: Sequence[PodSlowdown]) -> tuple[SlowPod, ...]:
    """Return pods slower than their siblings, the slowest first; none with fewer than two pods."""
    settled = [slowdown for slowdown in slowdowns if slowdown.window_count >= LEAST_PACE_WINDOWS]
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
    share = 1.0 / min(slowdown.window_count + 1.0, PACE_MEMORY_WINDOWS)
    return PodSlowdown(
        pod=slowdown.pod,
        log_ratio=slowdown.log_ratio + share * (bounded - slowdown.log_ratio),
        window_count=slowdown.window_count + 1,
    )
