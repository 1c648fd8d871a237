"""A sixth knob: a class of its own and a row. Nothing else in the planner knows of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import World, steady

from servingslo.explain.document import as_dict
from servingslo.policy.decision import Decision
from servingslo.policy.facts import Facts
from servingslo.policy.inputs import InForce, Limits
from servingslo.policy.knobs.catalogue import KNOBS
from servingslo.policy.knobs.decisions import KnobDecision
from servingslo.policy.knobs.protocol import Knob, Look, Outcome, PlainKnob, Turn
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stages import STAGES
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Reason

TICK_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LampDecision(KnobDecision):
    """Whether a lamp is lit."""

    lit: bool


class LampKnob(PlainKnob):
    """A lamp that is lit while the count changes; while it is broken no replica is released."""

    name = "lamp"
    stored_as = "lampCount"

    def observe(self, _look: Look, standing: InForce | None, _memory: object) -> Facts | None:
        """A broken lamp is a reason to wait."""
        broken = standing is not None and bool(standing.values.get("broken"))
        return Facts(no_step_down=Reason.ROLLOUT_IN_PROGRESS) if broken else None

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Lit with every change, and how often so far."""
        count = (memory if isinstance(memory, int) else 0) + turn.scaling
        decision = LampDecision(reason=Reason.DEMAND_MET, lit=turn.scaling)
        return Outcome(decision, count)

    def dump(self, memory: object) -> object:
        """The number."""
        return memory

    def load(self, stored: object, _now_seconds: float) -> object:
        """The number, where it is one."""
        return stored if isinstance(stored, int) else None


WITH_LAMP = (*KNOBS, LampKnob())


def decide(
    knobs: Sequence[Knob], *, broken: bool = False, seconds: float = 600.0
) -> tuple[list[Decision], PlannerState]:
    """Six replicas under the load of one, planned with these knobs."""
    world, state, decisions = World(rate=steady(2.0), replicas=6), PlannerState(), []
    stages = replace(STAGES, knobs=tuple(knobs))
    while world.now < seconds:
        at = world.now + TICK_SECONDS
        lamp = InForce(values={"broken": int(broken)})
        observation = replace(world.observe(at), in_force={"lamp": lamp})
        decision, state = plan(observation, TARGETS, Limits(), state, at, stages=stages)
        if decision.apply_replicas:
            world.scale(decision.replicas_after)
        decisions.append(decision)
    return decisions, state


def test_a_knob_of_its_own_is_decided_remembered_and_shown():
    """Beside the others, which decide as they did without it."""
    decisions, state = decide(WITH_LAMP)
    lit = [decision for decision in decisions if decision.knobs["lamp"].lit]
    assert lit
    assert [one.apply_replicas for one in lit] == [True] * len(lit)
    assert state.knobs["lamp"] == len(lit)
    assert as_dict(lit[0])["knobs"] == {"lamp": {"reason": "DemandMet", "lit": True}}
    plain, _ = decide(KNOBS)
    for one, other in zip(decisions, plain, strict=True):
        knobs = {name: knob for name, knob in one.knobs.items() if name != "lamp"}
        assert replace(one, knobs=knobs) == other


def test_its_memory_survives_a_restart():
    """In a part of its own; a status without that part, or with nonsense there, loses it alone."""
    _, state = decide(WITH_LAMP)
    stored = json.loads(json.dumps(learned(state, 600.0, WITH_LAMP)))
    assert restore(stored, 600.0, WITH_LAMP).knobs["lamp"] == state.knobs["lamp"]
    assert "lamp" not in restore({**stored, "lampCount": "x"}, 600.0, WITH_LAMP).knobs
    assert "lamp" not in restore(stored, 600.0).knobs


def test_what_it_saw_reaches_the_count_without_the_count_knowing_it():
    """The fleet is larger than needed, and stays so for as long as the lamp is broken."""
    broken, _ = decide(WITH_LAMP, broken=True)
    whole, _ = decide(WITH_LAMP)
    assert broken[-1].replicas_after == 6
    assert broken[-1].limited_by is Reason.ROLLOUT_IN_PROGRESS
    assert whole[-1].replicas_after < 6


@pytest.mark.parametrize("left_out", range(len(KNOBS)))
def test_an_ablation_drops_one(left_out):
    """The count and the other knobs are decided as before."""
    fewer = KNOBS[:left_out] + KNOBS[left_out + 1 :]
    decisions, state = decide(fewer, seconds=300.0)
    whole, _ = decide(KNOBS, seconds=300.0)
    name = KNOBS[left_out].name
    for one, other in zip(decisions, whole, strict=True):
        assert name not in one.knobs
        assert one.replicas_after == other.replicas_after
        kept = {known: knob for known, knob in other.knobs.items() if known != name}
        assert one.knobs == kept
    assert name not in state.knobs
