"""What is remembered of the reserve: its rule, and its misses next to those that were attained."""

from dataclasses import dataclass, replace

from servingslo.estimation.requests.misses import Misses
from servingslo.models.fleet.fluid import Lived
from servingslo.units import SECONDS_PER_DAY

# Noise inside bins and errors of the law, which a copy does not have, get the other half.
ALLOWED_SHARE = 0.5
# The copy is believed like so much time in which its share was observed.
BELIEVED_SECONDS = 3_600.0
# Between them the attained share corrects the copy's.
CORRECTION_BOUNDS = (0.1, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveState:
    """The rule in force, and what was attained beside what the copies said.

    lived: of the rule in force; None before a choice. cheaper: the same with one replica fewer, or
    the plain rule. planned_ratio, kept_ratio: of a replica's saturation, what one is
    ordered for, and what keeps the objectives. missed, expected:
    requests, of the last day. seconds: of observation behind both.
    """

    lived: Lived | None = None
    cheaper: Lived | None = None
    planned_ratio: float = 1.0
    kept_ratio: float = 1.0
    at_seconds: float | None = None
    missed: float = 0.0
    expected: float = 0.0
    requests: float = 0.0
    seconds: float = 0.0


def count_misses(
    state: ReserveState, seen: Misses, *, target_ratio: float, seconds: float
) -> ReserveState:
    """The state after the requests of a window, next to what the copy says of as many."""
    if seconds <= 0.0:
        return state
    said = 0.0 if state.lived is None else state.lived.missed_ratio
    kept = max(1.0 - seconds / SECONDS_PER_DAY, 0.0)
    least = (1.0 - target_ratio) * ALLOWED_SHARE
    return replace(
        state,
        missed=kept * state.missed + 0.5 * (seen.least + seen.most),
        # A copy without misses says that there are few, not that one is impossible.
        expected=kept * state.expected + max(said, least) * seen.requests,
        requests=kept * state.requests + seen.requests,
        seconds=kept * state.seconds + seconds,
    )


def correction_ratio(state: ReserveState, target_ratio: float) -> float:
    """Attained misses over those of the copies, believed as far as both were observed."""
    if state.seconds <= 0.0 or state.requests <= 0.0:
        return 1.0
    believed = (1.0 - target_ratio) * state.requests / state.seconds * BELIEVED_SECONDS
    low, high = CORRECTION_BOUNDS
    return min(max((state.missed + believed) / (state.expected + believed), low), high)
