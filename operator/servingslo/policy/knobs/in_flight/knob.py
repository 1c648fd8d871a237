"""Requests in flight as two knobs: what ready replicas can take, and the bound that is written.

A gateway enforces the bound, or it is changed together with the engines' batch limits.
"""

from servingslo.policy.facts import Facts
from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.decisions import ADMISSION, GATEWAY_LIMITS, AdmissionDecision
from servingslo.policy.knobs.in_flight.admission import admission_decision
from servingslo.policy.knobs.in_flight.engines import engine_limit, is_asked
from servingslo.policy.knobs.in_flight.gateway import limit_decision
from servingslo.policy.knobs.in_flight.memory import LimitMemory
from servingslo.policy.knobs.protocol import Look, Outcome, PlainKnob, Turn
from servingslo.reasons import Reason

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
        bound = engine_limit if is_asked(turn.context) else limit_decision
        remembered = memory if isinstance(memory, LimitMemory) else None
        return Outcome(*bound(turn.context, known, remembered, acting=turn.acting))
