"""Arrivals at one engine in one window, by balance of flow."""

from collections.abc import Sequence

from servingslo.estimation.windows.counters import Window

# Three windows of each kind. Judgement; measured by simulated bursts, whose windows are less alike.
COMPARED_PACES = 6
ALIKE_RATIO, APART_RATIO = 1.2, 1.4


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


def next_paces(
    before: tuple[float, ...], windows: Sequence[Window], engine_count: int
) -> tuple[float, ...]:
    """Tokens or requests a second of all engines, at the last ticks with a window of each."""
    if not windows or len(windows) < engine_count:
        return ()
    pace = sum((w.generated_tokens or w.finished or 0.0) / w.seconds for w in windows)
    return (*before, pace)[-COMPARED_PACES:]


def in_turn(paces: Sequence[float]) -> bool:
    """Whether all engines are fast and slow in turn, each time as much.

    So it seems if two servers of Prometheus answer in turn and the samples of one are behind.
    """
    if len(paces) < COMPARED_PACES:
        return False
    slow, fast = sorted((paces[::2], paces[1::2]), key=sum)
    alike = all(max(each) <= ALIKE_RATIO * min(each) for each in (slow, fast))
    return alike and min(fast) >= APART_RATIO * max(slow) > 0.0


def _change(after: float | None, before: float | None) -> float:
    return 0.0 if after is None or before is None else after - before
