"""A young workload that still serves while nothing arrives any more."""

from dataclasses import replace

from tests.unit.policy_world import TARGETS, TICK_SECONDS, World, run, steady

from servingslo.policy.inputs import Limits
from servingslo.policy.planner import observe
from servingslo.policy.rules.requirement import required_replicas

RATE_PER_SECOND = 4.0
TICKS = 6


def test_what_is_seen_to_serve_is_kept_when_no_request_arrives():
    """A law that asks for more is wrong; growth over a rate of zero is none."""
    told = run(World(rate=steady(RATE_PER_SECOND), replicas=3))
    told.until(TICKS * TICK_SECONDS)
    at = (TICKS + 1) * TICK_SECONDS
    context = observe(told.world.observe(at), TARGETS, Limits(), told.state, at).context
    demand = context.demand
    assert demand is not None
    # What was planned for is far more than three replicas carry, and nothing arrives now.
    crowd = replace(demand.scale_up_load, rate_per_second=50.0 * RATE_PER_SECOND)
    quiet = replace(demand, rate_per_second=0.0, scale_up_load=crowd, idle=False)
    found = required_replicas(replace(context, demand=quiet))
    assert found.replicas == context.current
