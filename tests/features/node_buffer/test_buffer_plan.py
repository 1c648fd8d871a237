"""The buffer in the planner: nothing without a lead, sized and bounded, held, released, told."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.unit.policy_world import REPLICAS_ONLY, Run, World, steady

from servingslo.adapters.gauges import metric_samples
from servingslo.controller.reporting.status import status_fields
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.features.node_buffer.decision import (
    MOST,
    NODE_BUFFER,
    OURS,
    OWN,
    REPLICAS,
    TARGETS,
    BufferDecision,
    NodeTargets,
    buffer_of,
)
from servingslo.features.node_buffer.waits import WAITS
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import (
    InForce,
    Limits,
    Mode,
    Observation,
    ReplicaTargets,
    SignalProblem,
    Targets,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas import bounds_in_force
from servingslo.policy.replicas.bounds_in_force import BoundsPart, Moment
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Reason

LEAD = 180.0
# Long answers, so that a replica carries little.
LONG_TOKENS = 360.0
STATED = NodeTargets(buffer="llama", lead_seconds=LEAD)
BEGINS, RISEN, ENDS = 450.0, 870.0, 1200.0


def rising(seconds: float) -> float:
    """Two requests per second, eight after seven minutes of growth, two again."""
    if seconds >= ENDS:
        return 2.0
    return 2.0 + 6.0 * min(max((seconds - BEGINS) / (RISEN - BEGINS), 0.0), 1.0)


def asking(stated: NodeTargets = STATED, **changed: Any) -> Targets:
    """The targets with a buffer."""
    return replace(REPLICAS_ONLY, features={TARGETS.name: stated}, **changed)


@dataclass
class BufferedWorld(World):
    """With a CapacityBuffer. own: the owner's replicas. allowed: the administrator's most."""

    own: int = 0
    allowed: int = 8
    buffer: int = 0
    refused: SignalProblem | None = None

    def observe(self, at: float) -> Observation:
        """The observation with what stands of the buffer."""
        ours = {OURS: 1} if self.buffer != self.own else {}
        values = {REPLICAS: self.buffer, OWN: self.own, MOST: self.allowed, **ours}
        held = InForce(values=values, refused=self.refused)
        observation: Observation = super().observe(at)
        return replace(observation, in_force={NODE_BUFFER: held})


class BufferedRun(Run):
    """A run whose buffer takes what is decided."""

    world: BufferedWorld

    def tick(self) -> Decision:
        """One tick."""
        decision: Decision = super().tick()
        if (found := buffer_of(decision.knobs)) is not None:
            self.world.buffer = found.after
        return decision


def story(targets: Targets | None = None, until: float = BEGINS, **world: Any) -> BufferedRun:
    """A run under rising demand."""
    stated = {"rate": rising, "replicas": 2, "output_median": LONG_TOKENS, **world}
    return BufferedRun(BufferedWorld(**stated), targets or asking(), Limits()).until(until)


def decided(decision: Decision) -> BufferDecision:
    """What is decided of the buffer."""
    found = buffer_of(decision.knobs)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def played() -> BufferedRun:
    """The whole rise and fall."""
    return story(until=ENDS + 600.0)


def test_without_the_field_nothing_is_decided_nor_stored() -> None:
    """Whatever stands on the cluster."""
    run = story(REPLICAS_ONLY, until=120.0)
    assert buffer_of(run.decisions[-1].knobs) is None
    assert run.state.features.get(TARGETS.name) is None


def test_an_unknown_lead_holds_at_the_owner_s() -> None:
    """And says so; nothing is guessed."""
    run = story(asking(NodeTargets(buffer="llama")), until=RISEN)
    told = decided(run.decisions[-1])
    assert {decided(one).after for one in run.decisions} == {0}
    assert (told.reason, told.lead_seconds) == (Reason.NODE_LEAD_UNKNOWN, None)
    verdict = verdicts(run.decisions[-1])[ConditionType.NODE_BUFFER_USABLE]
    assert verdict.status is ConditionStatus.UNKNOWN


def test_nodes_are_ordered_in_a_rise_and_released_after_it(played: BufferedRun) -> None:
    """What is ordered ahead is ordered as pods later; at the end the owner's value stands."""
    ahead = [one for one in played.decisions if decided(one).after]
    assert ahead[0].time_seconds > BEGINS
    for one in ahead:
        told = decided(one)
        assert told.after + (one.replicas_before or 0) <= 12
    last = [one for one in played.decisions if one.time_seconds >= ENDS + LEAD + 300.0]
    assert {decided(one).after for one in last} == {0}
    moved = [decided(one) for one in played.decisions if decided(one).change_reason]
    assert moved[0].change_reason is Reason.BUFFER_RAISED
    assert moved[-1].change_reason is Reason.BUFFER_LOWERED
    assert moved[-1].puts_back


def test_it_is_the_same_rule_with_more_time(played: BufferedRun) -> None:
    """What is needed is the plan's own count at node lead and pod lead, less what is ordered."""
    one = next(d for d in played.decisions if (decided(d).needed or 0) > 0)
    told = decided(one)
    assert told.ahead_seconds is not None
    assert one.demand is not None
    assert told.ahead_seconds == pytest.approx(LEAD + one.demand.lead_seconds)
    assert told.ahead_replicas is not None
    assert told.needed == told.ahead_replicas - max(
        one.replicas_before or 0, one.recommended_replicas or 0
    )


class _LowerAtFirst:
    """A feature whose minimum is 1 until a time, and the usual one later."""

    ends_seconds = 600.0

    def parts(self) -> tuple[BoundsPart]:
        """Its part; it is stated wherever a buffer is."""
        return (BoundsPart(key=TARGETS, bounds=self._bounds, greatest=lambda _: 0),)

    def _bounds(self, _: object, usual: ReplicaTargets, moment: Moment) -> ReplicaTargets:
        ends = moment.now_seconds + moment.lead_seconds >= self.ends_seconds
        return replace(usual, minimum=usual.minimum if ends else 1)


USUAL_MINIMUM = 6


@pytest.fixture
def lower_at_first(monkeypatch: pytest.MonkeyPatch) -> BufferedRun:
    """Steady light traffic, and a minimum of 6 from ten minutes on."""
    monkeypatch.setattr(bounds_in_force, "BOUNDS", _LowerAtFirst())
    targets = asking(replicas=ReplicaTargets(minimum=USUAL_MINIMUM, maximum=12))
    return story(targets, until=_LowerAtFirst.ends_seconds, rate=steady(1.0))


def test_nodes_for_a_minimum_that_is_back_later_are_ordered_ahead(
    lower_at_first: BufferedRun,
) -> None:
    """The bounds at the order of the pods count, a node lead from now, and not those of now."""
    ahead = [one for one in lower_at_first.decisions if decided(one).after]
    lead = ahead[0].demand.lead_seconds
    assert lead is not None
    begins = _LowerAtFirst.ends_seconds - LEAD - lead
    assert begins <= ahead[0].time_seconds < begins + 15.0
    assert decided(ahead[0]).after == USUAL_MINIMUM - (ahead[0].replicas_before or 0)


def test_pods_that_a_minimum_orders_now_need_no_nodes_ahead(lower_at_first: BufferedRun) -> None:
    """At the tick that orders them, their nodes are ordered by the pods themselves."""
    ordered = next(d for d in lower_at_first.decisions if d.replicas_after == USUAL_MINIMUM)
    assert (decided(ordered).needed, decided(ordered).after) == (0, 0)


def test_steady_demand_writes_little() -> None:
    """Noise moves the buffer at most once in a node lead."""
    run = story(until=2400.0, rate=steady(4.0), replicas=4)
    times = [one.time_seconds for one in run.decisions[40:] if decided(one).change_reason]
    assert len(times) <= 2 * (2400.0 - 600.0) / LEAD


@pytest.mark.parametrize(("stated", "allowed", "most"), [(1, 8, 1), (None, 2, 2), (5, 1, 1)])
def test_the_least_of_both_bounds_holds(stated: int | None, allowed: int, most: int) -> None:
    """The tenant's and the administrator's; that more is needed is told."""
    targets = asking(replace(STATED, max_replicas=stated))
    run = story(targets, until=0.0)
    run.world.allowed = allowed
    run.until(RISEN)
    assert max(decided(one).after for one in run.decisions) == most
    reasons = {decided(one).reason for one in run.decisions}
    assert Reason.MAX_BUFFER_REACHED in reasons


def test_the_owner_s_replicas_are_the_least_and_are_not_cut() -> None:
    """Also above the administrator's bound, because the owner wrote them."""
    run = BufferedRun(BufferedWorld(rate=steady(2.0), replicas=2), asking(), Limits())
    run.world.own = run.world.buffer = 3
    run.world.allowed = 1
    run.until(300.0)
    assert {decided(one).after for one in run.decisions} == {3}
    assert {decided(one).change_reason for one in run.decisions} == {None}


@pytest.fixture(scope="module")
def in_mid_rise() -> BufferedRun:
    """Lived once, for tests that each go on from a copy."""
    run = story(until=BEGINS + 60.0)
    while not run.world.buffer and run.world.now < RISEN:
        run.tick()
    assert run.world.buffer > 0
    return run


@pytest.fixture
def raised(in_mid_rise: BufferedRun) -> BufferedRun:
    """A run in mid-rise, with nodes ordered ahead."""
    return copy.deepcopy(in_mid_rise)


def test_what_may_not_be_written_any_more_is_put_back(raised: BufferedRun) -> None:
    """The label is gone: the owner's replicas are back, and the reason is reported."""
    run = raised
    run.world.refused = SignalProblem(reason=Reason.NOT_PERMITTED, detail="no label")
    decision = run.tick()
    told = decided(decision)
    assert told.change_reason is Reason.BUFFER_PUT_BACK
    assert told.after == 0
    verdict = verdicts(decision)[ConditionType.NODE_BUFFER_USABLE]
    assert (verdict.status, verdict.reason) == (ConditionStatus.FALSE, Reason.NOT_PERMITTED)
    assert decided(run.tick()).change_reason is None


def test_without_metrics_it_is_released_after_a_node_lead(raised: BufferedRun) -> None:
    """Nothing asks for the nodes any more; until then they are held."""
    run = raised
    held = run.world.buffer
    run.world.frozen_at = run.world.now
    since = run.world.now
    run.until(since + 150.0)
    later = (one for one in run.decisions if one.time_seconds > since)
    blind = [one for one in later if decided(one).ahead_replicas is None]
    assert blind
    assert decided(blind[0]).after == held
    run.until(since + LEAD + 300.0)
    assert run.world.buffer == 0


def test_a_restart_holds_what_was_ordered_ahead(raised: BufferedRun) -> None:
    """Its first ticks know nothing yet: nodes are not ordered off and on again."""
    run = raised
    held, now = run.world.buffer, run.world.now
    run.state = restore(learned(run.state, now), now)
    first = run.tick()
    assert decided(first).ahead_replicas is None
    assert decided(first).after == held


def test_a_restart_that_cannot_read_the_buffer_holds_it_afterwards(raised: BufferedRun) -> None:
    """What stands is known at the next tick only."""
    run = raised
    held, now = run.world.buffer, run.world.now
    run.state = restore(learned(run.state, now), now)
    gone = SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail="no answer")
    observation = replace(
        run.world.observe(now + 15.0), in_force={NODE_BUFFER: InForce(refused=gone)}
    )
    _, run.state = plan(observation, run.targets, run.limits, run.state, now + 15.0)
    assert run.state.knobs.get(NODE_BUFFER) is None
    run.world.buffer = held
    assert decided(run.tick()).after == held


def _gone(run: BufferedRun) -> None:
    run.world.problems = (SignalProblem(reason=Reason.TARGET_NOT_FOUND, detail="gone"),)


def _taken(run: BufferedRun) -> None:
    run.world.problems = (SignalProblem(reason=Reason.SCALER_CONFLICT, detail="an HPA"),)


def _at_zero(run: BufferedRun) -> None:
    run.world.scale(0)


@pytest.mark.parametrize("stop", [_gone, _taken, _at_zero])
def test_a_target_that_is_gone_taken_or_at_zero_keeps_no_nodes(
    stop: Callable[[BufferedRun], None], raised: BufferedRun
) -> None:
    """Nothing else would release them."""
    run = raised
    stop(run)
    run.until(run.world.now + LEAD + 30.0)
    assert run.world.buffer == 0


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.PAUSED])
def test_nothing_is_written_where_nothing_is_carried_out(mode: Mode) -> None:
    """What demand will ask for is still told."""
    run = story(asking(mode=mode), until=BEGINS + 300.0)
    told = [decided(one) for one in run.decisions]
    assert {one.change_reason for one in told} == {None}
    assert told[-1].reason in {Reason.RECOMMEND_ONLY, Reason.PAUSED}
    assert any(one.ahead_replicas for one in told)


def test_it_is_told_in_status_log_gauges_and_words(raised: BufferedRun) -> None:
    """With the lead and its source."""
    run = raised
    decision = run.decisions[-1]
    told = decided(decision)
    fields = status_fields(decision, generation=1, last_batch_change_seconds=None)["nodes"]
    assert fields["buffer"] == told.after
    assert fields["leadSeconds"] == LEAD
    assert fields["leadSource"] == "stated"
    assert f"node_buffer={told.after}" in log_line(decision)
    samples = {one.name: one.value for one in metric_samples(decision)}
    assert samples["servingslo_node_buffer_replicas"] == told.after
    assert samples["servingslo_node_lead_seconds"] == LEAD
    assert "CapacityBuffer/llama" in text(decision)
    assert "a node takes" in text(decision)


def test_a_lead_is_measured_and_survives_a_restart() -> None:
    """From pods that waited for a node, by the same planner."""
    run = story(asking(NodeTargets(buffer="llama")), until=300.0)
    seen = run.observations[-1]
    state = run.state
    for age, unschedulable in ((5.0, "no place"), (245.0, None)):
        pod = replace(
            seen.pods[0],
            name="new",
            ready=False,
            age_seconds=age,
            scheduled_after_seconds=None if unschedulable else 240.0,
            unschedulable_reason=unschedulable,
            engines=(),
        )
        now = seen.time_seconds + age
        observed = replace(seen, time_seconds=now, pods=(*seen.pods, pod))
        _, state = plan(observed, run.targets, run.limits, state, now)
    decision, _ = plan(
        replace(observed, time_seconds=now + 15.0), run.targets, run.limits, state, now + 15.0
    )
    told = decided(decision)
    assert (told.lead_seconds, told.lead_source) == (240.0, "measured")


def test_a_buffer_that_gave_way_shortens_no_lead(raised: BufferedRun) -> None:
    """Its replicas go in the tick that orders the pods, before they wait."""
    run = raised
    run.tick()
    before = WAITS.of(run.state.features)
    run.state = replace(
        run.state, features={**run.state.features, WAITS.name: replace(before, seconds=(240.0,))}
    )
    run.world.buffer = 0
    for age, unschedulable in ((5.0, "no place"), (65.0, None)):
        seen = run.world.observe(run.world.now + 15.0)
        pod = replace(
            seen.pods[0],
            name="new",
            ready=False,
            age_seconds=age,
            scheduled_after_seconds=None if unschedulable else 60.0,
            unschedulable_reason=unschedulable,
            engines=(),
        )
        observed = replace(seen, pods=(*seen.pods, pod))
        at = observed.time_seconds
        _, run.state = plan(observed, run.targets, run.limits, run.state, at)
    assert WAITS.of(run.state.features).seconds == (240.0,)
