"""The bound in flight while weight moves to a fallback: refusal begins last and ends first."""

from dataclasses import dataclass, field, replace

import pytest
from tests.features.degradation.degraded_world import (
    ASKED,
    DEGRADING,
    DegradedRun,
    SplitWorld,
    share_of,
)
from tests.unit.policy_world import TICK_SECONDS

from servingslo.features.degradation.share import ROUTE_WEIGHTS, TARGETS
from servingslo.features.degradation.steps import UNSEEN_SECONDS, StepMemory, takes_more
from servingslo.policy.inputs import (
    AdmissionMode,
    InForce,
    LimitKind,
    LimitObject,
    Limits,
    ReplicaTargets,
)
from servingslo.policy.knobs.decisions import GATEWAY_LIMITS
from servingslo.policy.knobs.in_flight.gateway import FORMER, HEADROOM, LIMIT, LOWERED_ABOVE
from servingslo.policy.knobs.in_flight.knob import ROOM_RATIO
from servingslo.policy.planner import plan

# One replica carries about three requests a second. The crowd grows to four in six minutes, which a
# fallback of at most 0.3 can take, then jumps to what it cannot, and goes.
CARRIED, GROWN, JUMPED = 3.0, 4.0, 7.0
BEGINS, GROWS_UNTIL, JUMPS, ENDS = 600.0, 960.0, 1140.0, 1320.0
MOST_SHARE = 0.3
BOUNDED = replace(
    DEGRADING,
    replicas=ReplicaTargets(minimum=1, maximum=1),
    admission_mode=AdmissionMode.AUTO,
    admission_via=LimitObject(kind=LimitKind.BACKEND_TRAFFIC_POLICY, name="llama"),
    features={TARGETS.name: replace(ASKED, max_share_ratio=MOST_SHARE)},
)


def crowd(seconds):
    """Requests per second of both together."""
    if seconds < BEGINS or seconds >= ENDS:
        return 0.6 * CARRIED
    if seconds >= JUMPS:
        return JUMPED
    return CARRIED + (GROWN - CARRIED) * min((seconds - BEGINS) / (GROWS_UNTIL - BEGINS), 1.0)


@dataclass
class BoundedRun(DegradedRun):
    """A route whose weights and bound are written. bounds: in force after each tick."""

    bound: int | None = None
    bounds: list = field(default_factory=list)

    def tick(self):
        """One tick: observe, decide, write weights and bound."""
        at = self.world.now + TICK_SECONDS
        ours = {} if self.bound is None else {FORMER: None}
        limit = InForce(values={LIMIT: self.bound, **ours})
        standing = {ROUTE_WEIGHTS: self.standing, GATEWAY_LIMITS: limit}
        observation = replace(self.world.observe(at), in_force=standing)
        decision, self.state = plan(observation, self.targets, self.limits, self.state, at)
        self.decisions.append(decision)
        decided, written = share_of(decision), decision.gateway_limit
        if decided.change_reason is not None:
            self.world.share = 0.0 if decided.puts_back else decided.after
        if written.change_reason is not None:
            self.bound = None if written.puts_back else written.after
        self.shares.append(self.world.share)
        self.bounds.append(self.bound)
        return decision

    def room(self, decision):
        """The bound in force as a ratio to what the replica needs now."""
        return self.bounds[self.decisions.index(decision)] / decision.admission.in_flight_limit


@pytest.fixture(scope="module")
def played():
    """The whole crowd, once."""
    world = SplitWorld(rate=None, replicas=1, offered=crowd)
    return BoundedRun(world, BOUNDED, Limits()).until(ENDS + 300.0)


def first(run, holds):
    """Time of the first decision since the crowd began of which this holds."""
    found = (d.time_seconds for d in run.decisions if d.time_seconds > BEGINS and holds(d))
    return next(found)


def test_weight_moves_before_the_replica_is_full(played):
    """The first step comes before the crowd is a tenth more than the replica carries."""
    at = first(played, lambda d: share_of(d).after > 0.0)
    assert crowd(at) < 1.1 * CARRIED


def test_the_bound_has_room_while_a_growing_crowd_is_degraded(played):
    """Until the share is the greatest; more than half of that is reached while the crowd grows."""
    growing = played.between(BEGINS, GROWS_UNTIL)
    assert max(share_of(d).before for d in growing) > 0.5 * MOST_SHARE
    for decision in growing:
        if share_of(decision).before < MOST_SHARE:
            assert share_of(decision).takes_more
            assert played.room(decision) >= ROOM_RATIO / LOWERED_ABOVE


def test_the_room_goes_when_nothing_more_can_be_degraded(played):
    """At the greatest share the bound is the usual one again, a minute or two later."""
    last = played.at(ENDS - TICK_SECONDS)
    assert share_of(last).before == MOST_SHARE
    assert not share_of(last).takes_more
    assert played.room(last) <= HEADROOM * LOWERED_ABOVE


def test_refusal_ends_first_on_the_way_back(played):
    """The bound has its room again before the last request goes to the fallback."""
    back = first(played, lambda d: d.time_seconds > ENDS and share_of(d).takes_more)
    owner = first(played, lambda d: d.time_seconds > ENDS and share_of(d).after == 0.0)
    assert back < owner
    assert played.room(played.at(owner)) >= ROOM_RATIO / LOWERED_ABOVE


@pytest.mark.parametrize(
    ("share", "verified", "age_seconds", "more"),
    [
        pytest.param(0.0, 0.0, 1000.0, True, id="nothing-yet"),
        pytest.param(0.2, 0.2, 1000.0, True, id="verified"),
        pytest.param(0.3, 0.3, 1000.0, False, id="at-the-most"),
        pytest.param(0.3, 0.2, UNSEEN_SECONDS - 1.0, True, id="last-step-on-its-way"),
        pytest.param(0.2, 0.1, UNSEEN_SECONDS, False, id="not-verified-in-time"),
    ],
)
def test_a_fallback_takes_more_only_as_far_as_steps_are_verified(
    share, verified, age_seconds, more
):
    """A step that no count confirms keeps the bound open for two minutes."""
    memory = StepMemory(share=share, since_seconds=0.0, verified=verified)
    assert takes_more(memory, MOST_SHARE, age_seconds) is more
