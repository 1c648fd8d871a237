"""Invariants of the capacity frontier, against a direct search by the laws themselves.

1. Sizing from the frontier is direct sizing.
2. What a fleet carries rises with its count.
3. A looser objective never needs more, and carries no less.
4. Another threshold never changes another constraint's row.
5. What was found before limits and lengths moved a little never leads to fewer replicas than what
   is found anew.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from policy_stories import QUICK
from tests.cards import H100, H100_LIMITS, L4, L4_LIMITS
from tests.sizing_cases import case

from servingslo.models.fleet.crossing import CLOSE_TO_JUMP_RATIO
from servingslo.models.fleet.frontier import GREATEST_UTILIZATION, Fleet, Frontier
from servingslo.models.fleet.latency import Objective, Routing, latency_model
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.replicas.sizing import Load, size

LARGEST_COUNT = 24
# How exactly a rate is known (where a percentile jumps: CLOSE_TO_JUMP_RATIO), and the greatest fall
# of a percentile while load rises.
RATE_RATIO, FALL_RATIO = 5e-4, 0.04

cards = st.sampled_from([(H100, H100_LIMITS), (L4, L4_LIMITS)])
lengths = st.tuples(st.sampled_from([150.0, 600.0, 2500.0]), st.sampled_from([20.0, 120.0, 400.0]))
dispersions = st.sampled_from([1.0, 3.0])
goals = st.tuples(
    st.sampled_from([LatencyMetric.TTFT, LatencyMetric.TPOT, LatencyMetric.QUEUE_TIME]),
    st.sampled_from([50.0, 95.0, 99.0]),
    st.floats(min_value=1.1, max_value=8.0),
)
shares = st.floats(min_value=0.01, max_value=1.2)
engines = st.sampled_from([1, 2])
small = st.floats(min_value=-0.02, max_value=0.02)


@st.composite
def mixes(draw):
    """A mix of requests on a card."""
    (law, limits), (prompt, output) = draw(cards), draw(lengths)
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples([0.3 * prompt, prompt, 2.0 * prompt]),
        output=LengthDistribution.from_samples([0.3 * output, output, 2.0 * output]),
        arrival_dispersion=draw(dispersions),
    )
    return workload, law, limits


@st.composite
def cases(draw, mix=None):
    """A case with one objective, some way above what a request takes alone."""
    judged = case(
        model=latency_model(*(mix or draw(mixes()))),
        routing=draw(st.sampled_from(list(Routing))),
        largest_count=LARGEST_COUNT,
        engines_per_replica=draw(engines),
    )
    metric, percentile, factor = draw(goals)
    alone = max(judged.frontier.unloaded_seconds(metric, percentile), 0.01)
    goal = Objective(metric=metric, percentile=percentile, threshold_seconds=factor * alone)
    return replace(judged, objectives=(goal,))


@st.composite
def moves(draw):
    """A case, and what hands its frontier on to the one after limits and prompts have moved."""
    workload, law, limits = mix = draw(mixes())
    judged = draw(cases(mix))
    looser, longer = draw(small), draw(small)
    prompt = replace(
        workload.prompt, tokens=tuple((1.0 + longer) * one for one in workload.prompt.tokens)
    )
    model = latency_model(replace(workload, prompt=prompt), law, limits)
    (goal,) = judged.objectives
    moved = replace(goal, threshold_seconds=(1.0 + looser) * goal.threshold_seconds)

    def move_on():
        frontier = Frontier(model, judged.frontier, abs(longer))
        return replace(judged, objectives=(moved,), frontier=frontier)

    return judged, move_on


def direct(judged, rate, slack):
    """The least count at which the objective holds, count by count; None where none does."""
    limit = judged.limit(judged.objectives[0])
    for count in range(1, judged.largest_count + 1):
        load = judged.predicted(count, rate)
        if load.utilization <= GREATEST_UTILIZATION * (1.0 + 1e-9) and (
            limit.of(load) <= limit.most * slack
        ):
            return count
    return judged.largest_count + 1


@QUICK
@given(cases(), shares)
def test_sizing_is_direct_sizing(judged, share):
    """Invariant 1: the same count, but where a percentile is at its limit, or falls under load."""
    rate = share * LARGEST_COUNT * judged.saturation_per_second
    need = size(judged, Load(rate_per_second=rate)).needs[-1]
    found = judged.largest_count + 1 if need.replicas is None else need.replicas
    most = direct(judged, rate * (1.0 + RATE_RATIO), 1.0 - FALL_RATIO)
    assert direct(judged, rate * (1.0 - RATE_RATIO), 1.0 + FALL_RATIO) <= found <= most


@QUICK
@given(cases(), st.integers(1, LARGEST_COUNT))
def test_what_is_carried_rises_with_the_count(judged, count):
    """Invariant 2: one replica more carries more, unless none carries anything."""
    goal = judged.objectives[0]
    fewer, more = (judged.greatest_rate_per_second(goal, n) for n in (count, count + 1))
    assert more >= fewer * (1.0 - CLOSE_TO_JUMP_RATIO)
    assert more > 0.0 or fewer == 0.0


@QUICK
@given(cases(), shares, st.floats(min_value=1.0, max_value=4.0))
def test_a_looser_objective_never_needs_more(judged, share, factor):
    """Invariant 3: nor carries a fleet less."""
    (goal,) = judged.objectives
    looser = replace(goal, threshold_seconds=factor * goal.threshold_seconds)
    load = Load(rate_per_second=share * LARGEST_COUNT * judged.saturation_per_second)
    tight = size(judged, load).replicas
    assert size(replace(judged, objectives=(looser,)), load).replicas <= tight
    assert judged.greatest_rate_per_second(looser, 4) >= (
        judged.greatest_rate_per_second(goal, 4) * (1.0 - CLOSE_TO_JUMP_RATIO)
    )


@QUICK
@given(cases(), st.floats(min_value=0.3, max_value=4.0))
def test_another_threshold_never_changes_another_row(judged, factor):
    """Invariant 4: neither before nor after it was asked for."""
    (goal,) = judged.objectives
    other = judged.kv_limit
    fleets = [Fleet(count, judged.routing) for count in (2, 5)]
    before = [judged.frontier.greatest_rate_per_second(other, fleet) for fleet in fleets]
    changed = replace(goal, threshold_seconds=factor * goal.threshold_seconds)
    for fleet in fleets:
        judged.frontier.greatest_rate_per_second(judged.limit(changed), fleet)
    assert before == [judged.frontier.greatest_rate_per_second(other, fleet) for fleet in fleets]


@QUICK
@given(moves(), shares)
def test_a_small_move_never_leads_to_too_few(move, share):
    """Invariant 5: but where a percentile is at its limit, or falls under load."""
    judged, move_on = move
    rate = share * LARGEST_COUNT * judged.saturation_per_second
    size(judged, Load(rate_per_second=rate))
    moved = move_on()
    need = size(moved, Load(rate_per_second=rate)).needs[-1]
    found = moved.largest_count + 1 if need.replicas is None else need.replicas
    assert direct(moved, rate * (1.0 - RATE_RATIO), 1.0 + FALL_RATIO) <= found
