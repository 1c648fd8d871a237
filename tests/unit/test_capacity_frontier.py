"""The capacity frontier: what a tick costs, and where a percentile meets its limit."""

import math
from dataclasses import replace

import pytest
from policy_world import TARGETS, Run, World
from tests.cards import H100, H100_LIMITS
from tests.sizing_cases import WORKLOAD, case, sized

from servingslo.models.fleet import frontier
from servingslo.models.fleet.crossing import (
    CLOSE_RATIO,
    CLOSE_TO_JUMP_RATIO,
    MOST_ROUNDS,
    CrossingSearch,
)
from servingslo.models.fleet.frontier import Fleet, Frontier, Limit
from servingslo.models.fleet.latency import LatencyModel, Objective, Routing, latency_model
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import AdmissionMode, BatchingMode, BatchingTargets, Limits
from servingslo.policy.planner import plan
from servingslo.policy.replicas.sizing import carried_rate_per_second, ceiling_rate_per_second

GOALS = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.4),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.014),
)
# Two objectives and KV use at two counts, each found in a few looks from where the last mix ended:
# one of the runs below took at most two thirds of it.
MOST_LOADS_OF_A_RENEWAL = 80


@pytest.fixture
def loads(monkeypatch):
    """Loads that laws were prepared for, as they are."""
    seen = []
    predict_many = LatencyModel.predict_many

    def counted(self, rates, counts, routing):
        seen.extend(zip(rates, counts, strict=True))
        return predict_many(self, rates, counts, routing)

    monkeypatch.setattr(LatencyModel, "predict_many", counted)
    return seen


def _story(swing_per_second):
    targets = replace(
        TARGETS,
        admission_mode=AdmissionMode.RECOMMEND,
        batching=BatchingTargets(mode=BatchingMode.OFF),
    )
    rate = lambda at: 16.0 + swing_per_second * math.sin(at / 300.0)  # noqa: E731
    return Run(World(rate=rate, replicas=6), targets, Limits())


@pytest.mark.parametrize(
    "swing_per_second",
    [
        pytest.param(0.0, id="steady", marks=pytest.mark.acceptance),
        pytest.param(6.0, id="swinging"),
    ],
)
def test_a_quiet_tick_evaluates_no_law_and_a_renewal_a_bounded_number(loads, swing_per_second):
    """Most ticks keep the mix: they read what is known; a new mix is looked at near its count."""
    story = _story(swing_per_second)
    story.until(300.0)
    quiet, renewals = [], []
    while story.world.now < 1800.0:
        before, known = len(loads), story.state.prepared
        story.tick()
        (quiet if story.state.prepared is known else renewals).append(len(loads) - before)
    # Calibration moves limits now and then while the mix stays: their rows are found anew.
    assert max(*renewals, *quiet) <= MOST_LOADS_OF_A_RENEWAL
    if swing_per_second == 0.0:
        # Arrivals are random: the others read a load that was not read of this mix before.
        assert sum(count == 0 for count in quiet) > len(quiet) / 3
    again = story.observations[-1], story.targets, Limits(), story.state, story.world.now
    first, _ = plan(*again)
    told = len(loads)
    second, _ = plan(*again)
    assert second == first
    assert len(loads) == told


def test_the_same_question_again_evaluates_nothing(loads):
    """At the same load, at one between, and about what a greater fleet would carry."""
    judged = case(*GOALS)
    found = sized(judged, 100.0)
    assert loads
    assert len(loads) < MOST_LOADS_OF_A_RENEWAL
    loads.clear()
    assert sized(judged, 100.0) == found
    assert sized(judged, 100.5).replicas in (found.replicas, found.replicas + 1)
    assert not loads


def test_a_mix_much_alike_begins_where_the_last_one_ended(loads):
    """Two looks a row in place of four or more."""
    judged = case(*GOALS)
    sized(judged, 100.0)
    first = len(loads)
    loads.clear()
    again = replace(judged, frontier=Frontier(judged.model, judged.frontier))
    assert sized(again, 100.0) == sized(judged, 100.0)
    assert len(loads) < first / 2


def _longer(lengths, ratio):
    return replace(lengths, tokens=tuple(ratio * tokens for tokens in lengths.tokens))


def _slightly_moved(judged, limits_ratio, tokens_ratio):
    """The case after limits and lengths have moved by these ratios, as from tick to tick."""
    calibration = {metric.value: 1.0 / limits_ratio for metric in LatencyMetric}
    longer = replace(
        WORKLOAD,
        prompt=_longer(WORKLOAD.prompt, tokens_ratio),
        output=_longer(WORKLOAD.output, tokens_ratio),
    )
    model = latency_model(longer, H100, H100_LIMITS)
    moved = Frontier(model, judged.frontier, abs(tokens_ratio - 1.0))
    return replace(judged, frontier=moved, calibration=calibration)


@pytest.mark.parametrize(
    ("limits_ratio", "tokens_ratio"),
    [
        pytest.param(1.004, 1.0, id="a looser limit"),
        pytest.param(0.996, 1.0, id="a tighter limit"),
        pytest.param(1.0, 1.01, id="longer requests"),
        pytest.param(1.0, 0.99, id="shorter requests"),
        pytest.param(1.003, 1.01, id="both"),
    ],
)
def test_a_small_move_evaluates_no_law(loads, limits_ratio, tokens_ratio):
    """What was found before bounds what would be found: between two counts that is enough."""
    judged = case(*GOALS)
    carried = [
        min(judged.greatest_rate_per_second(goal, count) for goal in GOALS) for count in (7, 8)
    ]
    rate = sum(carried) / 2.0
    assert sized(judged, rate).replicas == 8
    loads.clear()
    assert sized(_slightly_moved(judged, limits_ratio, tokens_ratio), rate).replicas == 8
    assert not loads


def test_a_large_move_bounds_nothing(loads):
    """Requests a tenth longer, or moves that add up to as much, are evaluated."""
    judged = case(*GOALS)
    sized(judged, 100.0)
    loads.clear()
    sized(_slightly_moved(judged, 1.0, 1.1), 100.0)
    assert loads
    for _ in range(10):
        judged = _slightly_moved(judged, 1.0, 1.01)
    loads.clear()
    sized(judged, 100.0)
    assert loads


def test_a_limit_whose_bounds_say_that_it_misses_is_not_looked_at_there(monkeypatch):
    """The crossing of the last mix is enough to know where the search has to begin."""
    judged = case(GOALS[1])
    before = carried_rate_per_second(judged, (), 4)
    assert before < ceiling_rate_per_second(judged, 4)
    looks = []

    def noted(load, *asked):
        looks.append(load.utilization)
        return metric_seconds(load, *asked)

    monkeypatch.setattr(frontier, "metric_seconds", noted)
    moved = _slightly_moved(judged, 1.0, 1.005)
    assert carried_rate_per_second(moved, (), 4) == pytest.approx(before, rel=0.01)
    assert looks
    assert max(looks) < judged.utilization_target_ratio - 0.01


@pytest.mark.parametrize("routing", list(Routing))
def test_what_is_told_of_a_load_is_what_the_law_says(routing):
    """Readings lie between loads close by: within 3 %, next to saturation too."""
    frontier = Frontier(case().model)
    fleet = Fleet(8, routing)
    top = frontier.model.saturation_rate_per_second * fleet.engines

    def measure(prediction):
        return prediction.ttft_seconds(99.0)

    for share in (0.003, 0.1, 0.333, 0.62, 0.801, 0.9, 0.947, 0.965, 0.999):
        exact = measure(frontier.model.predict(share * top, *fleet))
        assert frontier.reading(measure, share * top, fleet) == pytest.approx(exact, rel=0.03)
    assert frontier.reading(measure, 1.01 * top, fleet) == math.inf


def _searched(law, start=None, looser=0.0):
    search = CrossingSearch(0.95, start, looser)
    looks = 0
    while search.ended is None:
        search.add_value(law(search.utilization))
        looks += 1
    assert looks <= MOST_ROUNDS
    return search.ended.utilization, looks


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        pytest.param(lambda u: 0.4 / (1.0 - u), 0.6, id="as a wait"),
        pytest.param(lambda u: 0.5 + u, 0.5, id="a line"),
        pytest.param(lambda u: 0.0 if u < 0.41 else 2.0 * u / 0.82, 0.41, id="from nothing at all"),
        pytest.param(lambda u: 0.1 if u < 0.8 else 9.0, 0.8, id="a jump"),
        pytest.param(lambda _: 0.9, 0.95, id="never reached"),
        pytest.param(lambda _: 1.1, 0.0, id="never kept"),
        pytest.param(lambda _: math.nan, 0.0, id="no number"),
        pytest.param(lambda u: u / 0.0123, 0.0123, id="all but idle"),
    ],
)
def test_a_crossing_is_found_in_a_few_looks(law, expected):
    """Whatever the law looks like, to 0.02 % of the rate, and sooner from where it nearly is.

    A jump is found to 0.2 %, from below.
    """
    found, looks = _searched(law)
    again, fewer = _searched(law, _crossing(law, found))
    jumps = law(expected + 1e-9) > 1.1
    below, above = (CLOSE_TO_JUMP_RATIO, 0.0) if jumps else (2 * CLOSE_RATIO, 2 * CLOSE_RATIO)
    for utilization in (found, again):
        assert expected * (1.0 - below) <= utilization <= expected * (1.0 + above)
    assert fewer <= looks


def _crossing(law, found):
    search = CrossingSearch(0.95)
    while search.ended is None:
        search.add_value(law(search.utilization))
    return search.ended


def test_a_jump_is_not_taken_to_be_where_a_load_much_alike_had_one():
    """The slope between two looks at its sides says nothing of where another load jumps."""
    first = _crossing(lambda u: 0.98 if u < 0.002 else 1.07, 0.0)
    found, _ = _searched(lambda u: 0.98 if u < 0.05 else 1.07, first)
    assert 0.05 * (1.0 - CLOSE_TO_JUMP_RATIO) < found <= 0.05


def test_what_a_mix_hands_to_the_next_does_not_grow_with_calibration():
    """Where searches ended is kept for a percentile, not for each value that it may be."""
    known = case(*GOALS).frontier
    for step in range(20):
        known = Frontier(known.model, known)
        limit = Limit(LatencyMetric.TTFT, 99.0, 0.4 + 0.001 * step)
        known.least_counts(
            [limit], 40.0, engines_per_replica=1, routing=Routing.POOLED, low=1, high=64
        )
    assert len(known.counts) == 1
