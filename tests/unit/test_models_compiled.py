"""Laws evaluated by compiled code: the percentiles of numpy, with the extra and without it."""

import math
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from tests.cards import H100, H100_LIMITS, L4_LIMITS

from servingslo.compiling import cache_directory, writable
from servingslo.errors import InvalidInputError
from servingslo.models import long_prompts, rows
from servingslo.models.compiled import backend, points
from servingslo.models.full_batch import best_full_batch
from servingslo.models.judging import LatencyLimit, LoadLimits, judged
from servingslo.models.kernel import choose_kernels, lengths_of
from servingslo.models.latency import (
    LatencyMetric,
    LatencyModel,
    Prediction,
    Routing,
    latency_model,
)
from servingslo.models.output_laws import atom_laws
from servingslo.models.service_time import EngineLimits, ServiceLaw
from servingslo.models.workload import LengthDistribution, Workload

SMALL_CARD = ServiceLaw(
    step_fixed_seconds=30e-3,
    step_per_sequence_seconds=2e-4,
    prefill_per_token_seconds=1.2e-4,
    context_per_token_seconds=1e-7,
)
PERCENTILES = (1.0, 50.0, 90.0, 99.0, 99.9)
WORKLOAD = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution.constant(1000.0),
    output=LengthDistribution.constant(200.0),
)
# Of percentiles; numpy computes sines in single precision, which queues for room multiply.
TOLERANCE = 1e-5
SINGLE_TOLERANCE = 2e-3
# Of percentiles of the latency with such sines: they lie between points, and ties fall either way.
SINGLE_TOLERANCE_OF_LATENCY = 1e-2


@pytest.fixture(autouse=True)
def _by_numpy_afterwards():
    """Other tests evaluate by numpy."""
    yield
    choose_kernels(None)


def both(workload: Workload, law: ServiceLaw, limits: EngineLimits) -> list[LatencyModel]:
    """The model by numpy, and the compiled one."""
    choose_kernels(None)
    by_numpy = LatencyModel(workload, law, limits)
    backend.use_laws(backend.LawForm.COMPILED)
    return [by_numpy, LatencyModel(workload, law, limits)]


def numbers(prediction: Prediction) -> list[float]:
    """All that a prediction tells."""
    laws = (prediction.ttft_seconds, prediction.tpot_seconds, prediction.latency_seconds)
    return [
        prediction.running_mean,
        prediction.running_variance,
        prediction.itl_mean_seconds,
        prediction.wait_probability,
        prediction.kv_usage_quantile(95.0),
        prediction.queue_seconds(99.0),
        *[law(percentile) for law in laws for percentile in PERCENTILES],
    ]


def random_mix(rng: np.random.Generator) -> tuple[Workload, ServiceLaw, EngineLimits]:
    """Any lengths, cards, limits and bursts."""
    prompts = rng.lognormal(np.log(rng.choice([200, 1000, 4000])), rng.uniform(0.2, 1.2), 500)
    outputs = rng.lognormal(np.log(rng.choice([2, 20, 300])), rng.uniform(0.1, 1.1), 500)
    dispersion, memory = float(rng.choice([0.5, 1.0, 3.0, 9.0])), float(rng.choice([0.3, 5.0]))
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(np.clip(prompts, 1, 30_000).round()).compacted(60),
        output=LengthDistribution.from_samples(np.clip(outputs, 1, 4000).round()).compacted(60),
        arrival_dispersion=dispersion,
        arrival_correlation_seconds=memory if rng.random() < 0.5 else None,
    )
    limits = EngineLimits(
        max_num_seqs=int(rng.choice([16, 64, 256])),
        max_num_batched_tokens=int(rng.choice([512, 2048, 8192])),
        kv_capacity_tokens=float(rng.choice([30_000, 200_000, 1_000_000])),
    )
    return workload, H100 if rng.random() < 0.5 else SMALL_CARD, limits


def double_polar(length: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """`rows.polar` in double precision."""
    return length * np.exp(1j * angle)


@pytest.fixture(params=[TOLERANCE, SINGLE_TOLERANCE], ids=["double", "single"])
def tolerance(request, monkeypatch):
    """How far laws by numpy may be off: with sines in double precision, and as they are."""
    if request.param == TOLERANCE:
        monkeypatch.setattr(rows, "polar", double_polar)
        monkeypatch.setattr(long_prompts, "polar", double_polar)
    return request.param


@pytest.mark.parametrize("seed", range(6))
def test_compiled_laws_are_those_of_numpy(seed, tolerance):
    """Random mixes, cards, limits, bursts, loads, pools and routings."""
    rng = np.random.default_rng(seed)
    for _ in range(8):
        models = both(*random_mix(rng))
        for _ in range(3):
            utilization = rng.choice([1e-5, 0.1, 0.5, 0.8, 0.97])
            count = int(rng.choice([1, 3, 40]))
            routing = Routing.POOLED if rng.random() < 0.8 else Routing.RANDOM
            rate = utilization * count * models[0].saturation_rate_per_second
            one, other = (numbers(model.predict(rate, count, routing)) for model in models)
            of_latency = len(PERCENTILES)
            assert other[:-of_latency] == pytest.approx(one[:-of_latency], rel=tolerance, abs=1e-9)
            if tolerance == SINGLE_TOLERANCE:
                tolerance_of_latency = SINGLE_TOLERANCE_OF_LATENCY
            else:
                tolerance_of_latency = tolerance
            assert other[-of_latency:] == pytest.approx(one[-of_latency:], rel=tolerance_of_latency)


@pytest.mark.parametrize(
    ("tokens", "cached_ratio"),
    [
        pytest.param(range(200), 0.3, id="many, from none on"),
        pytest.param((1.0, 5.0, 80.0), 0.0, id="fewer than points"),
        pytest.param((1.0,), 0.0, id="one token each"),
        pytest.param((1.4, 2.0), 1.0, id="all cached"),
    ],
)
def test_lengths_are_compacted_as_by_numpy(tokens, cached_ratio):
    """Gaps between tokens and prefill work of prompts, with all that is told of them."""
    lengths = LengthDistribution.from_samples([float(length) for length in tokens])
    workload = replace(WORKLOAD, prompt=lengths, output=lengths, cached_ratio=cached_ratio)
    choose_kernels(None)
    by_numpy = lengths_of(workload, 1e-4)
    backend.use_laws(backend.LawForm.COMPILED)
    for one, other in zip(by_numpy, lengths_of(workload, 1e-4), strict=True):
        for field in fields(one):
            if field.compare:
                expected = getattr(one, field.name)
                assert getattr(other, field.name) == pytest.approx(expected, rel=1e-12), field.name


@pytest.mark.parametrize("seconds", [1e9, 0.012, 1e-9])
def test_loads_are_held_against_limits_as_by_numpy(seconds):
    """KV use and every metric, up to the first beyond its limit; KV use alone at saturation."""
    latencies = tuple(LatencyLimit(metric, 99.0, seconds) for metric in LatencyMetric)
    limits = LoadLimits(kv_percentile=95.0, kv_usage_ratio=0.9, latencies=latencies)
    models = both(WORKLOAD, H100, L4_LIMITS)
    most = models[0].saturation_rate_per_second
    rates = [3 * most * utilization for utilization in (0.0, 0.4, 0.9, 1.0)]
    one, other = (
        [judged(model, rate, 3, Routing.POOLED, limits) for rate in rates] for model in models
    )
    assert [len(row) for row in other] == [len(row) for row in one]
    assert one[-1] == other[-1] == [math.inf]
    for row, same in zip(one, other, strict=True):
        assert same == pytest.approx(row, rel=SINGLE_TOLERANCE, abs=1e-9)


def test_shares_within_thresholds_are_those_of_numpy():
    """The share of requests that meet all thresholds, unstable loads included."""
    models = both(WORKLOAD, H100, L4_LIMITS)
    top = models[0].saturation_rate_per_second
    for rate in (0.3 * top, 0.9 * top, 2.0 * top):
        one, other = (
            model.predict(rate, 1, Routing.POOLED).share_within(0.08, 0.0125, 2.6)
            for model in models
        )
        assert other == pytest.approx(one, abs=2e-3)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_full_batch_is_that_of_numpy(seed):
    """For thresholds from a step that is all but idle to one that any batch keeps."""
    workload, law, limits = random_mix(np.random.default_rng(100 + seed))
    one, other = both(workload, law, limits)
    for ratio in (1.02, 1.3, 2.0, 10.0):
        seconds = ratio * law.step_fixed_seconds
        slots = limits.max_num_seqs
        assert best_full_batch(one.engine, seconds, slots) == best_full_batch(
            other.engine, seconds, slots
        )


def test_models_stay_with_the_form_they_were_prepared_for():
    """Turning compiled laws on or off changes no model that is in use."""
    by_numpy, compiled = both(WORKLOAD, H100, H100_LIMITS)
    assert latency_model(WORKLOAD, H100, H100_LIMITS).engine.kernel is not None
    choose_kernels(None)
    assert by_numpy.engine.kernel is None
    assert compiled.engine.kernel is not None
    assert latency_model(WORKLOAD, H100, H100_LIMITS).engine.kernel is None


def test_compiled_laws_are_refused_without_the_extra(monkeypatch):
    """The extra is optional: asking for its laws without it changes nothing and says what to do."""
    monkeypatch.setattr(backend, "compiler_installed", lambda: False)
    with pytest.raises(InvalidInputError, match=r"laws: 'compiled'.*servingslo\[compiled\]"):
        backend.use_laws(backend.LawForm.COMPILED)
    assert backend.laws_in_use() is backend.LawForm.NUMPY
    assert LatencyModel(WORKLOAD, H100, H100_LIMITS).engine.kernel is None


def test_the_compiler_is_imported_only_when_asked_for():
    """Models are imported and evaluated without numba."""
    code = (
        "import sys; from servingslo.models.compiled import backend;"
        "from servingslo.policy import planner; assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_machine_code_is_kept_by_its_sources(tmp_path, monkeypatch):
    """Another source is another directory, and a directory below a file cannot be made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "law.py"
    source.write_text("one")
    first = cache_directory([source])
    source.write_text("other")
    assert cache_directory([source]) != first == cache_directory([source]).parent / first.name
    assert writable(first)
    assert not writable(source / "below")


@pytest.mark.parametrize(
    ("seconds", "weights"),
    [
        pytest.param([0.5], [1.0], id="one point"),
        pytest.param([0.2] * 40 + [0.7] * 10, [0.02] * 50, id="ties"),
        pytest.param([0.1, 0.4, 0.9], [0.5, 0.0, 0.5], id="a point without weight"),
        pytest.param(list(np.linspace(0.0, 1.0, 300)), [1 / 300] * 300, id="even"),
        pytest.param([1e-9 * n for n in range(200)] + [1e3], [0.005] * 200 + [0.0], id="far point"),
    ],
)
@pytest.mark.parametrize("wanted", [1e-6, 0.3, 0.5, 0.77, 0.999999])
def test_percentiles_of_unsorted_points_are_those_of_sorted_ones(seconds, weights, wanted):
    """Points in any order, from below the least that counts to above the most."""
    order = np.random.default_rng(1).permutation(len(seconds))
    shuffled, mass = np.array(seconds)[order], np.array(weights)[order]
    (law,) = atom_laws(shuffled[None].copy(), mass, (0.15, 0.85))
    found = points.quantile(shuffled, mass, 0.15, 0.85, wanted)
    assert found == pytest.approx(law.quantile(wanted), rel=1e-9)
    share = points.share_within(shuffled, mass, 0.15, 0.85, 0.45)
    assert share == pytest.approx(law.share_within(0.45), abs=1e-9)
