"""Replicas from measured saturation alone, used if no latency model can be used.

Occupancy is misleading (it grows as ρ/(1 − ρ)), so these signals only ask for more replicas, never
for fewer.

A trusted law is one of step times. It may still be wrong about what a fleet serves: a KV cache that
fills up, a host that stalls, requests that it does not describe. If the queue grows because fewer
requests end than arrive, or if more of them miss an objective than chance explains, in two windows
in a row, then capacity is what was seen to be served, and the law's is scaled down to it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.sample import PodSample
from servingslo.models.numerics import ROUNDING
from servingslo.models.objectives import Objective
from servingslo.policy.inputs import Targets

# At most twice the serving replicas at once: measured ratios show a shortage, but hardly its size.
# The same bound as the default up-policy of the HorizontalPodAutoscaler (100 %).
LARGEST_RATIO = 2.0
# The percentile over its threshold if its bucket begins there: how far it lies above is not known.
# Source: a HorizontalPodAutoscaler orders nothing for less than 10 % (its tolerance, 0.1).
LEAST_MISSED_RATIO = 1.1
# Measurements from before new capacity took its share say nothing about the new fleet.
SETTLE_SECONDS = 60.0
# One window may be a burst inside a scrape, or a scrape at the wrong moment.
SHORT_WINDOWS = 2
# If replicas seem to serve less than a quarter, something other than their number is wrong.
LEAST_RATIO = 0.25
# At the rate at which requests were late they are late again.
MISSED_MARGIN = 1.1
# What was measured once is believed less with time. If the law is still wrong after this hour, two
# windows show it again.
MEMORY_SECONDS = 3_600.0
# Name of the signal of requests in flight that grow.
IN_FLIGHT = "in-flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationNeed:
    """Replicas that the measured signals need, and the largest signal over its limit.

    full: engines are at a limit of theirs, whatever the latencies observed so far.
    """

    replicas: int
    ratio: float
    signal: str
    full: bool = False


def saturation_need(
    estimate: Estimate, targets: Targets, pods: Sequence[PodSample]
) -> SaturationNeed:
    """The count that brings every measured signal back to its limit, from the serving replicas.

    Proportional to the replicas that serve, not to those ordered, so it does not grow while pods
    start, or before the newest of them has taken its share. pods: that serve.
    """
    if settles(pods):
        return SaturationNeed(replicas=max(len(pods), 1), ratio=0.0, signal="settling")
    ratios = {
        "queue": _queue_ratio(estimate),
        "kv-cache": _cache_ratio(estimate, targets.kv_cache_target_ratio),
    }
    full = max(ratios.values()) > 1.0
    ratios["objective"] = 0.0
    for objective in targets.objectives:
        ratios["objective"] = max(ratios["objective"], _missed_ratio(estimate, objective))
    signal = max(ratios, key=lambda name: ratios[name])
    ratio = min(ratios[signal], LARGEST_RATIO)
    replicas = _in_proportion(estimate, pods, ratio)
    return SaturationNeed(replicas=replicas, ratio=ratio, signal=signal, full=full)


def growth_need(
    estimate: Estimate,
    targets: Targets,
    pods: Sequence[PodSample],
    *,
    ceiling_ratio: float,
    forecast_ratio: float,
) -> SaturationNeed:
    """The count for the requests that will be in flight once as many end as arrive.

    Latencies were observed before they arrived, so that objectives kept so far say nothing of them.
    Room is slots and KV cache, and the more used of the two decides. ceiling_ratio: the part of it
    that may be used. forecast_ratio: by how much arrivals are forecast to grow.
    """
    growth = estimate.saturation_signal.growth
    if growth is None or not growth.sure or settles(pods):
        return SaturationNeed(replicas=max(len(pods), 1), ratio=0.0, signal=IN_FLIGHT)
    engines = max(sum(len(pod.engines) for pod in pods), 1)
    cache = (estimate.kv_usage_ratio or 0.0) / targets.kv_cache_target_ratio
    slots = growth.after / ((estimate.max_num_seqs or math.inf) * engines)
    used = max(slots, cache) * growth.ratio * max(forecast_ratio, 1.0)
    ratio = min(used / ceiling_ratio, LARGEST_RATIO)
    return SaturationNeed(
        replicas=_in_proportion(estimate, pods, ratio), ratio=ratio, signal=IN_FLIGHT
    )


def settles(pods: Sequence[PodSample]) -> bool:
    """Whether a pod has served for too short a time to have taken its share."""
    times = (pod.ready_for_seconds for pod in pods)
    return any(seconds is not None and seconds < SETTLE_SECONDS for seconds in times)


def _in_proportion(estimate: Estimate, pods: Sequence[PodSample], ratio: float) -> int:
    """Sheddable classes order nothing, however full they make the engines."""
    serving = max(len(pods), 1)
    return max(math.ceil(serving * ratio * estimate.ordering_ratio - ROUNDING), serving)


def _missed_ratio(estimate: Estimate, objective: Objective) -> float:
    """How many times its threshold the percentile is at least; above 1 only if it is missed."""
    observed = estimate.observed.get(objective.metric)
    least = None if observed is None else observed.least_quantile(objective.percentile)
    if least is None or least < objective.threshold_seconds:
        return 0.0
    return max(least / objective.threshold_seconds, LEAST_MISSED_RATIO)


def _queue_ratio(estimate: Estimate) -> float:
    """Above 1 if requests wait for more than a moment, from the share of them that waits."""
    if not estimate.saturation_signal.waiting_sustained:
        return 0.0
    return 1.0 + estimate.waiting_requests / max(estimate.running_requests, 1.0)


def _cache_ratio(estimate: Estimate, target_ratio: float) -> float:
    """KV use over its target; a preemption shows that the cache was full, whatever the gauge."""
    usage = estimate.kv_usage_ratio or 0.0
    if estimate.saturation_signal.preemptions_per_second > 0:
        usage = max(usage, 1.0)
    return usage / target_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """windows: short ones in a row. ratio: measured capacity over the law's, at most 1."""

    windows: int = 0
    ratio: float = 1.0
    at_seconds: float = 0.0


def after_window(
    state: Shortage, served_ratio: float | None, kept_ratio: float, now_seconds: float
) -> Shortage:
    """The state after a window of latencies.

    served_ratio: what was served over what the law says, if that was measured to be too little.
    kept_ratio: what was served with every objective kept, over the same; 0 if one was missed.
    """
    seconds = max(now_seconds - state.at_seconds, 0.0)
    faded = 1.0 - (1.0 - state.ratio) * max(1.0 - seconds / MEMORY_SECONDS, 0.0)
    ratio = min(max(faded, kept_ratio), 1.0)
    windows = 0 if served_ratio is None else state.windows + 1
    if served_ratio is not None and windows >= SHORT_WINDOWS:
        ratio = min(max(served_ratio, LEAST_RATIO), ratio)
    return Shortage(windows=windows, ratio=ratio, at_seconds=now_seconds)
