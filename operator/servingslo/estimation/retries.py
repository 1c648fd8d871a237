"""First tries: what is offered, less the requests that come again because they were refused.

A refused request comes again once at most, and mostly in a later window: first tries lie between
the offered rate and that less the refusals of the window before. Which it is shows when capacity
comes: refusals fall, and what is offered falls with them as far as it was echo. Until then totals
cannot tell: a rate that steps up before clients that always come again, and a rate that rises on
and on before clients that never do, give the same offered and refused rates. So a mean is taken,
and the error says how far it may be off; docs/designs/0003-estimation.md has what that costs.
Source: essay "Inference Is a Queueing System", retries: where rejections and offered load rise
together, plan for unique demand, not for the echo.
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
# Memory of what shortages told, in windows that told something.
MEMORY_WINDOWS = 40.0
# What was left out may all have been demand: the error of a value at one end of a uniform law.
ECHO_DEVIATIONS = 1.0 / math.sqrt(3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Since refusals began, per second: the most offered, the most refused, and admitted then."""

    offered_per_second: float = 0.0
    refused_per_second: float = 0.0
    admitted_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryState:
    """The window before, the shortage it belongs to, and what shortages told of retries.

    shortage: None while nothing is refused. squares, products: Σ (fall of refusals)² and
    Σ fall of refusals x fall of offered load.
    """

    offered_per_second: float = 0.0
    refused_per_second: float = 0.0
    shortage: Shortage | None = None
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


def without_echo(
    state: RetryState, offered_per_second: float, refused_per_second: float
) -> tuple[RetryState, float]:
    """The state after one more window, and the rate of first tries in it, per second."""
    if state.shortage is None and refused_per_second <= 0.0:
        return state, offered_per_second
    shortage = _with_most(state.shortage or Shortage(), offered_per_second, refused_per_second)
    learnt = _learnt(replace(state, shortage=shortage), offered_per_second, refused_per_second)
    echo = learnt.retries_per_refusal * _again(state, offered_per_second)
    first = max(offered_per_second - echo, 0.0)
    over = refused_per_second <= 0.0 and state.refused_per_second <= 0.0
    return replace(
        learnt,
        offered_per_second=offered_per_second,
        refused_per_second=refused_per_second,
        shortage=None if over else shortage,
    ), first


def echo_error_ratio(offered_per_second: float, first_per_second: float) -> float:
    """Standard error of first tries, over their rate, from not knowing what comes again."""
    if first_per_second <= 0.0:
        return ECHO_DEVIATIONS if offered_per_second > 0.0 else 0.0
    return ECHO_DEVIATIONS * (offered_per_second - first_per_second) / first_per_second


def _again(state: RetryState, offered: float) -> float:
    """Refusals that may have come again in this window: the last window's, as many at most.

    Nor a larger share than was refused then: where capacity comes, clients that waited for more
    than a window are still coming.
    """
    if state.offered_per_second <= 0.0:
        return 0.0
    return min(
        state.refused_per_second, offered * state.refused_per_second / state.offered_per_second
    )


def _with_most(shortage: Shortage, offered: float, refused: float) -> Shortage:
    """The shortage after a window of these rates."""
    shortage = replace(shortage, offered_per_second=max(shortage.offered_per_second, offered))
    if refused <= shortage.refused_per_second:
        return shortage
    return replace(
        shortage, refused_per_second=refused, admitted_per_second=max(offered - refused, 0.0)
    )


def _learnt(state: RetryState, offered: float, refused: float) -> RetryState:
    """The state after holding this window against that of the most refusals.

    Refusals of the window before are what may have come again in this one. Only where much more is
    admitted than then: where demand falls by itself, refusals fall with it as an echo would.
    """
    shortage = state.shortage
    if shortage is None:
        return state
    fall = shortage.refused_per_second - state.refused_per_second
    came = offered - refused >= (1.0 + CAPACITY_CAME_RATIO) * shortage.admitted_per_second
    if not came or fall <= FALLEN_RATIO * shortage.refused_per_second:
        return state
    memory = 1.0 - 1.0 / MEMORY_WINDOWS
    return replace(
        state,
        squares=memory * state.squares + fall * fall,
        products=memory * state.products + fall * (shortage.offered_per_second - offered),
    )
