"""First tries: what is offered, less the requests that come again because they were refused.

A refused request comes again once at most, and mostly in a later window: first tries lie between
the offered rate and that less the refusals of the window before. Which it is shows when capacity
comes: refusals fall, and what is offered falls with them as far as it was retry traffic. Until then
totals cannot tell: a rate that steps up before clients that always come again, and a rate that
rises on and on before clients that never do, give the same offered and refused rates. So a mean is
taken, and the error says how far it may be off; docs/lab/estimation.md has what that costs.
A surge that ends lowers both as well: then less is admitted than was a moment before, which retries
that fade before engines that still refuse never bring about.
Source: essay "Inference Is a Queueing System", retries: where rejections and offered load rise
together, plan for first attempts, not for what comes again.
"""

import math
from dataclasses import dataclass, replace

# Before it is known: between clients that never ask again and those of the usual library, which
# sends a request three times at most, so that of three refusals two come again.
# Source: openai-python `_constants.py`, DEFAULT_MAX_RETRIES = 2.
PRIOR_RETRIES_PER_REFUSAL = 1.0 / 3.0
MOST_RETRIES_PER_REFUSAL = 1.0
# Refusals have fallen by this share of their most, and this much more is admitted than then:
# capacity came, it was not chance.
FALLEN_RATIO = 0.25
CAPACITY_CAME_RATIO = 0.25
# Less admitted than a moment before by more than chance: demand has fallen, and nothing is told.
DEMAND_FELL_RATIO = 0.1
# Windows that capacity has to come in, a minute: what happens later is no answer to it.
REMEMBERED_WINDOWS = 5
# Memory of what shortages told, in windows that told something.
MEMORY_WINDOWS = 40.0
# What was left out may all have been demand: the error of a value at one end of a uniform law.
ECHO_DEVIATIONS = 1.0 / math.sqrt(3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedWindow:
    """What was offered in a window and what of it was refused, per second."""

    offered_per_second: float
    refused_per_second: float

    @property
    def admitted_per_second(self) -> float:
        """What was let in."""
        return max(self.offered_per_second - self.refused_per_second, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryState:
    """The last windows, none while nothing is refused, and what they told of retries.

    squares, products: Σ (fall of refusals)² and Σ fall of refusals x fall of offered load.
    """

    windows: tuple[RefusedWindow, ...] = ()
    squares: float = 0.0
    products: float = 0.0

    @property
    def known(self) -> bool:
        """Whether capacity that came has shown what refusals bring back."""
        return self.squares > 0.0

    @property
    def retries_per_refusal(self) -> float:
        """Requests that one refusal brings back, 0 to 1; the prior while that is not known."""
        if not self.known:
            return PRIOR_RETRIES_PER_REFUSAL
        return min(max(self.products / self.squares, 0.0), MOST_RETRIES_PER_REFUSAL)


UNTOLD = RetryState()


def first_attempts(
    state: RetryState, offered_per_second: float, refused_per_second: float
) -> tuple[RetryState, float]:
    """The state after one more window, and the rate of first tries in it, per second."""
    if not state.windows and refused_per_second <= 0.0:
        return state, offered_per_second
    now = RefusedWindow(
        offered_per_second=offered_per_second, refused_per_second=refused_per_second
    )
    learnt = _learnt(state, now)
    first = offered_per_second - learnt.retries_per_refusal * _again(state, offered_per_second)
    windows = (*state.windows, now)[-REMEMBERED_WINDOWS:]
    refusing = any(w.refused_per_second > 0.0 for w in windows)
    return replace(learnt, windows=windows if refusing else ()), max(first, 0.0)


def retry_error_ratio(offered_per_second: float, first_per_second: float) -> float:
    """Standard error of first tries, over their rate, from not knowing what comes again."""
    if first_per_second <= 0.0:
        return ECHO_DEVIATIONS if offered_per_second > 0.0 else 0.0
    return ECHO_DEVIATIONS * (offered_per_second - first_per_second) / first_per_second


def _again(state: RetryState, offered: float) -> float:
    """Refusals that may have come again in this window: the last window's, as many at most.

    Nor a larger share than was refused then: where capacity comes, clients that waited for more
    than a window are still coming.
    """
    if not state.windows or state.windows[-1].offered_per_second <= 0.0:
        return 0.0
    last = state.windows[-1]
    return min(last.refused_per_second, offered * last.refused_per_second / last.offered_per_second)


def _learnt(state: RetryState, now: RefusedWindow) -> RetryState:
    """The state after holding this window against that of the most refusals among the last ones.

    Refusals of the window before are what may have come again in this one. Only where much more is
    admitted than at the most refusals, and no less than since.
    """
    if not state.windows:
        return state
    most = max(state.windows, key=lambda w: w.refused_per_second)
    since = state.windows[state.windows.index(most) :]
    fall = most.refused_per_second - since[-1].refused_per_second
    came = now.admitted_per_second >= (1.0 + CAPACITY_CAME_RATIO) * most.admitted_per_second
    highest = max(w.admitted_per_second for w in since)
    fell = now.admitted_per_second < (1.0 - DEMAND_FELL_RATIO) * highest
    if not came or fell or fall <= FALLEN_RATIO * most.refused_per_second:
        return state
    memory = 1.0 - 1.0 / MEMORY_WINDOWS
    return replace(
        state,
        squares=memory * state.squares + fall * fall,
        products=memory * state.products
        + fall * (most.offered_per_second - now.offered_per_second),
    )
