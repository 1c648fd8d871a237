"""Requests in flight as two knobs: what ready replicas can take, and the bound that is written.

A gateway enforces the bound, or it is changed together with the engines' batch limits.
"""

from servingslo.policy.facts import Facts
from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.decisions import ADMISSION, GATEWAY_LIMITS, AdmissionDecision
from servingslo.policy.knobs.in_flight.admission import admission_decision
from servingslo.policy.knobs.in_flight.engines import engine_limit, is_asked
from servingslo.policy.knobs.in_flight.gateway import LimitMemory, limit_decision
from servingslo.policy.knobs.protocol import Look, Outcome, PlainKnob, Turn
from servingslo.reasons import Reason

# The bound while more can be served elsewhere, as a ratio to the usual one. Simulated crowds that
# grow or jump, five seeds each: with 1.25 a quarter to two fifths fewer requests are refused on
# ramps and small jumps, and about as many are in time (4 % fewer at a jump to 2.2 times); with 1.5
# up to 30 % fewer are in time.
ROOM_RATIO = 1.25
_UNKNOWN = AdmissionDecision(reason=Reason.ADMISSION_UNKNOWN)


class AdmissionKnob(PlainKnob):
    """The admitted rate and the allowed queue: recommended, and written nowhere."""

    name = ADMISSION

    def decide(self, turn: Turn, _memory: object) -> Outcome:
        """Decide from the replicas that are ready now."""
        return Outcome(admission_decision(turn.context, turn.requirement))


class InFlightKnob(PlainKnob):
    """The bound on requests in flight: of a gateway's proxies, or of the engines themselves."""

    name = GATEWAY_LIMITS

    def observe(self, _look: Look, _standing: InForce | None, memory: object) -> Facts | None:
        """Whether the bound holds: then a shortage costs only the refused requests."""
        return Facts(bound_holds=isinstance(memory, LimitMemory) and memory.held is True)

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the present and the wanted bound."""
        admission = turn.earlier.get(ADMISSION)
        known = admission if isinstance(admission, AdmissionDecision) else _UNKNOWN
        remembered = memory if isinstance(memory, LimitMemory) else None
        if is_asked(turn.context.targets):
            return Outcome(*engine_limit(turn.context, known, remembered, acting=turn.acting))
        spared = any(one.spares_refusals for one in turn.earlier.values())
        room = ROOM_RATIO if spared else 1.0
        return Outcome(
            *limit_decision(turn.context, known, remembered, acting=turn.acting, room_ratio=room)
        )
