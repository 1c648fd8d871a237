"""Estimate first attempts: the offered load less retries of refused requests.

Totals cannot show which requests are retries. A refused request is retried at most once, mostly in
a later window. So first attempts lie between the offered rate and the offered rate less the
refusals of the previous window. New capacity shows which: refusals fall, and the offered rate falls
with them as far as it was retry traffic. Until then two cases look the same: a step in demand from
clients that always retry, and steadily rising demand from clients that never retry. So a mean is
used, and the error says how wrong it may be; docs/lab/findings.md shows what that costs. The end
of a surge lowers both rates as well. Then less is admitted than a moment before, which fading
retries cannot cause while engines still refuse.
Source: essay "Inference Is a Queueing System", retries: where rejections and offered load rise
together, plan for first attempts, not for what comes again.
"""

import math
from dataclasses import dataclass

from servingslo.copying import replace

# Prior: the mean between clients that never retry and the usual client library, which sends a
# request at most three times, so that two of three refusals are retried.
# Source: openai-python `_constants.py`, DEFAULT_MAX_RETRIES = 2.
PRIOR_RETRIES_PER_REFUSAL = 1.0 / 3.0
MOST_RETRIES_PER_REFUSAL = 1.0
# Refusals must have fallen by the first share of their peak, and admissions risen by the second
# share since then: capacity was added, it was not chance.
# Judgement; measured by the share of retries that is learnt from simulated clients of known habit.
FALLEN_RATIO = 0.25
CAPACITY_CAME_RATIO = 0.25
# Admissions fell by more than chance within a moment: demand has fallen, nothing can be learnt.
DEMAND_FELL_RATIO = 0.1
# Windows within which capacity must arrive, a minute: a later change is no answer to it.
ANSWER_WINDOWS = 5
# Memory of the evidence from shortages, in windows that gave evidence.
RETRY_MEMORY_WINDOWS = 40.0
# All retries left out may have been demand: the error of one end of a uniform law.
ECHO_DEVIATIONS = 1.0 / math.sqrt(3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedWindow:
    """Offered and refused requests of a window, per second."""

    offered_per_second: float
    refused_per_second: float

    @property
    def admitted_per_second(self) -> float:
        """Admitted requests."""
        return max(self.offered_per_second - self.refused_per_second, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryState:
    """The last windows (none while nothing is refused), and the evidence about retries.

    squares, products: Σ (fall of refusals)² and Σ fall of refusals x fall of offered load.
    """

    windows: tuple[RefusedWindow, ...] = ()
    squares: float = 0.0
    products: float = 0.0

    @property
    def known(self) -> bool:
        """Whether added capacity has shown how many refusals are retried."""
        return self.squares > 0.0

    @property
    def retries_per_refusal(self) -> float:
        """Retries per refusal, 0 to 1; the prior while unknown."""
        if not self.known:
            return PRIOR_RETRIES_PER_REFUSAL
        return min(max(self.products / self.squares, 0.0), MOST_RETRIES_PER_REFUSAL)


UNTOLD = RetryState()


def first_attempts(
    state: RetryState, offered_per_second: float, refused_per_second: float
) -> tuple[RetryState, float]:
    """Return the state after one more window, and its rate of first attempts per second."""
    if not state.windows and refused_per_second <= 0.0:
        return state, offered_per_second
    now = RefusedWindow(
        offered_per_second=offered_per_second, refused_per_second=refused_per_second
    )
    learnt = _learnt(state, now)
    first = offered_per_second - learnt.retries_per_refusal * _again(state, offered_per_second)
    windows = (*state.windows, now)[-ANSWER_WINDOWS:]
    refusing = any(w.refused_per_second > 0.0 for w in windows)
    return replace(learnt, windows=windows if refusing else ()), max(first, 0.0)


def retry_error_ratio(offered_per_second: float, first_per_second: float) -> float:
    """Return the standard error of first attempts, over their rate, from unknown retries."""
    if first_per_second <= 0.0:
        return ECHO_DEVIATIONS if offered_per_second > 0.0 else 0.0
    return ECHO_DEVIATIONS * (offered_per_second - first_per_second) / first_per_second


def _again(state: RetryState, offered: float) -> float:
    """Return the largest possible retries in this window: at most the last window's refusals.

    At most the last window's refused share as well: after capacity is added, clients that waited
    for more than a window are still retrying.
    """
    if not state.windows or state.windows[-1].offered_per_second <= 0.0:
        return 0.0
    last = state.windows[-1]
    return min(last.refused_per_second, offered * last.refused_per_second / last.offered_per_second)


def _learnt(state: RetryState, now: RefusedWindow) -> RetryState:
    """Return the state after comparing this window with the recent one of most refusals.

    Retries in this window come from the refusals of the previous window. Used only if much more is
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
    memory = 1.0 - 1.0 / RETRY_MEMORY_WINDOWS
    return replace(
        state,
        squares=memory * state.squares + fall * fall,
        products=memory * state.products
        + fall * (most.offered_per_second - now.offered_per_second),
    )
