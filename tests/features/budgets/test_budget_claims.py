"""What a resource wants of a budget, from its last decision."""

from tests.unit.policy_world import REPLICAS_ONLY, run
from tests.unit.test_policy_budget_guard import GROWING, GrantedWorld, granted

from servingslo.features.budgets.claims import wants_of
from servingslo.policy.inputs import Limits
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets, PoolTargets, Role
from servingslo.policy.pools.state import FleetState


def test_wants_are_those_before_the_budget():
    """In GPUs; a GPU keeps what the frontier says, and a pod that ends is still held."""
    story = run(GrantedWorld(rate=GROWING, replicas=3, grant=lambda _: granted(8, 2))).until(1500)
    sized = story.state.sized
    pool = PoolTargets(name="", role=Role.COMBINED, targets=REPLICAS_ONLY, gpus=2)
    targets, state = FleetTargets(pools=(pool,)), FleetState(pools={"": story.state})
    fleet = FleetDecision.of(story.at(1500.0))
    wants = wants_of(fleet, targets, Limits(), {"": 5}, state)
    assert wants.acts
    assert (wants.ordered_gpus, wants.held_gpus, wants.after_gpus) == (8, 10, 8)
    assert wants.wanted_gpus > 8
    saturation = sized.case.saturation_per_second
    assert 0.0 < wants.kept_per_gpu <= saturation / 2
    stopped = wants_of(fleet, targets, Limits(recommend_only=True), {"": 5}, state)
    assert (stopped.acts, stopped.wanted_gpus, stopped.minimum_gpus) == (False, 8, 0)
