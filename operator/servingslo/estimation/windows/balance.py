"""Arrivals at one engine in one window, by balance of flow."""

from servingslo.estimation.windows.counters import Window


def arrivals_of(window: Window) -> float | None:
    """Requests that arrived at an engine in a window; None if it exports neither balance.

    May be slightly negative: preempted requests count as waiting again. Sums over windows are
    exact, so only the sum is cut at zero.
    """
    rejected = window.rejected or 0.0
    if window.first_tokens is not None:
        return window.first_tokens + _change(window.waiting_after, window.waiting_before) + rejected
    if window.finished is None:
        return None
    in_system = _change(window.running_after, window.running_before) + _change(
        window.waiting_after, window.waiting_before
    )
    return window.finished + in_system + rejected


def tells_all(window: Window, known_per_second: float) -> bool:
    """Return whether a window counts all arrivals, or at least more than the known rate.

    If the engine restarted inside the window, arrivals before the restart are in no counter.
    known_per_second: the engine's arrivals in the previous window, 0 if unknown.
    """
    if not window.restarted:
        return True
    return (arrivals_of(window) or 0.0) > known_per_second * window.seconds


def _change(after: float | None, before: float | None) -> float:
    return 0.0 if after is None or before is None else after - before
