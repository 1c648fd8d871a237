"""Every knob, in the order of the actuators that carry them out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servingslo.plugins import Key
from servingslo.policy.decision_parts import DecisionStep
from servingslo.policy.facts import Facts, join_facts
from servingslo.policy.inputs import Observation
from servingslo.policy.knobs.decisions import BUILT_IN, KnobDecision
from servingslo.policy.knobs.in_flight.knob import AdmissionKnob, InFlightKnob
from servingslo.policy.knobs.protocol import KNOB, Knob, Look, Turn
from servingslo.policy.replicas.state import PlannerState

KNOBS: tuple[Knob, ...] = (
    AdmissionKnob(),
    *KNOB.parts(),
    InFlightKnob(),
)

# Where a knob's decision stands in documents: its name there, and its type.
KEYS: Mapping[str, Key[KnobDecision]] = {
    **BUILT_IN,
    **{knob.name: knob.key for knob in KNOB.parts()},
}


def observe_knobs(
    knobs: Sequence[Knob], observation: Observation, state: PlannerState, now_seconds: float
) -> Facts:
    """Facts from all knobs at this tick."""
    look, standing = Look(observation=observation, now_seconds=now_seconds), observation.in_force
    return join_facts(
        knob.observe(look, standing.get(knob.name), state.knobs.get(knob.name)) for knob in knobs
    )


def decide_knobs(
    knobs: Sequence[Knob], turn: Turn, state: PlannerState
) -> tuple[dict[str, KnobDecision], dict[str, object], tuple[DecisionStep, ...]]:
    """The decisions and memories of all knobs by name, and their steps."""
    decisions: dict[str, KnobDecision] = {}
    memories: dict[str, object] = {}
    steps: tuple[DecisionStep, ...] = ()
    for knob in knobs:
        outcome = knob.decide(replace(turn, earlier=decisions), state.knobs.get(knob.name))
        if outcome.decision is not None:
            decisions[knob.name] = outcome.decision
        if outcome.memory is not None:
            memories[knob.name] = outcome.memory
        steps = (*steps, *outcome.steps)
    return decisions, memories, steps


def is_trying(state: PlannerState) -> bool:
    """Whether a change of any knob is under way."""
    return any(knob.on_trial(state.knobs.get(knob.name)) for knob in KNOBS)
