"""The cheapest pair of two pools, and each pool's thresholds, against an exhaustive search."""

import itertools
from dataclasses import replace

import pytest
from tests.pairs import LATENCY, QUEUE, TPOT, TTFT, WORKLOAD, pair_of, path, pools, sized_alone

from servingslo.models.disaggregated.division import PairRole, divide
from servingslo.models.disaggregated.pair import PairModel, cheapest_pair
from servingslo.models.disaggregated.path import path_seconds
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.workload import LengthDistribution

MIXES = {
    "usual": WORKLOAD,
    "long prompts": replace(WORKLOAD, prompt=LengthDistribution.constant(2500.0)),
    "long answers": replace(
        WORKLOAD, output=LengthDistribution(tokens=(200.0, 800.0), weights=(0.5, 0.5))
    ),
}
# Loose enough for the longest prompts and answers of the mixes.
LOOSE = replace(TTFT, threshold_seconds=0.8), replace(LATENCY, threshold_seconds=16.0)


def holds(pair, objective, prefill, decode):
    """Whether a pair of counts keeps an objective, by the laws of the path alone."""
    model, rate = pair.model, pair.rate_per_second
    (before,) = model.prefill.predictions([prefill], [model.path.through_ratio * rate])
    (there,) = model.decode.predictions([decode], [rate])
    found = path_seconds(before, there, model.path, objective.metric, objective.percentile)
    return found <= objective.threshold_seconds


@pytest.mark.parametrize(
    ("rate", "through", "prices"),
    [(25.0, 1.0, (1.0, 1.0)), (120.0, 1.0, (3.0, 1.0)), (120.0, 0.6, (1.0, 1.0))],
)
def test_no_pair_is_cheaper(rate, through, prices):
    """All pairs of up to 16 replicas, evaluated one by one."""
    tight = replace(TTFT, threshold_seconds=0.38)
    pair = pair_of(rate, tight, LATENCY, through=through, prices=prices, most=16)
    model = pair.model
    prices_of_holding = [
        prefill * prices[0] + decode * prices[1]
        for prefill, decode in itertools.product(range(1, 17), repeat=2)
        if prefill * model.prefill.ceiling_per_second >= through * rate
        and decode >= pair.decode_least
        and all(holds(pair, one, prefill, decode) for one in (tight, LATENCY))
    ]
    assert pair.sufficient
    assert pair.price == pytest.approx(min(prices_of_holding))
    assert all(holds(pair, one, pair.prefill, pair.decode) for one in (tight, LATENCY))


@pytest.mark.parametrize("prices", [(1.0, 1.0), (2.5, 1.0), (1.0, 4.0)])
@pytest.mark.parametrize("mix", list(MIXES))
@pytest.mark.parametrize("rate", [2.0, 15.0, 60.0, 250.0])
@pytest.mark.parametrize("through", [1.0, 0.7])
def test_each_pool_alone_finds_the_pair_again(prices, mix, rate, through):
    """With its thresholds, at the rate of the pair."""
    pair = pair_of(rate, *LOOSE, TPOT, through=through, prices=prices, most=60, workload=MIXES[mix])
    parts = divide(pair)
    model = pair.model
    assert pair.sufficient
    assert sized_alone(model.prefill, parts[PairRole.PREFILL], through * rate) == pair.prefill
    assert sized_alone(model.decode, parts[PairRole.DECODE], rate) == pair.decode


@pytest.mark.parametrize("seconds", [0.3, 0.34, 0.38, 0.42, 0.5, 0.7])
@pytest.mark.parametrize("calibration", [None, {"ttft": 1.3, "latency": 0.9}])
def test_each_pool_alone_finds_the_pair_again_at_tight_objectives(seconds, calibration):
    """From just above what idle pools take, and with laws that are off by a ratio."""
    tight = replace(TTFT, threshold_seconds=seconds)
    for rate in (10.0, 40.0, 160.0):
        pair = pair_of(rate, tight, TPOT, transfer=0.02, calibration=calibration, most=60)
        parts, model = divide(pair), pair.model
        assert sized_alone(model.prefill, parts[PairRole.PREFILL], rate) == pair.prefill
        assert sized_alone(model.decode, parts[PairRole.DECODE], rate) == pair.decode


def test_queue_time_is_divided_too():
    """Its percentile is 0 in a pool without waits; the pool still gets a threshold."""
    pair = pair_of(120.0, QUEUE, TTFT)
    parts, model = divide(pair), pair.model
    assert all(seconds > 0.0 for part in parts.values() for seconds in part.values())
    assert sized_alone(model.prefill, parts[PairRole.PREFILL], 120.0) == pair.prefill
    assert sized_alone(model.decode, parts[PairRole.DECODE], 120.0) == pair.decode


def test_decode_alone_keeps_the_time_per_token():
    """With its whole threshold; the prefill pool has none."""
    parts = divide(pair_of(60.0, TTFT, TPOT))
    assert TPOT not in parts[PairRole.PREFILL]
    assert parts[PairRole.DECODE][TPOT] == TPOT.threshold_seconds


def test_longer_prompts_move_the_ratio_to_prefill_and_longer_answers_to_decode():
    """At the same rate and objectives."""
    usual, prompts, answers = (
        pair_of(100.0, *LOOSE, TPOT, workload=MIXES[mix])
        for mix in ("usual", "long prompts", "long answers")
    )
    ratio = usual.prefill / usual.decode
    assert prompts.prefill > usual.prefill
    assert prompts.prefill / prompts.decode > ratio
    assert answers.decode > usual.decode
    assert answers.prefill == usual.prefill


def test_a_price_moves_the_pair_along_the_staircase():
    """A dear role gets fewer replicas where both can keep the objective."""
    tight = replace(TTFT, threshold_seconds=0.25)
    counts = [
        (pair.prefill, pair.decode)
        for pair in (
            pair_of(60.0, tight, through=0.6, prices=prices)
            for prices in ((1.0, 20.0), (1.0, 1.0), (20.0, 1.0))
        )
    ]
    assert counts[0][0] > counts[1][0] > counts[2][0]
    assert counts[0][1] < counts[1][1] < counts[2][1]


def test_an_infeasible_objective_affects_no_count():
    """It is returned, and has no threshold."""
    never = replace(TTFT, threshold_seconds=0.05)
    pair, without = pair_of(60.0, never, TPOT), pair_of(60.0, TPOT)
    assert pair.infeasible == (never,)
    assert pair.sufficient
    assert (pair.prefill, pair.decode) == (without.prefill, without.decode)
    assert all(never not in part for part in divide(pair).values())


def test_an_infeasible_objective_of_decode_affects_no_count():
    """No batch decodes a token in a millisecond."""
    never = replace(TPOT, threshold_seconds=1e-3)
    pair, without = pair_of(60.0, TTFT, never), pair_of(60.0, TTFT)
    assert pair.infeasible == (never,)
    assert (pair.prefill, pair.decode) == (without.prefill, without.decode)


def test_a_prefill_pool_that_is_short_does_not_make_decode_grow():
    """Demand of three times what six prefill replicas carry: they all serve, decode as needed."""
    prefill, decode = pools(most=6)
    decode = replace(decode, most=100)
    rate = 3.0 * 6 * prefill.ceiling_per_second
    pair = cheapest_pair(prefill, decode, path(), (TTFT, TPOT), rate)
    enough = cheapest_pair(replace(prefill, most=100), decode, path(), (TTFT, TPOT), rate)
    assert not pair.sufficient
    assert pair.prefill == 6
    assert pair.decode <= enough.decode
    parts = divide(pair)
    assert sized_alone(prefill, parts[PairRole.PREFILL], rate) == 6
    assert sized_alone(decode, parts[PairRole.DECODE], rate) == pair.decode


def test_a_decode_pool_that_is_short_does_not_make_prefill_grow():
    """The same the other way round."""
    prefill, decode = pools(most=6)
    prefill = replace(prefill, most=100)
    rate = 3.0 * 6 * decode.ceiling_per_second
    pair = cheapest_pair(prefill, decode, path(), (TTFT, TPOT), rate)
    enough = cheapest_pair(prefill, replace(decode, most=100), path(), (TTFT, TPOT), rate)
    assert not pair.sufficient
    assert pair.decode == 6
    assert pair.prefill <= enough.prefill
    parts = divide(pair)
    assert sized_alone(prefill, parts[PairRole.PREFILL], rate) == pair.prefill
    assert sized_alone(decode, parts[PairRole.DECODE], rate) == 6


@pytest.mark.parametrize(("share", "within"), [(0.99, True), (1.01, False)])
def test_a_broken_ceiling_is_reported(share, within):
    """A loose objective holds beyond the ceiling of utilization of the largest count."""
    prefill, decode = pools(most=4)
    rate = share * 4 * prefill.ceiling_per_second
    loose = replace(TTFT, threshold_seconds=3.0)
    pair = cheapest_pair(prefill, replace(decode, most=40), path(), (loose,), rate)
    assert pair.sufficient
    assert pair.within_ceilings is within
    assert pair.prefill == 4


def test_bounds_are_kept():
    """The least counts of both pools, with nothing to do."""
    prefill, decode = pools()
    pair = cheapest_pair(replace(prefill, least=3), replace(decode, least=2), path(), (TTFT,), 0.5)
    assert (pair.prefill, pair.decode) == (3, 2)


def test_the_present_pair_is_kept_among_equal_prices():
    """Wherever two pairs cost the same, the one that is there stays."""
    tight = replace(TTFT, threshold_seconds=0.36)
    moved = 0
    for rate in range(60, 400, 20):
        pair = pair_of(float(rate), tight)
        other = pair.prefill + 1, pair.decode - 1
        if not holds(pair, tight, *other) or other[1] < pair.decode_least:
            other = pair.prefill - 1, pair.decode + 1
            if not holds(pair, tight, *other) or other[0] < pair.prefill_least:
                continue
        kept = pair_of(float(rate), tight, current=other)
        assert (kept.prefill, kept.decode) == other
        moved += 1
    assert moved > 0


def test_an_unchanged_question_evaluates_no_law(monkeypatch):
    """And a new one at 20 and 20 replicas at most 40 loads of both pools together."""
    prefill, decode = pools()
    rate = 20 * 0.8 * prefill.ceiling_per_second
    model = PairModel(prefill, decode, path())
    evaluated = []
    made = Prediction.__init__

    def counted(self, *arguments):
        evaluated.append(arguments)
        made(self, *arguments)

    monkeypatch.setattr(Prediction, "__init__", counted)
    tight = replace(TTFT, threshold_seconds=0.4)
    pair = model.cheapest((tight, TPOT), rate)
    divide(pair)
    assert 0 < len(evaluated) <= 40
    evaluated.clear()
    assert model.cheapest((tight, TPOT), rate) == pair
    divide(pair)
    assert evaluated == []
