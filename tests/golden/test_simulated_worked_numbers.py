"""Worked numbers that were simulated, simulated again, and the models beside both.

A number of the literature or of a measurement on simulated engines is held as tightly as chance
allows; where the law that decides differs from it, the difference is held, and which side the
simulation is on is said. The engines are those of tests/validation/step_simulation.py, with the
Azure conversation lengths unless stated.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.cards import H100 as H100_LAW
from tests.cards import L4 as L4_LAW
from tests.model_fleets import ReplicaGroup, predict
from tests.textbook.batching import BatchLaw, batch_response
from tests.validation.grid import H100, L4, Card, conversation_lengths
from tests.validation.step_simulation import Fleet, Outcome, poisson_arrivals, simulate

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.fleet.latency import Routing
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.workload import LengthDistribution, Workload

pytestmark = pytest.mark.slow("servingslo.models", "servingslo_lab.sim")

DYNAMIC = BatchLaw(fixed_seconds=0.050, per_request_seconds=0.0005)
DYNAMIC_RATE = 100.0
THRESHOLDS = (1.0, 0.050)


def filled_batches(batch: int, request_count: int = 8_000_000) -> tuple[float, float]:
    """Mean formation and mean wait of batches that start when full, in seconds.

    Poisson arrivals; one server; Lindley's recursion over batches.
    """
    arrivals = poisson_arrivals(DYNAMIC_RATE, request_count, np.random.default_rng(1))
    arrivals = (arrivals * request_count / DYNAMIC_RATE / arrivals[-1]).reshape(-1, batch)
    full = arrivals[:, -1]
    steps = DYNAMIC.service_seconds(batch) - np.diff(full)
    walk = np.concatenate(([0.0], np.cumsum(steps)))
    wait = walk - np.minimum.accumulate(walk)
    return float((full[:, None] - arrivals).mean()), float(wait.mean())


def greedy_response(batch: int, request_count: int = 400_000) -> float:
    """Mean response of a server that takes all who wait, up to a batch, when free; seconds."""
    arrivals = np.cumsum(np.random.default_rng(5).exponential(1.0 / DYNAMIC_RATE, request_count))
    clock, total, first = 0.0, 0.0, 0
    while first < request_count:
        clock = max(clock, float(arrivals[first]))
        end = min(int(np.searchsorted(arrivals, clock, side="right")), first + batch)
        clock += DYNAMIC.service_seconds(end - first)
        total += (end - first) * clock - float(arrivals[first:end].sum())
        first = end
    return total / request_count


@pytest.mark.parametrize(
    ("batch", "formation_ms", "wait_ms", "total_ms", "law_above_ms"),
    [
        pytest.param(8, 34.9, 2.8, 91.7, 4.27, id="8"),
        pytest.param(16, 75.0, 0.0, 133.0, 1.03, id="16"),
        pytest.param(32, 155.0, 0.0, 221.4, 0.27, id="32"),
    ],
)
def test_a_filled_batch(batch, formation_ms, wait_ms, total_ms, law_above_ms):
    """Simulated at 100/s, 50 ms + 0.5 ms·B: 34.9 + 2.8 + 54.0 = 91.7 ms at B = 8.

    Formation is 7/(2λ) = 35.0 and the wait 2.73 ms in the long run. At 32 nobody waits, so the
    response is 155.0 + 66.0: 221.4 is 0.4 high by chance. Allen and Cunneen's wait, which
    decides, is high by what is stated here.
    """
    formation, wait = filled_batches(batch)
    service = DYNAMIC.service_seconds(batch)
    simulated_ms = 1e3 * (formation + wait + service)
    assert simulated_ms == pytest.approx(total_ms, abs=0.06 if batch < 32 else 0.45)
    assert 1e3 * formation == pytest.approx(formation_ms, abs=0.12)
    assert 1e3 * wait == pytest.approx(wait_ms, abs=0.09)
    law = batch_response(DYNAMIC, DYNAMIC_RATE, batch)
    assert law.formation_seconds == pytest.approx(formation, rel=0.0005)
    assert 1e3 * law.response_seconds - simulated_ms == pytest.approx(law_above_ms, abs=0.06)


@pytest.mark.parametrize(
    ("batch", "law_ms"),
    [
        pytest.param(8, 81.75, id="8"),
        pytest.param(16, 79.43, id="16"),
        pytest.param(32, 79.43, id="32"),
    ],
)
def test_a_greedy_batcher(batch, law_ms):
    """Simulated: 80 to 82 ms. The chain is exact: 81.75, and 79.43 from B = 16 on, not 80."""
    times = batch_response(DYNAMIC, DYNAMIC_RATE, batch, window_seconds=0.0)
    assert 1e3 * times.response_seconds == pytest.approx(law_ms, abs=0.005)
    # Two standard errors of 400,000 requests.
    assert 1e3 * greedy_response(batch) == pytest.approx(law_ms, abs=0.15)


def run(
    card: Card, rate: float, *, replicas: int = 1, least_loaded: bool = True, seed: int = 1,
    lengths: tuple[np.ndarray, np.ndarray] | None = None, count: int = 400_000,
) -> Outcome:  # fmt: skip
    """What requests see at this rate per replica, by simulation.

    As many requests as the rate brings on average: 0.2 % more are 0.7 % in the mean ITL of a busy
    engine, which seeds then scatter by.
    """
    rng = np.random.default_rng(seed)
    arrivals = poisson_arrivals(rate * replicas, count, rng)
    arrivals *= count / (rate * replicas) / arrivals[-1]
    prompts, outputs = lengths or conversation_lengths()
    copies = math.ceil(count / len(prompts))
    drawn = rng.permutation(np.tile(np.arange(len(prompts)), copies))[:count]
    fleet = Fleet(
        a=card.a, b=card.b, c=card.c, d=card.d, max_num_seqs=card.max_num_seqs,
        max_num_batched_tokens=card.max_num_batched_tokens,
        kv_capacity_tokens=card.kv_capacity_tokens, replica_count=replicas,
        least_loaded=least_loaded,
    )  # fmt: skip
    return simulate(fleet, arrivals, prompts[drawn], outputs[drawn], rng)


def high(values: np.ndarray, percentile: float = 99.0) -> float:
    """A percentile."""
    return float(np.percentile(values, percentile))


def share_within(outcome: Outcome) -> float:
    """Share of requests within 1 s to the first token and 50 ms a token.

    As if both were independent: at these loads all first tokens come in time but for a few.
    """
    ttft, tpot = THRESHOLDS
    return float((outcome.ttft <= ttft).mean() * (outcome.tpot <= tpot).mean())


@cache
def conversation() -> Workload:
    """The conversation lengths at 1 request per second."""
    prompts, outputs = conversation_lengths()
    held = float((outputs * (prompts + outputs / 2)).mean() / outputs.mean())
    return Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(prompts.tolist()),
        output=LengthDistribution.from_samples(outputs.tolist()),
        context_tokens_per_sequence=held,
    )


def law_of(
    card: Card, rate: float, *, replicas: int = 1, routing: Routing = Routing.POOLED,
    workload: Workload | None = None,
) -> Prediction:  # fmt: skip
    """The prediction at this rate per replica."""
    limits = EngineLimits(
        max_num_seqs=card.max_num_seqs, max_num_batched_tokens=card.max_num_batched_tokens,
        kv_capacity_tokens=card.kv_capacity_tokens,
    )  # fmt: skip
    law: ServiceLaw = {"h100": H100_LAW, "l4": L4_LAW}[card.name]
    return predict(
        (workload or conversation()).at_rate(rate * replicas),
        ReplicaGroup(law=law, limits=limits, replica_count=replicas, routing=routing),
    )


@pytest.mark.parametrize(
    ("card", "rate"),
    [
        pytest.param(H100, 2.0, id="h100-0.12"),
        pytest.param(H100, 8.0, id="h100-0.49"),
        pytest.param(H100, 13.7, id="h100-0.84"),
        pytest.param(L4, 0.5, id="l4-0.15"),
        pytest.param(L4, 1.6, id="l4-0.49"),
    ],
)
def test_errors_are_not_above_those_measured(card, rate):
    """Mean ITL 2 %, TTFT p50, p95 6 %, p99 12 %, TPOT p95 4 to 13, p99 9 to 20 % low, or better.

    One replica: h100 at utilization 0.1 to 0.84, the KV-bound card up to 0.5. Better now: 0.7 % of
    ITL, 1.5, 6.5 and 5 % of TTFT, on the safe side above 2; TPOT is 1 to 4 and 2 to 7 % low.
    """
    outcome, law = run(card, rate), law_of(card, rate)
    assert law.itl_mean_seconds / outcome.itl_mean == pytest.approx(1.0, abs=0.008)
    for percentile, early, late in ((50.0, 0.02, 0.02), (95.0, 0.02, 0.07), (99.0, 0.045, 0.055)):
        ratio = law.ttft_seconds(percentile) / high(outcome.ttft, percentile)
        assert 1.0 - early <= ratio <= 1.0 + late
    assert 0.955 <= law.tpot_seconds(95.0) / high(outcome.tpot, 95.0) <= 0.99
    assert 0.92 <= law.tpot_seconds(99.0) / high(outcome.tpot) <= 0.985


def test_errors_where_the_kv_cache_binds():
    """On the KV-bound card at utilization 0.86 TTFT p95 is up to 25 % low, wait p99 off by 2.

    Now p95 is met, and wait p99 is 0.73 of what is simulated.
    """
    outcome, law = run(L4, 2.8, count=1_200_000), law_of(L4, 2.8)
    assert law.ttft_seconds(95.0) / high(outcome.ttft, 95.0) == pytest.approx(1.0, abs=0.02)
    assert law.queue_seconds(99.0) / high(outcome.wait) == pytest.approx(0.73, abs=0.04)


SAME_LOAD = [
    pytest.param(1, True, 0.958, 0.005, id="one"),
    pytest.param(8, False, 0.958, 0.005, id="eight-random", marks=pytest.mark.acceptance),
    pytest.param(8, True, 0.9986, 0.0004, id="eight-least-loaded"),
]


@pytest.mark.parametrize(("replicas", "least_loaded", "share", "noise"), SAME_LOAD)
def test_same_load_three_answers(replicas, least_loaded, share, noise):
    """At 14/s per replica 97.0, 95.9 and 99.9 % are within TTFT 1 s and TPOT 50 ms.

    Random routing makes a replica what one alone is, so 97.0 and 95.9 are one number: 95.8, with
    eight seeds of 400,000 requests 95.9 ± 0.15 and 95.8 ± 0.1. Single hours of one replica scatter
    by 0.7, from 94.5 to 96.6.
    """
    outcomes = [
        run(H100, 14.0, replicas=replicas, least_loaded=least_loaded, seed=seed)
        for seed in (1, 2, 3)
    ]
    simulated = float(np.mean([share_within(outcome) for outcome in outcomes]))
    assert simulated == pytest.approx(share, abs=noise)


@pytest.mark.parametrize(
    ("replicas", "rate", "p95_above", "p99_above"),
    [
        pytest.param(4, 11.0, 0.008, 0.019, id="4-0.67"),
        pytest.param(4, 12.7, 0.011, 0.020, id="4-0.78"),
        pytest.param(8, 11.0, 0.003, 0.019, id="8-0.67"),
        pytest.param(8, 12.7, 0.000, 0.012, id="8-0.78"),
        pytest.param(16, 12.7, -0.002, 0.004, id="16-0.78"),
    ],
)
def test_least_loaded_routing_is_close_to_pooled(replicas, rate, p95_above, p99_above):
    """Utilization 0.67 to 0.78 on 4, 8, 16 replicas: TPOT mean within 1 % of the pooled law.

    Percentiles were stated as up to 10 and 13 % below a pooled law that is wider than the one that
    decides. Of that one, simulated p95 and p99 are within 1.1 and 2 %.
    """
    outcome = run(H100, rate, replicas=replicas)
    law = law_of(H100, rate, replicas=replicas)
    assert outcome.itl_mean / law.itl_mean_seconds == pytest.approx(0.9985, abs=0.003)
    p95, p99 = law.tpot_seconds(95.0), law.tpot_seconds(99.0)
    assert high(outcome.tpot, 95.0) / p95 - 1.0 == pytest.approx(p95_above, abs=0.006)
    assert high(outcome.tpot) / p99 - 1.0 == pytest.approx(p99_above, abs=0.01)


@pytest.mark.parametrize(
    ("rate", "p95_ratio"),
    [pytest.param(11.0, 1.038, id="0.67"), pytest.param(12.7, 1.023, id="0.78")],
)
def test_random_routing_is_one_replica(rate, p95_ratio):
    """Stated as 8 to 20 % above the single-replica law; now 2 to 4 at p95, 7 to 8 at p99."""
    outcome = run(H100, rate, replicas=8, least_loaded=False)
    law = law_of(H100, rate)
    assert outcome.itl_mean / law.itl_mean_seconds == pytest.approx(1.003, abs=0.003)
    assert high(outcome.tpot, 95.0) / law.tpot_seconds(95.0) == pytest.approx(p95_ratio, abs=0.006)
    assert high(outcome.tpot) / law.tpot_seconds(99.0) == pytest.approx(1.068, abs=0.012)


def test_percentiles_lie_above_the_mean_near_the_knee():
    """TPOT p95 and p99 over requests are 1.5 to 2 times the mean ITL: 1.54 and 1.93 at 14/s."""
    outcome = run(H100, 14.0, seed=2)
    assert high(outcome.tpot, 95.0) / outcome.itl_mean == pytest.approx(1.54, abs=0.03)
    assert high(outcome.tpot) / outcome.itl_mean == pytest.approx(1.93, abs=0.05)


@pytest.mark.parametrize(
    ("rate", "stated_ratio", "law_ratio"),
    [(8.0, 0.96, 0.994), (11.0, 0.98, 0.986), (14.0, 1.05, 0.95)],
)
def test_spread_of_running_sequences(rate, stated_ratio, law_ratio):
    """Variance of n: F·rρ/(1 − ρ)² with F = 1 + ½·c²·E[I²]·(λ/(1 − λcI))², and by the law.

    r = O·a/t_req + 1 and ρ = λ·t_req. Both are within 5 % of the simulation; the mean of the first,
    rρ/(1 − ρ), is 0.5 to 2.5 % low, that of the law 0.2 to 0.6 %.
    """
    outcomes = [run(H100, rate, seed=seed) for seed in (1, 2, 3)]
    variance = float(np.mean([outcome.running_variance for outcome in outcomes]))
    mean = float(np.mean([outcome.running_mean for outcome in outcomes]))
    demand = request_demand(conversation(), H100_LAW)
    ratio = rate * demand.marginal_seconds
    stated = (demand.fixed_seconds / demand.marginal_seconds + 1.0) * ratio / (1.0 - ratio)
    per_token = H100_LAW.prefill_per_token_seconds
    lumps = per_token * rate / (1.0 - rate * demand.prefill_mean_seconds)
    factor = 1.0 + 0.5 * lumps**2 * demand.uncached_second_moment_tokens2
    law = law_of(H100, rate)
    assert factor * stated / (1.0 - ratio) / variance == pytest.approx(stated_ratio, abs=0.015)
    assert law.running_variance / variance == pytest.approx(law_ratio, abs=0.015)
    assert 0.975 <= stated / mean <= 0.996
    assert 0.993 <= law.running_mean / mean <= 0.999


@pytest.mark.parametrize(("rate", "missed"), [(5.0, 0.46), (11.0, 0.44), (14.0, 0.40)])
def test_a_mean_prompt_misses_the_tail(rate, missed):
    """Stated as 30 to 40 % of TTFT p99; simulated 46, 44 and 40 %, and the law agrees to 3 %."""
    prompts, outputs = conversation_lengths()
    mean = round(float(prompts.mean()))
    alike = run(H100, rate, lengths=(np.full_like(prompts, mean), outputs))
    simulated = 1.0 - high(alike.ttft) / high(run(H100, rate).ttft)
    assert simulated == pytest.approx(missed, abs=0.015)
    constant = replace(conversation(), prompt=LengthDistribution.constant(mean))
    law = 1.0 - law_of(H100, rate, workload=constant).ttft_seconds(99.0) / law_of(
        H100, rate
    ).ttft_seconds(99.0)
    assert law == pytest.approx(missed, abs=0.03)


@pytest.mark.parametrize(
    ("budget", "ttft_ms", "noise_ms", "law_ttft_ms", "tpot_ms", "law_tpot_ms"),
    [
        pytest.param(1024, 818, 20, 769.5, 45.1, 47.6, id="1024"),
        pytest.param(8192, 327, 3, 331.6, 48.05, 47.7, id="8192"),
    ],
)
def test_conversation_by_budget(budget, ttft_ms, noise_ms, law_ttft_ms, tpot_ms, law_tpot_ms):
    """At 14.5/s on 8 replicas M = 1,024 and 8,192: TTFT p99 953 and 329, TPOT p99 45.8 and 49.6 ms.

    329 stays. 953 is a run near the cliff: eight seeds of 400,000 requests have 818 ± 4 (830 ± 10
    where the number of requests is left to chance), runs of 100,000 have 770 to 920, and the law
    has 770. TPOT p99 is 45.1 and 48.05 ± 0.1.
    """
    card = replace(H100, max_num_batched_tokens=budget)
    outcomes = [run(card, 14.5, replicas=8, seed=seed) for seed in (1, 2)]
    ttft = float(np.mean([1e3 * high(outcome.ttft) for outcome in outcomes]))
    tpot = float(np.mean([1e3 * high(outcome.tpot) for outcome in outcomes]))
    assert ttft == pytest.approx(ttft_ms, abs=noise_ms)
    assert tpot == pytest.approx(tpot_ms, abs=0.4)
    law = law_of(card, 14.5, replicas=8)
    assert 1e3 * law.ttft_seconds(99.0) == pytest.approx(law_ttft_ms, abs=0.5)
    assert 1e3 * law.tpot_seconds(99.0) == pytest.approx(law_tpot_ms, abs=0.05)


def exponential_lengths(count: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Prompts of about 2,000 and outputs of about 30 tokens, at least six, exponential."""
    deviates = -np.log1p(-(np.arange(count) + 0.5) / count)
    rng = np.random.default_rng(3)
    prompts = rng.permutation(2000.0 * deviates).round().clip(1)
    return prompts, rng.permutation(np.floor(30.0 * deviates)).clip(6)


@pytest.mark.parametrize(
    ("budget", "tpot_ms", "ttft_ms", "share", "law_error"),
    [
        pytest.param(512, 22.9, 793, 0.999, (-0.007, 0.091), id="512"),
        pytest.param(1024, 38.1, 530, 1.000, (0.025, 0.165), id="1024"),
        pytest.param(2048, 56.6, 469, 0.983, (0.193, 0.171), id="2048"),
        pytest.param(8192, 58.5, 427, 0.981, (0.195, 0.037), id="8192"),
    ],
)
def test_long_prompts_by_budget(budget, tpot_ms, ttft_ms, share, law_error):
    """At 9/s per replica of 8: the stated TPOT p99, TTFT p99 and share, and the law beside them.

    The law is on the safe side: TPOT p99 up to 20 %, TTFT p99 up to 17 % late.

    The shape of the lengths is not stated. Exponential ones with outputs of at least six tokens
    have all twelve figures, and no other shape that was tried (gamma, lognormal, even, or another
    least output) has: TPOT p99 at the larger budgets is that of the shortest outputs. TTFT p99 with
    M = 1,024 and 8,192, stated as 530 and 427, is 553 and 460 in three runs each.
    """
    ttft_off = {512: 0.02, 1024: 0.05, 2048: 0.02, 8192: 0.085}[budget]
    card = replace(H100, max_num_batched_tokens=budget)
    prompts, outputs = exponential_lengths()
    outcome = run(card, 9.0, replicas=8, lengths=(prompts, outputs))
    assert 1e3 * high(outcome.tpot) == pytest.approx(tpot_ms, rel=0.02)
    assert 1e3 * high(outcome.ttft) == pytest.approx(ttft_ms, rel=ttft_off)
    assert share_within(outcome) == pytest.approx(share, abs=0.002)
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(prompts.tolist()).compact(400),
        output=LengthDistribution.from_samples(outputs.tolist()).compact(400),
    )
    law = law_of(card, 9.0, replicas=8, workload=workload)
    tpot_error, ttft_error = law_error
    assert law.tpot_seconds(99.0) / high(outcome.tpot) - 1.0 == pytest.approx(tpot_error, abs=0.008)
    assert law.ttft_seconds(99.0) / high(outcome.ttft) - 1.0 == pytest.approx(ttft_error, abs=0.015)


def test_utilization_of_a_small_batch():
    """At work ratio 0.8 utilization is 0.97 on the small card where its 64 slots bind, not KV."""
    card = replace(L4, kv_capacity_tokens=400_000)
    law = law_of(card, 3.0)
    rate = 3.0 * 0.8 / law.work_ratio
    assert law_of(card, rate).utilization == pytest.approx(0.97, abs=0.005)
    saturated = run(card, 8.0, count=60_000)
    assert law.engine.saturation_rate_per_second / saturated.departed_per_second == pytest.approx(
        1.0, abs=0.005
    )
