"""The law of a path through two pools: limits by hand, and sums with a closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.cards import H100, H100_LIMITS
from tests.pairs import WORKLOAD, path, predictions

from servingslo.errors import InvalidInputError
from servingslo.models.disaggregated.path import (
    JOINT_METRICS,
    Path,
    PathLaws,
    TransferLaw,
    path_seconds,
    path_share_within,
)
from servingslo.models.disaggregated.sums import mixed_law, sum_law
from servingslo.models.disaggregated.workloads import (
    decode_workload,
    observed_decode_workload,
    prefill_workload,
)
from servingslo.models.objectives import LatencyMetric, Routing
from servingslo.models.transform import TabulatedLaw
from servingslo.models.workload import LengthDistribution

PERCENTILES = (50.0, 95.0, 99.0)
IDLE = 1e-6


def exponential(mean, atom=0.0):
    """The table of an exponential time, after none with some probability."""
    shares = 1.0 - np.geomspace(1.0, 1e-7, 400)
    return TabulatedLaw(-mean * np.log1p(-shares), atom + (1.0 - atom) * shares)


@pytest.mark.parametrize("percentile", PERCENTILES)
def test_a_sum_of_exponentials_is_erlang(percentile):
    """P(T > t) = (1 + t)·e^(−t) for two of mean 1."""
    found = sum_law(exponential(1.0), exponential(1.0)).quantile(percentile / 100.0)
    beyond = (1.0 + found) * math.exp(-found)
    assert 1.0 - beyond == pytest.approx(percentile / 100.0, abs=5e-4)


def test_a_sum_keeps_the_mass_at_zero():
    """Neither of two requests in four waits if each waits half of the time: 0 up to 25 %."""
    law = sum_law(exponential(1.0, atom=0.5), exponential(1.0, atom=0.5))
    assert law.quantile(0.2) == 0.0
    assert law.share_within(0.0) == pytest.approx(0.25, abs=5e-3)


def test_a_mixture_has_the_mean_of_its_shares():
    """At every time."""
    slow, fast = exponential(2.0), exponential(1.0)
    law = mixed_law(slow, fast, 0.3)
    for seconds in (0.5, 1.0, 4.0):
        expected = 0.3 * slow.share_within(seconds) + 0.7 * fast.share_within(seconds)
        assert law.share_within(seconds) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("percentile", PERCENTILES)
def test_without_transfer_and_with_idle_decode_it_is_the_prefill_law(percentile):
    """TTFT is that of the prefill pool and one step of decode: a and c for its one token."""
    prefill, _ = predictions(60.0)
    _, decode = predictions(IDLE)
    step = H100.step_fixed_seconds + H100.prefill_per_token_seconds
    found = path_seconds(prefill, decode, path(transfer=0.0), LatencyMetric.TTFT, percentile)
    assert found == pytest.approx(prefill.ttft_seconds(percentile) + step, rel=0.01)


@pytest.mark.parametrize("percentile", PERCENTILES)
def test_idle_pools_take_steps_prompt_and_transfer(percentile):
    """Prompts of 200, 1,000 and 3,000 tokens: 40, 40 and 20 %; the mean is 1,080."""
    both = predictions(IDLE)
    prompt = {50.0: 1000.0, 95.0: 3000.0, 99.0: 3000.0}[percentile]
    expected = (
        2.0 * H100.step_fixed_seconds
        + (prompt + 1.0) * H100.prefill_per_token_seconds
        + 0.01
        + 0.04 * prompt / WORKLOAD.prompt.mean_tokens
    )
    found = path_seconds(*both, path(transfer=0.05, fixed=0.01), LatencyMetric.TTFT, percentile)
    assert found == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("metric", sorted(JOINT_METRICS))
@pytest.mark.parametrize("percentile", PERCENTILES)
def test_without_requests_through_prefill_it_is_decode_alone(metric, percentile):
    """A share of 0 leaves one pool that prefills, however busy the other one is."""
    prefill, _ = predictions(70.0)
    _, decode = predictions(40.0, through=0.0)
    found = path_seconds(prefill, decode, path(through=0.0), metric, percentile)
    alone = {
        LatencyMetric.TTFT: decode.ttft_seconds,
        LatencyMetric.LATENCY: decode.latency_seconds,
        LatencyMetric.QUEUE_TIME: decode.queue_seconds,
    }[metric](percentile)
    assert found == pytest.approx(alone, rel=5e-3)


def test_the_time_per_token_is_of_decode_alone():
    """With any transfer."""
    prefill, decode = predictions(60.0)
    found = path_seconds(prefill, decode, path(transfer=0.2), LatencyMetric.TPOT, 95.0)
    assert found == decode.tpot_seconds(95.0)


@pytest.mark.parametrize("percentile", [95.0, 99.0])
def test_percentiles_of_a_sum_are_less_than_their_sum(percentile):
    """Two pools are seldom slow for the same request."""
    prefill, decode = predictions(80.0, counts=(4, 3))
    parts = prefill.ttft_seconds(percentile) + decode.ttft_seconds(percentile)
    found = path_seconds(prefill, decode, path(transfer=0.0), LatencyMetric.TTFT, percentile)
    assert prefill.ttft_seconds(percentile) < found < parts


def test_a_long_prompt_is_prefilled_and_handed_over():
    """A transfer that grows with the prompt lengthens the tail more than a constant one."""
    both = predictions(40.0)
    growing, constant = (
        path_seconds(*both, one, LatencyMetric.TTFT, 95.0)
        for one in (path(transfer=0.1), path(transfer=0.1, fixed=0.1))
    )
    without = path_seconds(*both, path(transfer=0.0), LatencyMetric.TTFT, 95.0)
    assert constant == pytest.approx(without + 0.1, rel=0.01)
    assert growing > 1.2 * constant


def test_direct_requests_meet_no_transfer():
    """Half go directly: half of the requests are faster than any transfer."""
    both = predictions(40.0, through=0.5)
    share = path_share_within(*both, path(0.5, 5.0, 5.0), LatencyMetric.TTFT, 4.0)
    assert share == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("near", "share"), [(1.0 - 1e-13, 1.0), (1e-13, 0.0)])
def test_a_share_next_to_all_or_none_is_all_or_none(near, share):
    """A smoothed share comes as near to both ends as numbers can."""
    prefill, _ = predictions(40.0)
    _, decode = predictions(40.0, through=share)
    found, expected = (
        path_seconds(prefill, decode, path(through), LatencyMetric.TTFT, 95.0)
        for through in (near, share)
    )
    assert found == pytest.approx(expected)


def test_latency_is_that_of_decode_after_the_hand_over():
    """Means add: the mean of the path is that of its parts."""
    prefill, decode = predictions(60.0)
    laws = PathLaws(prefill.engine, decode.engine, path())
    (before,) = laws.prefill_times([prefill], LatencyMetric.LATENCY)
    (there,) = laws.decode_times([decode], LatencyMetric.LATENCY)
    joined = laws.client_law(before, there)
    decoding = np.mean([decode.latency_seconds(p) for p in np.arange(0.5, 100.0)])
    assert joined.cumulants()[0] == pytest.approx(before.cumulants()[0] + decoding, rel=0.01)


def test_waits_of_both_pools_add():
    """Exponential waits, each of some requests: the closed form of their sum."""
    limits = replace(H100_LIMITS, max_num_seqs=4)
    prefill, decode = predictions(20.0, (1, 10), routing=Routing.RANDOM, limits=limits)
    one, other = prefill.laws.running, decode.laws.running
    assert one.wait_probability > 0.01
    assert other.wait_probability > 0.01

    def beyond(seconds):
        """P(W > t) of the sum."""
        p, q = one.wait_probability, other.wait_probability
        r, s = one.wait_rate_per_second, other.wait_rate_per_second
        both = (s * math.exp(-r * seconds) - r * math.exp(-s * seconds)) / (s - r)
        return (
            p * (1 - q) * math.exp(-r * seconds)
            + q * (1 - p) * math.exp(-s * seconds)
            + p * q * both
        )

    found = path_seconds(prefill, decode, path(), LatencyMetric.QUEUE_TIME, 99.0)
    assert beyond(found) == pytest.approx(0.01, rel=0.03)


def test_calibration_scales_the_pools_and_not_the_transfer():
    """Twice the time in the prefill pool: what is left after it is once the transfer."""
    prefill, decode = predictions(60.0)
    plain = PathLaws(prefill.engine, decode.engine, path(transfer=0.05))
    twice = PathLaws(prefill.engine, decode.engine, path(transfer=0.05), {"ttft": 2.0})
    (once,) = plain.prefill_times([prefill], LatencyMetric.TTFT)
    (double,) = twice.prefill_times([prefill], LatencyMetric.TTFT)
    grown = double.cumulants()[0] - once.cumulants()[0]
    assert grown == pytest.approx(once.cumulants()[0] - 0.05, rel=0.02)


def test_an_overloaded_pool_has_no_time():
    """Either pool above saturation; but a prefill pool that nobody passes does not matter."""
    prefill, decode = predictions(40.0)
    full, _ = predictions(4000.0)
    _, full_decode = predictions(4000.0)
    for both in ((full, decode), (prefill, full_decode)):
        assert path_seconds(*both, path(), LatencyMetric.TTFT, 95.0) == math.inf
        assert path_share_within(*both, path(), LatencyMetric.TTFT, 1.0) == 0.0
    _, direct = predictions(40.0, through=0.0)
    assert path_seconds(full, direct, path(0.0), LatencyMetric.TTFT, 95.0) < math.inf


def test_random_routing_is_slower():
    """In both pools."""
    pooled, random = (
        path_seconds(*predictions(70.0, routing=one), path(), LatencyMetric.TTFT, 95.0)
        for one in Routing
    )
    assert random > pooled


def test_a_prefill_pool_answers_with_one_token():
    """Of the requests that pass it."""
    load = prefill_workload(WORKLOAD.at_rate(10.0), 0.7)
    assert load.arrival_rate_per_second == pytest.approx(7.0)
    assert load.output.mean_tokens == 1.0


def test_a_decode_pool_prefills_direct_requests_only():
    """One token of those with a cache; of the others all that is not cached there."""
    load = decode_workload(WORKLOAD, 0.7, direct=LengthDistribution.constant(100.0))
    assert load.uncached.tokens == (1.0, 100.0)
    assert load.uncached.weights == pytest.approx((0.7, 0.3))
    assert load.held_tokens_per_sequence == WORKLOAD.held_tokens_per_sequence
    assert decode_workload(WORKLOAD, 1.0).uncached.mean_tokens == 1.0


@pytest.mark.parametrize("through", [1.0, 0.7, 0.2])
@pytest.mark.parametrize("cached", [0.0, 0.5])
def test_a_decode_pool_is_known_from_its_own_counters(through, cached):
    """Prompts, and the share that was not computed there, give the same load as its parts."""
    parts = decode_workload(replace(WORKLOAD, cached_ratio=cached), through)
    share = 1.0 - parts.uncached.mean_tokens / WORKLOAD.prompt.mean_tokens
    found = observed_decode_workload(replace(WORKLOAD, cached_ratio=share), through)
    assert found.uncached.tokens == pytest.approx(parts.uncached.tokens)
    assert found.uncached.weights == pytest.approx(parts.uncached.weights)


def test_a_decode_pool_may_compute_less_than_a_token_of_each_request():
    """Counters that disagree with the share leave direct requests their one token."""
    found = observed_decode_workload(replace(WORKLOAD, cached_ratio=1.0), 0.5)
    assert found.uncached.tokens == (1.0,)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: TransferLaw(mean_seconds=0.1, fixed_seconds=0.2),
        lambda: TransferLaw(mean_seconds=-0.1),
        lambda: TransferLaw(mean_seconds=math.inf),
        lambda: Path(through_ratio=1.1, transfer=TransferLaw(mean_seconds=0.0)),
        lambda: decode_workload(WORKLOAD, -0.1),
        lambda: path_seconds(*predictions(1.0), path(), LatencyMetric.TTFT, 100.0),
    ],
)
def test_impossible_paths_are_refused(refused):
    """With the field and the allowed range."""
    with pytest.raises(InvalidInputError):
        refused()
