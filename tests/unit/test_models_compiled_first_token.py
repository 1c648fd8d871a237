"""The compiled law of the time to first token is that of numpy, and its functions are known."""

import math

import numpy as np
import pytest
from scipy.special import gammainc, ndtri

from servingslo.models import first_token, long_prompts, prompt_work, room_queue, rows
from servingslo.models.compiled import backend, inversion, prompts, special, spectra
from servingslo.models.kernel import choose_kernels
from servingslo.models.latency import LatencyModel, Routing
from servingslo.models.prompt_work import RANGE_RATIO
from servingslo.models.service_time import ComplexArray, EngineLimits, FloatArray, ServiceLaw
from servingslo.models.workload import LengthDistribution, Workload

LAW = ServiceLaw(
    step_fixed_seconds=6e-3,
    step_per_sequence_seconds=4e-5,
    prefill_per_token_seconds=3e-5,
    context_per_token_seconds=2e-9,
)
PERCENTILES = (5.0, 50.0, 95.0, 99.0, 99.9)
TERMS = spectra.TERMS


def double_precision(length: FloatArray, angle: FloatArray) -> ComplexArray:
    """As `rows.polar`, in double precision as compiled code has it."""
    turned: ComplexArray = length * np.exp(1j * angle)
    return turned


@pytest.fixture(autouse=True)
def _in_double_precision(monkeypatch):
    """Numpy takes sines of single precision, which costs up to 1e-3 of a percentile."""
    for module in (rows, long_prompts, first_token, room_queue):
        if hasattr(module, "polar"):
            monkeypatch.setattr(module, "polar", double_precision)
    yield
    choose_kernels(None)


def mix(tokens: int, spread: float, output: int, dispersion: float = 1.0) -> Workload:
    """Prompts and outputs with these means, log-normal."""
    rng = np.random.default_rng(tokens)
    prompt = tokens * np.exp(spread * rng.standard_normal(400) - 0.5 * spread**2)
    outputs = output * np.exp(0.5 * rng.standard_normal(400) - 0.125)
    return Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(np.maximum(prompt, 1.0).round()).compacted(60),
        output=LengthDistribution.from_samples(np.maximum(outputs, 1.0).round()).compacted(60),
        arrival_dispersion=dispersion,
        arrival_correlation_seconds=5.0 if dispersion > 1.0 else None,
    )


@pytest.mark.parametrize("utilization", [0.02, 0.4, 0.8, 0.93, 0.98])
@pytest.mark.parametrize(
    ("workload", "slots", "budget", "count", "routing"),
    [
        pytest.param(mix(300, 0.6, 200), 256, 8192, 8, Routing.POOLED, id="pooled"),
        pytest.param(mix(300, 0.6, 200), 256, 8192, 8, Routing.RANDOM, id="random routing"),
        pytest.param(mix(900, 0.9, 100), 256, 2048, 4, Routing.POOLED, id="long prompts"),
        pytest.param(mix(900, 0.9, 100), 256, 256, 2, Routing.POOLED, id="many steps a prompt"),
        pytest.param(mix(900, 0.9, 60), 256, 1024, 1, Routing.POOLED, id="queue for the budget"),
        pytest.param(mix(300, 0.2, 60), 256, 1024, 1, Routing.POOLED, id="queue of short prompts"),
        pytest.param(mix(600, 0.9, 200, 6.0), 256, 2048, 2, Routing.POOLED, id="bursts"),
        pytest.param(mix(600, 0.9, 200), 12, 4096, 2, Routing.POOLED, id="wait for a slot"),
        pytest.param(mix(4000, 0.5, 8), 64, 16384, 24, Routing.POOLED, id="idle replicas"),
        pytest.param(mix(1, 0.0, 300), 256, 8192, 2, Routing.POOLED, id="prompts of a token"),
    ],
)
def test_first_tokens_come_when_numpy_says(workload, slots, budget, count, routing, utilization):
    """All percentiles, of one replica that is all but idle to one that is nearly saturated."""
    limits = EngineLimits(
        max_num_seqs=slots, max_num_batched_tokens=budget, kv_capacity_tokens=400_000
    )
    choose_kernels(None)
    by_numpy = LatencyModel(workload, LAW, limits)
    backend.use_laws(backend.LawForm.COMPILED)
    compiled = LatencyModel(workload, LAW, limits)
    rate = utilization * count * by_numpy.saturation_rate_per_second
    one, other = (
        [model.predict(rate, count, routing).ttft_seconds(share) for share in PERCENTILES]
        for model in (by_numpy, compiled)
    )
    assert other == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize("shape", [1e-3, 0.4, 3.0, 70.0, 4000.0])
@pytest.mark.parametrize("ratio", [1e-3, 0.3, 0.97, 1.03, 3.0])
def test_gamma_laws_are_summed(shape, ratio):
    """P(X ≤ x) for three shapes one apart, below and above their mean."""
    x = ratio * (shape + 2.0)
    expected = gammainc([shape, shape + 1.0, shape + 2.0], x)
    assert special.gamma_shares(shape, x) == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert special.gamma_shares(shape, 0.0) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("probability", [1e-6, 0.01, 0.3, 0.5, 0.7, 0.999, 1.0 - 1e-6])
def test_normal_quantiles_are_known(probability):
    """Both tails, and the middle."""
    assert special.normal_quantile(probability) == pytest.approx(
        float(ndtri(probability)), rel=1e-9, abs=1e-12
    )


def test_exponentials_are_known():
    """Lengths of shares of requests, and angles of many turns."""
    for log in (-44.0, -3.0, -1e-9, 0.0, 0.7, 9.0):
        assert spectra.length_of(log) == pytest.approx(math.exp(log), rel=1e-9)
    assert spectra.length_of(-1e6) < 1e-19
    for angle in (-500.0, -math.pi, -1.5707, 0.0, 1e-8, 1.5709, 2.0, 3e4):
        cosine, sine = spectra.cosine_and_sine(angle)
        assert cosine == pytest.approx(math.cos(angle), abs=1e-11)
        assert sine == pytest.approx(math.sin(angle), abs=1e-11)


@pytest.mark.parametrize("wanted", [0.0, 0.1, 0.4, 0.55, 0.9, 1.0])
def test_quantiles_are_interpolated(wanted):
    """Below the first point, between points, on a plateau and above the last one."""
    law = np.array([[0.0, 1.0, 2.0, 4.0, 5.0], [0.05, 0.4, 0.4, 0.7, 0.9]])
    found = inversion.law_quantile(law, 5, wanted)
    assert found == pytest.approx(float(np.interp(wanted, law[1], law[0])))


@pytest.mark.parametrize("room", [100.0, 333.0, 1024.0, 2500.0])
def test_prompts_fill_rooms_as_by_numpy(room):
    """Steps of a prompt and of a pair, and groups of those that are longer than the room."""
    work = prompt_work.prompt_work(mix(900, 0.9, 10).prompt, 0.0, 3e-5)
    arrays = prompts.prompts_of(prompts.prompt_constants(work))
    assert prompts.mean_steps(arrays, room) == pytest.approx(prompt_work.mean_steps(work, room))
    assert prompts.paired_steps(arrays, room) == pytest.approx(prompt_work.paired_steps(work, room))
    split = prompts.split_at_room(arrays, room)
    assert np.array(split.groups) == pytest.approx(np.array(work.long_prompts(4, room).groups))
    assert split.ends[-1] == len(work.tokens)


@pytest.mark.parametrize("stretch", [1.0, 1.004, 1.7])
def test_prompts_are_stretched_as_by_numpy(stretch):
    """Between the same two tables."""
    work = prompt_work.prompt_work(mix(900, 0.9, 10).prompt, 0.0, 3e-5)
    arrays = prompts.prompts_of(prompts.prompt_constants(work))
    excess, slope = np.empty(2 * TERMS), np.empty(2 * TERMS)
    prompts.stretched(arrays, math.pi / RANGE_RATIO**2, stretch, excess, slope)
    expected = work.stretched(2, stretch)
    for found, transform in ((excess, expected.excess), (slope, expected.slope)):
        assert found[:TERMS] == pytest.approx(transform.real, abs=1e-12)
        assert found[TERMS:] == pytest.approx(transform.imag, abs=1e-12)
