"""Invariants of a path through two pools, and of the pair that serves it.

1. What clients see falls with either count and with less load, and grows with the transfer.
2. It is no less than either pool's part.
3. The cheapest pair keeps every feasible objective; with one replica fewer of a role it does not,
   or a ceiling of the role is broken.
4. Each pool's own sizing with its thresholds finds the pair.
"""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cards import H100, H100_LIMITS, L4, L4_LIMITS
from tests.pairs import models, path, pools, sized_alone

from servingslo.models.disaggregated.division import PairRole, divide
from servingslo.models.disaggregated.pair import cheapest_pair
from servingslo.models.disaggregated.path import path_seconds
from servingslo.models.objectives import LatencyMetric, Objective, Routing
from servingslo.models.workload import LengthDistribution, Workload

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The greatest fall of a percentile while load rises, from the inversion.
FALL_RATIO = 0.04

cards = st.sampled_from([(H100, H100_LIMITS), (L4, L4_LIMITS)])
lengths = st.tuples(st.sampled_from([150.0, 600.0, 1500.0]), st.sampled_from([20.0, 120.0, 400.0]))
shares = st.sampled_from([1.0, 0.8, 0.5])
transfers = st.sampled_from([0.0, 0.01, 0.1])
loads = st.floats(min_value=0.05, max_value=0.8)
counts = st.integers(1, 12)


@st.composite
def mixes(draw):
    """A card and requests: the arguments of both pools' models."""
    (law, limits), (prompt, output) = draw(cards), draw(lengths)
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples([0.3 * prompt, prompt, 2.0 * prompt]),
        output=LengthDistribution.from_samples([0.3 * output, output, 2.0 * output]),
    )
    return {"workload": workload, "law": law, "limits": limits}


def seen(mix, through, one, rate, at, metric=LatencyMetric.TTFT):
    """The 95th percentile of a metric with these counts, inf above saturation."""
    prefill, decode = models(through, **mix)
    return path_seconds(
        prefill.predict(through * rate, at[0], Routing.POOLED),
        decode.predict(rate, at[1], Routing.POOLED),
        one,
        metric,
        95.0,
    )


def carried(mix, through, at):
    """The rate of requests at which the first of both pools saturates."""
    prefill, decode = models(through, **mix)
    return min(
        at[0] * prefill.saturation_rate_per_second / through,
        at[1] * decode.saturation_rate_per_second,
    )


@FEW
@given(mixes(), shares, transfers, loads, counts, counts)
def test_clients_see_less_with_more_replicas_or_less_load(
    mix, through, transfer, load, prefill, decode
):
    """And more with a longer transfer."""
    one, rate = path(through, transfer), load * carried(mix, through, (prefill, decode))
    now = seen(mix, through, one, rate, (prefill, decode))
    most = now * (1.0 + FALL_RATIO)
    assert seen(mix, through, one, rate, (prefill + 1, decode)) <= most
    assert seen(mix, through, one, rate, (prefill, decode + 1)) <= most
    assert seen(mix, through, one, 0.7 * rate, (prefill, decode)) <= most
    longer = path(through, transfer + 0.1)
    assert seen(mix, through, longer, rate, (prefill, decode)) >= now * (1.0 - FALL_RATIO)


@FEW
@given(mixes(), transfers, loads, counts, counts)
def test_the_path_is_no_faster_than_its_parts(mix, transfer, load, prefill, decode):
    """Where all requests pass both pools."""
    rate = load * carried(mix, 1.0, (prefill, decode))
    before, there = models(**mix)
    found = seen(mix, 1.0, path(transfer=transfer), rate, (prefill, decode))
    least = max(
        before.predict(rate, prefill, Routing.POOLED).ttft_seconds(95.0),
        there.predict(rate, decode, Routing.POOLED).ttft_seconds(95.0),
    )
    assert found >= least * (1.0 - 0.01)
    latency = seen(
        mix, 1.0, path(transfer=transfer), rate, (prefill, decode), LatencyMetric.LATENCY
    )
    assert latency >= found * (1.0 - FALL_RATIO)


@st.composite
def questions(draw):
    """Two pools, a path, objectives some way above what idle pools take, and a rate."""
    mix, through = draw(mixes()), draw(shares)
    one = path(through, draw(transfers))
    both = pools(
        through,
        (draw(st.sampled_from([1.0, 3.0])), draw(st.sampled_from([1.0, 2.0]))),
        calibration=draw(st.sampled_from([None, {"ttft": 1.4}])),
        **mix,
    )
    both = tuple(replace(pool, engines_per_replica=draw(st.sampled_from([1, 2]))) for pool in both)
    objectives = tuple(
        Objective(
            metric=metric,
            percentile=draw(st.sampled_from([90.0, 95.0, 99.0])),
            threshold_seconds=draw(st.floats(1.05, 4.0))
            * seen(mix, through, one, 1e-6, (1, 1), metric)
            * (1.4 if metric is LatencyMetric.TTFT else 1.0),
        )
        for metric in draw(
            st.lists(
                st.sampled_from([LatencyMetric.TTFT, LatencyMetric.LATENCY, LatencyMetric.TPOT]),
                min_size=1,
                unique=True,
            )
        )
    )
    rate = draw(st.floats(0.05, 20.0)) * carried(mix, through, (1, 1))
    return both, one, objectives, rate


@FEW
@given(questions())
def test_the_pair_is_just_enough(question):
    """By the laws themselves."""
    both, one, objectives, rate = question
    pair = cheapest_pair(*both, one, objectives, rate)
    if not pair.sufficient:
        return
    model = pair.model

    def worst(prefill, decode):
        """The greatest percentile over its threshold."""
        at = model.loads(prefill, decode, rate)
        return max((model.seconds_ratio(goal, *at) for goal in pair.joint), default=0.0)

    assert worst(pair.prefill, pair.decode) <= 1.0 + 1e-6
    assert pair.prefill == pair.prefill_least or worst(pair.prefill - 1, pair.decode) > 1.0
    assert pair.decode == pair.decode_least or worst(pair.prefill, pair.decode - 1) > 1.0


@FEW
@given(questions())
def test_each_pool_alone_finds_the_pair(question):
    """With the thresholds of the division."""
    both, one, objectives, rate = question
    pair = cheapest_pair(*both, one, objectives, rate)
    if not pair.sufficient:
        return
    parts = divide(pair)
    through = one.through_ratio * rate
    assert sized_alone(both[0], parts[PairRole.PREFILL], through) == pair.prefill
    assert sized_alone(both[1], parts[PairRole.DECODE], rate) == pair.decode
