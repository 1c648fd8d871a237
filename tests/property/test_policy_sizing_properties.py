"""Invariants of sizing and of guards.

1. Sizing never shrinks as the arrival rate rises, nor as the backlog does.
2. The count that sizing answers satisfies every constraint, and one fewer breaks one.
3. Guards are idempotent: a proposal that has passed them passes again unchanged.
4. Nothing is ordered outside the bounds, except on the way back into them.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from policy_stories import OBJECTIVES, QUICK
from tests.sizing_cases import case, sized
from tests.unit.policy_world import settled_context

from servingslo.policy.hpa_behavior import BehaviorState
from servingslo.policy.inputs import Limits
from servingslo.policy.replicas.proposal import Bounds, Proposal
from servingslo.policy.replicas.sizing import Load, least_safe_count
from servingslo.policy.rules.guards import GUARDS
from servingslo.reasons import Reason

CASE = case(*OBJECTIVES)

rates = st.floats(min_value=0.0, max_value=400.0)
drains = st.floats(min_value=0.0, max_value=100.0)


def holds(count, rate):
    """Whether KV use and every objective are within their limits, by the laws themselves."""
    load = CASE.predicted(count, rate)
    return load.stable and all(
        limit.of(load) <= limit.most for limit in (CASE.kv_limit, *map(CASE.limit, OBJECTIVES))
    )


@QUICK
@given(rates, rates, drains, drains)
def test_sizing_never_shrinks_as_demand_rises(rate, more_rate, drain, more_drain):
    """Invariant 1: monotone in rate and in backlog."""
    low = sized(CASE, rate, drain).replicas
    high = sized(CASE, rate + more_rate, drain + more_drain).replicas
    assert high >= low


@QUICK
@given(rates, drains)
def test_the_answer_satisfies_every_constraint_and_one_fewer_does_not(rate, drain):
    """Invariant 2: least sufficient count."""
    answer = sized(CASE, rate, drain)
    needs = [need.replicas for need in answer.needs]
    if all(need is not None for need in needs):
        assert answer.replicas == min(max(needs), CASE.largest_count)
    if answer.replicas < CASE.largest_count:
        # The frontier is known to 0.02 % of a rate.
        assert holds(answer.replicas, rate * 0.9995)
        assert CASE.predicted(answer.replicas, rate).utilization <= 0.85 + 1e-9
    fewer = answer.replicas - 1
    if fewer >= 1:
        utilization = CASE.predicted(fewer, rate).utilization
        draining = (rate + drain) / (fewer * CASE.model.saturation_rate_per_second)
        broken = (
            utilization > 0.85 or (drain > 0 and draining > 0.95) or not holds(fewer, rate * 1.0005)
        )
        assert broken


@QUICK
@given(rates, st.integers(1, 40), st.integers(0, 40), st.integers(0, 3))
def test_a_safe_count_holds_with_the_spare_ones_lost(rate, lowest, extra, spare):
    """Invariant 2 for steps down: what is called safe survives the failures it is meant for."""
    current = lowest + extra
    load = Load(rate_per_second=rate)
    safe = least_safe_count(CASE, load, (), lowest=lowest, current=current, spare=spare)
    assert lowest <= safe <= current
    if safe < current:
        left = safe - spare
        assert left >= 1
        assert holds(left, rate * 0.9995)


counts = st.integers(min_value=1, max_value=30)


@QUICK
@given(
    wanted=st.integers(0, 60),
    current=counts,
    safe=counts,
    ends=st.tuples(st.integers(1, 10), st.integers(1, 40)),
    blocked=st.booleans(),
    step=st.one_of(st.none(), st.integers(1, 10)),
)
def test_guards_are_idempotent_and_stay_inside_the_bounds(
    wanted, current, safe, ends, blocked, step
):
    """Invariants 3 and 4: a second pass changes nothing; a change never leaves the bounds."""
    bounds = Bounds(
        minimum=min(ends), maximum=max(ends), maximum_reason=Reason.MAX_REPLICAS_REACHED
    )
    context = settled_context()
    watched = None if blocked else context.state.watched_since_seconds
    context = replace(
        context,
        current=current,
        bounds=bounds,
        limits=Limits(max_step=step),
        state=replace(context.state, behavior=BehaviorState(), watched_since_seconds=watched),
    )

    def passed(proposal):
        for guard in GUARDS:
            proposal = guard(context, proposal)
        return proposal

    plain = Proposal.of(wanted)
    required = replace(plain.requirement, safe_replicas=safe)
    once = passed(replace(plain, requirement=required))
    twice = passed(once)
    assert twice.replicas == once.replicas
    if bounds.minimum <= current <= bounds.maximum:
        assert twice.steps == once.steps
    inside = bounds.minimum <= once.replicas <= bounds.maximum
    on_the_way = abs(once.replicas - current) == step
    assert inside or on_the_way
    if step is not None:
        assert abs(once.replicas - current) <= step
