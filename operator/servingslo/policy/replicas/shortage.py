"""Capacity that is measured to be short while the law says that it is enough.

A law is trusted for step times. It may still be wrong about what a fleet serves: a KV cache that
fills up, a host that stalls, requests that it does not describe. If the queue grows because fewer
requests end than arrive, or if more of them miss an objective than chance explains, in two windows
in a row, then capacity is what was seen to be served, and the law's is scaled down to it.
"""

from dataclasses import dataclass

# One window may be a burst inside a scrape, or a scrape at the wrong moment.
SHORT_WINDOWS = 2
# If replicas seem to serve less than a quarter, something other than their number is wrong.
LEAST_RATIO = 0.25
# At the rate at which requests were late they are late again.
MISSED_MARGIN = 1.1
# What was measured once is believed less with time. If the law is still wrong after this hour, two
# windows show it again.
MEMORY_SECONDS = 3_600.0


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
