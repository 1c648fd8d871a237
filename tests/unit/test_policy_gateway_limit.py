"""The gateway's bound in the planner: what it follows, when it is opened, and what proves it."""

import json
import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import Run, World, steady, stepped

from servingslo.adapters.gauges import metric_samples
from servingslo.api.convert import targets_from_spec
from servingslo.controller.recordings.recording import observation_line, replay
from servingslo.errors import InvalidInputError
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.explain.changes import change_line, gateway_limit_change
from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.events import events
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.policy.inputs import (
    AdmissionMode,
    InForce,
    LimitKind,
    LimitObject,
    Limits,
    Mode,
    SignalProblem,
)
from servingslo.policy.knobs.decisions import GATEWAY_LIMITS
from servingslo.policy.knobs.in_flight.gateway import (
    FORMER,
    HEADROOM,
    LIMIT,
    RAISED_ABOVE,
    LimitMemory,
    LimitWrite,
    confirmed,
    judge_load,
    limit_to_write,
    track_bound,
)
from servingslo.policy.knobs.in_flight.knob import InFlightKnob
from servingslo.policy.planner import plan
from servingslo.policy.rules.needs import (
    BOUNDED_CEILING,
    UTILIZATION_CEILING,
    utilization_ceiling_ratio,
)
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Reason

BOUNDED = replace(
    TARGETS,
    admission_mode=AdmissionMode.AUTO,
    admission_via=LimitObject(kind=LimitKind.BACKEND_TRAFFIC_POLICY, name="chat"),
)


@dataclass
class BoundedRun(Run):
    """A world whose gateway takes every bound. refused: why it may not be changed."""

    standing: InForce = field(default_factory=lambda: InForce(values={LIMIT: None}))
    refused: SignalProblem | None = None
    gateway: GatewaySample | None = None

    def tick(self):
        """One tick: observe, decide, act, the bound included."""
        at = self.world.now + 15.0
        observation = self.world.observe(at)
        in_force = {GATEWAY_LIMITS: replace(self.standing, refused=self.refused)}
        observation = replace(observation, in_force=in_force, gateway=self.gateway)
        decision, self.state = plan(observation, self.targets, self.limits, self.state, at)
        self.decisions.append(decision)
        self.observations.append(observation)
        if decision.apply_replicas:
            self.world.scale(decision.replicas_after)
        limit = decision.gateway_limit
        if limit is not None and limit.change_reason is not None:
            former = self.standing.values.get(FORMER, self.standing.values[LIMIT])
            values = {LIMIT: limit.after}
            self.standing = InForce(
                values=values if limit.puts_back else {**values, FORMER: former}
            )
        return decision

    @property
    def bound(self):
        """In force now; None where none is set."""
        return self.standing.values[LIMIT]


def bounded(world=None, **changed):
    """A story of three replicas with a bound to write."""
    return BoundedRun(
        world or World(rate=steady(6.0), replicas=3), replace(BOUNDED, **changed), Limits()
    )


def test_no_bound_before_anything_is_known_and_one_from_then_on():
    """Until there is a law nothing is written; then all that ready replicas can hold."""
    story = bounded()
    story.tick()
    assert story.bound is None
    story.until(300.0)
    last = story.decisions[-1]
    # A mix of one tick lowers nothing: what was needed within a minute counts.
    lately = [d.admission.in_flight_limit * d.replicas.ready for d in story.decisions[-5:]]
    assert lately[-1] <= story.bound <= 1.16 * max(lately)
    assert last.gateway_limit.reason is Reason.LIMIT_UNVERIFIED
    written = [d for d in story.decisions if d.gateway_limit.change_reason is Reason.LIMIT_SET]
    assert len(written) == 1
    assert f"max_parallel_requests=unknown->{written[0].gateway_limit.after}" in change_line(
        gateway_limit_change(written[0])
    )


def test_the_bound_follows_the_replicas_that_serve():
    """More of them raise it when they are ready; while it is full it may be a little small."""
    story = bounded(World(rate=stepped((0.0, 6.0), (400.0, 14.0)), replicas=3))
    story.until(390.0)
    before, ready = story.bound, story.decisions[-1].replicas.ready
    story.until(1200.0)
    last = story.decisions[-1]
    assert last.replicas.ready > ready
    assert story.bound > before
    for decision in story.decisions:
        if decision.gateway_limit.change_reason is None and decision.gateway_limit.before:
            needed = decision.admission.in_flight_limit * decision.replicas.ready
            assert RAISED_ABOVE * decision.gateway_limit.after > needed


def written_over(limit, needed, *, seconds=900.0):
    """The bounds written from this one on, and the memory; more is in flight than it allows."""
    first = LimitWrite(limit=limit, serving=1, at_seconds=0.0)
    memory, written, now = LimitMemory(written=first), [], 0.0
    while now < seconds:
        standing = InForce(values={LIMIT: limit, FORMER: None})
        memory = confirmed(memory, standing)
        memory = track_bound(standing, memory, needed=needed, now_seconds=now)
        wanted, _ = limit_to_write(standing, memory, needed=needed, serving=1, now_seconds=now)
        memory = judge_load(standing, memory, near=True, over=True, refusing=False, now_seconds=now)
        if wanted is not None:
            limit = wanted
            written.append(wanted)
            memory = replace(memory, pending=LimitWrite(limit=wanted, serving=1, at_seconds=now))
        now += 15.0
    return written, memory


@pytest.mark.parametrize("needed", range(1, 9))
def test_a_small_bound_is_written_once_and_judged(needed):
    """Its headroom, rounded up, is more than 15 %; a bound that is written is not judged yet."""
    written, memory = written_over(math.ceil(HEADROOM * needed), needed)
    assert written == []
    assert memory.held is False


@pytest.mark.parametrize("limit", [3, 4, 5, 20])
def test_a_small_bound_falls_to_what_is_needed(limit):
    """A quarter of three, rounded down, is nothing: it falls by one."""
    written, _ = written_over(limit, 1)
    assert written[-1] == 2
    assert [*written] == sorted(set(written), reverse=True)


def test_lost_metrics_open_the_bound():
    """What stood before the operator's is put back, and the condition says why."""
    story = bounded()
    story.standing = InForce(values={LIMIT: 500})
    story.until(300.0)
    assert story.bound < 500
    lost = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="no answer")
    observe = story.world.observe
    story.world.observe = lambda at: replace(observe(at), pods=(), problems=(lost,))
    story.until(600.0)
    assert story.standing.values == {LIMIT: 500}
    assert story.decisions[-1].gateway_limit.reason is Reason.LIMIT_OPENED


def test_a_restart_leaves_the_bound():
    """A crowd is not let in because the operator was replaced, and knows no capacity at first."""
    story = bounded()
    story.until(300.0)
    stored = json.loads(json.dumps(learned(story.state, story.world.now)))
    story.state = restore(stored, story.world.now)
    bound, decision = story.bound, story.tick()
    assert decision.admission.reason is Reason.ADMISSION_UNKNOWN
    assert story.bound == bound


def test_one_lost_reading_leaves_the_bound():
    """A crowd is not let in because Prometheus did not answer once."""
    story = bounded()
    story.until(300.0)
    bound = story.bound
    assert bound is not None
    lost = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="no answer")
    observe = story.world.observe
    story.world.observe = lambda at: replace(observe(at), pods=(), problems=(lost,))
    decision = story.tick()
    assert decision.gateway_limit.change_reason is None
    assert story.bound == bound
    story.world.observe = observe
    assert story.tick().gateway_limit.reason is not Reason.LIMIT_OPENED


@pytest.mark.parametrize(
    "reason",
    [Reason.NOT_PERMITTED, Reason.LIMIT_NOT_ENFORCEABLE, Reason.LIMIT_SET_BY_ANOTHER],
)
def test_what_may_not_be_changed_is_told_and_left(reason):
    """The condition has the reason and its detail, with one event, and nothing is ordered."""
    story = bounded()
    story.refused = SignalProblem(reason=reason, detail="argocd sets it")
    story.until(300.0)
    assert story.bound is None
    last = story.decisions[-1]
    assert last.gateway_limit.change_reason is None
    verdict = verdicts(last)[ConditionType.ADMISSION_BOUND]
    assert verdict.reason is reason
    assert "argocd sets it" in verdict.message
    pairs = zip([None, *story.decisions], story.decisions, strict=False)
    told = [events(now, before) for before, now in pairs]
    assert sum(event.reason is reason for each in told for event in each) == 1


def test_a_bound_of_ours_that_is_no_longer_enforceable_is_put_back():
    """A route that comes to lead elsewhere leaves nothing of ours behind."""
    story = bounded()
    story.until(300.0)
    assert story.bound is not None
    story.refused = SignalProblem(reason=Reason.LIMIT_NOT_ENFORCEABLE, detail="an InferencePool")
    story.tick()
    assert story.standing.values == {LIMIT: None}
    assert story.decisions[-1].gateway_limit.change_reason is Reason.LIMIT_PUT_BACK


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"mode": Mode.RECOMMEND}, id="recommend"),
        pytest.param({"admission_mode": AdmissionMode.RECOMMEND}, id="admission-recommend"),
        pytest.param({"admission_mode": AdmissionMode.OFF}, id="off"),
    ],
)
def test_where_the_operator_may_not_act_no_bound_is_ordered(changed):
    """The bound stays advice in status.admission."""
    story = bounded(**changed)
    story.until(300.0)
    assert all(decision.gateway_limit is None for decision in story.decisions)
    assert story.bound is None


def test_a_bound_that_stands_though_the_operator_may_not_act_is_told():
    """Until it is put back, the condition has its number."""
    story = bounded().until(300.0)
    bound = story.bound
    story.limits = Limits(recommend_only=True)
    told = verdicts(story.tick())[ConditionType.ADMISSION_BOUND]
    assert story.bound == bound
    assert told.reason is Reason.KILL_SWITCH
    assert f"{bound} stands at each proxy until it is put back" in told.message


def _gateway(seconds, refused_per_second, proxies=1):
    return GatewaySample(
        instances=tuple(
            GatewayInstance(
                name=f"proxy-{index}",
                age_seconds=1.0,
                requests_total=1000.0 + 6.0 * seconds / proxies,
                rejected_total=refused_per_second * seconds / proxies,
            )
            for index in range(proxies)
        )
    )


def under_load(share, refused_per_second, seconds=300.0):
    """A story in which, from the sixth minute on, this share of the bound is in flight."""
    story = bounded()
    observe = story.world.observe
    while story.world.now < 300.0:
        story.gateway = _gateway(story.world.now, 0.0)
        story.tick()
    refused = 0.0
    while story.world.now < 300.0 + seconds:
        refused += refused_per_second * 15.0
        story.gateway = _gateway(story.world.now, 0.0)
        story.gateway = replace(
            story.gateway,
            instances=tuple(replace(i, rejected_total=refused) for i in story.gateway.instances),
        )
        total = share * story.bound
        story.world.observe = lambda at, total=total: _with_in_flight(observe(at), total)
        story.tick()
    return story


def _with_in_flight(observation, total):
    each = total / len(observation.pods)
    pods = tuple(
        replace(pod, engines=tuple(replace(e, running=each, waiting=0.0) for e in pod.engines))
        for pod in observation.pods
    )
    return replace(observation, pods=pods)


@pytest.mark.parametrize(
    ("share", "refused_per_second", "reason"),
    [
        pytest.param(0.5, 2.0, Reason.LIMIT_UNVERIFIED, id="far-from-it"),
        pytest.param(0.95, 0.0, Reason.LIMIT_UNVERIFIED, id="nothing-refused"),
        pytest.param(0.95, 2.0, Reason.LIMIT_VERIFIED, id="held"),
        pytest.param(1.6, 0.0, Reason.LIMIT_NOT_HELD, id="passed-by"),
    ],
)
def test_load_shows_whether_the_bound_holds(share, refused_per_second, reason):
    """Near it refusals must rise and what is in flight stay below; else it is told."""
    story = under_load(share, refused_per_second)
    assert reason in {decision.gateway_limit.reason for decision in story.decisions}
    others = {Reason.LIMIT_VERIFIED, Reason.LIMIT_NOT_HELD} - {reason}
    assert not others & {decision.gateway_limit.reason for decision in story.decisions}


def test_a_bound_that_is_not_held_is_an_event():
    """It is told once, as a warning."""
    story = under_load(1.6, 0.0)
    pairs = zip([None, *story.decisions], story.decisions, strict=False)
    told = [event.reason for before, now in pairs for event in events(now, before)]
    assert told.count(Reason.LIMIT_NOT_HELD) == 1


def test_proxies_that_are_read_share_the_bound():
    """With four of them each gets a quarter and what spreads unevenly."""
    one = bounded()
    one.until(300.0)
    four = bounded()
    while four.world.now < 300.0:
        four.gateway = _gateway(four.world.now, 0.0, proxies=4)
        four.tick()
    assert four.decisions[-1].gateway_limit.proxies == 4
    assert one.bound / 4 < four.bound < one.bound
    stated = bounded(admission_proxies=2)
    stated.until(300.0)
    assert stated.decisions[-1].gateway_limit.proxies == 2


def test_a_verified_bound_gives_the_ceiling_of_the_simulator_s_knobs():
    """Before load has shown that it holds, the ceiling is that of a fleet that nothing bounds."""
    story = under_load(0.95, 2.0)
    memory = story.state.knobs.get("gateway-limits")
    context = SimpleNamespace(
        targets=story.targets,
        facts=InFlightKnob().observe(None, None, memory),
    )
    assert memory.held is True
    assert utilization_ceiling_ratio(context) == BOUNDED_CEILING
    unknown = InFlightKnob().observe(None, None, replace(memory, held=None))
    context.facts = unknown
    assert utilization_ceiling_ratio(context) == UTILIZATION_CEILING


def test_the_bound_is_told_wherever_a_decision_is():
    """Log line, explanation and metrics have the bound, its proxies and what is known of it."""
    story = bounded()
    story.until(300.0)
    last = story.decisions[-1]
    line = log_line(last)
    assert f" proxy_limit={story.bound} limit=LimitUnverified" in line
    told = f"BackendTrafficPolicy/chat: LimitUnverified, {story.bound} in flight at its proxy"
    assert told in text(last)
    values = {sample.name: sample.value for sample in metric_samples(last)}
    assert values["servingslo_proxy_limit_requests"] == story.bound


def test_a_recording_makes_the_same_bounds(tmp_path):
    """What stood at the gateway is in the observation, so a replay orders what was ordered."""
    spec = {
        "targetRef": {"kind": "Deployment", "name": "llama"},
        "objectives": [
            {"metric": "ttft", "percentile": 95, "threshold": "1s"},
            {"metric": "tpot", "percentile": 95, "threshold": "50ms"},
        ],
        "replicas": {"min": 1, "max": 12},
        "admission": {"mode": "Auto", "via": {"kind": "BackendTrafficPolicy", "name": "chat"}},
    }
    story = BoundedRun(World(rate=steady(6.0), replicas=3), targets_from_spec(spec), Limits())
    story.until(300.0)
    lines = [observation_line(observation) for observation in story.observations]
    replayed = [entry.decision.gateway_limit for entry in replay(lines, instead=spec)]
    assert replayed == [decision.gateway_limit for decision in story.decisions]
    bad = lines[-1].replace('"limit":', '"limit":-', 1)
    with pytest.raises(InvalidInputError, match=r"in_force\.gateway-limits\.limit"):
        list(replay([bad], instead=spec))
