"""Whether GPUs refute the service law, by readings of simulated engines; the energy of a token."""

from dataclasses import replace

import numpy as np
import pytest
from gpu_fleet import Cards, estimates

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.law.trust import BusyShares, LawEstimate, distrust_if_gpus_disagree
from servingslo.estimation.pods.gpus import (
    COLLECT_SECONDS,
    MEMORY_SECONDS,
    GpuState,
    observe,
    shares,
    use,
)
from servingslo.estimation.sample import EngineLaunch, GPUSample, PodSample
from servingslo.estimation.windows.counters import Window
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Reason

LAW = ServiceLaw(
    step_fixed_seconds=0.01, step_per_sequence_seconds=0.001, prefill_per_token_seconds=1e-5
)
TRUSTED = LawEstimate(law=LAW, trusted=True, reason=Reason.MODEL_TRUSTED)
TICK_SECONDS = 15.0
# Prompts of a window are taken to come in exponential amounts: of several in a step, nearly so.
AVERAGED_ERROR = 0.05


def last(estimates_: list[Estimate]) -> Estimate:
    """The estimate after all ticks."""
    return estimates_[-1]


@pytest.mark.parametrize(("rate", "replicas"), [(0.05, 1), (0.5, 4), (3.0, 4)])
def test_a_true_law_is_never_refuted(rate: float, replicas: int) -> None:
    """Idle, half idle and full engines, read for a second of each half minute."""
    for estimate in estimates(rate, Cards(), replicas=replicas):
        assert estimate.law.reason is not Reason.GPUS_DISAGREE
        assert estimate.gpus is None or estimate.gpus.missing == ""


def test_a_host_as_slow_as_published_does_not_refute_the_law() -> None:
    """Kernels run in 38 % of the engine's busy time."""
    found = list(estimates(3.0, Cards(kernel_ratio=0.38)))
    assert last(found).gpus is not None
    assert last(found).gpus.utilization_ratio == pytest.approx(0.38, abs=0.02)
    assert all(one.law.reason is not Reason.GPUS_DISAGREE for one in found)


@pytest.mark.parametrize(
    ("rate", "cards", "measured", "by_law"),
    [
        pytest.param(0.2, Cards(foreign_ratio=0.95), 0.96, 0.3, id="busy-with-foreign-work"),
        pytest.param(3.0, Cards(kernel_ratio=0.1), 0.10, 1.0, id="idle-while-the-law-says-busy"),
    ],
)
def test_gpus_that_contradict_a_fitted_law_take_its_trust(
    rate: float, cards: Cards, measured: float, by_law: float
) -> None:
    """After five minutes, not before; the law itself and its error stay as fitted."""
    found = list(estimates(rate, cards))
    without = list(estimates(rate, None))
    refuted = [one.law.reason is Reason.GPUS_DISAGREE for one in found]
    first = refuted.index(True)
    assert MEMORY_SECONDS / TICK_SECONDS <= first <= 1.5 * MEMORY_SECONDS / TICK_SECONDS
    assert all(refuted[first:])
    one, other = last(found), last(without)
    assert not one.law.trusted
    assert other.law.trusted
    assert (one.law.law, one.law.fit_error) == (other.law.law, other.law.fit_error)
    assert one.gpus is not None
    assert one.gpus.utilization_ratio == pytest.approx(measured, abs=0.03)
    assert one.gpus.law_ratio == pytest.approx(by_law, abs=0.06)


def test_the_share_of_a_law_that_bends_is_that_of_its_steps() -> None:
    """Prompts load weights of experts, and hide under that where they are short."""
    law = replace(LAW, prefill_per_token_seconds=4e-4, loading_seconds=0.01, loading_tokens=32.0)
    law = replace(law, hidden_tokens=64.0)
    rng, sequences, steps = np.random.default_rng(5), 8.0, 4000
    tokens = [rng.exponential(40.0, count).sum() for count in rng.poisson(1.0, steps)]
    took = sum(law.step_seconds(sequences, float(prompt)) for prompt in tokens)
    state = GpuState(
        compared_seconds=2.0 * took, steps=steps, generated=sequences * steps,
        prefilled=float(sum(tokens)), prompts=steps,
    )  # fmt: skip
    found = shares(state, law, lambda: None)
    assert found is not None
    assert found.law_ratio == pytest.approx(0.5, rel=AVERAGED_ERROR)


def test_energy_is_that_of_the_readings_over_the_tokens() -> None:
    """One pod at 300 W makes 50 tokens/s: 6 J each, from the first window on; idle time counts."""
    pods = (_pod(power=300.0),)
    busy = replace(_window(), generated_tokens=750.0)
    state = observe(GpuState(), pods, (busy,), (), (), 45.0)
    told = use(state, pods, None, 45.0)
    assert told is not None
    assert told.joules_per_token == pytest.approx(6.0)
    assert told.power_watts == 300.0
    state = observe(state, pods, (replace(busy, generated_tokens=0.0),), (), (), 45.0)
    idle = use(state, pods, None, 45.0)
    assert idle is not None
    assert idle.joules_per_token is not None
    assert 11.0 < idle.joules_per_token < 13.0


def test_nothing_is_said_of_pods_without_gpus() -> None:
    """Neither readings nor a container that asks for a device."""
    assert use(GpuState(), (_pod(gpus=()),), None, 45.0) is None


def test_engines_without_step_counts_and_pods_with_several_are_not_compared() -> None:
    """The first is named as missing; the GPUs of the second cannot be assigned."""
    pods = (_pod(),)
    without = replace(_window(), step_count=None)
    state = observe(GpuState(), pods, (without,), (without,), (), 45.0)
    assert shares(state, LAW, lambda: 0.0) is None
    told = use(state, pods, None, 45.0)
    assert told is not None
    assert told.missing == "engine steps"
    two = (_window(), replace(_window(), engine="1"))
    assert observe(GpuState(), pods, two, two, (), 45.0).compared_seconds == 0.0


def test_the_share_of_the_law_is_its_step_times_over_the_window() -> None:
    """600 steps of 10 ms, 1,500 tokens of 1 ms and 30,000 of 10 µs: 7.8 s of 15."""
    pods = (_pod(),)
    state = observe(GpuState(), pods, (_window(),), (_window(),), (), 45.0)
    found = shares(state, LAW, lambda: 0.0)
    assert found is not None
    assert found.law_ratio == pytest.approx(7.8 / 15.0)
    assert not found.settled
    assert found.standard_error_ratio == pytest.approx(
        (0.8 * 0.2 * COLLECT_SECONDS / (2.0 * TICK_SECONDS)) ** 0.5
    )


@pytest.mark.parametrize(
    ("measured", "by_law", "refuted"),
    [
        (0.95, 0.60, True),
        (0.95, 0.65, False),
        (0.20, 1.00, True),
        (0.26, 1.00, False),
        (0.49, 0.10, False),
        (0.00, 0.49, False),
    ],
)
def test_the_bounds_of_a_refutation(measured: float, by_law: float, refuted: bool) -> None:
    """1.5 times and 0.38 / 1.5 of the law's share, where either is at least one half."""
    compared = BusyShares(measured_ratio=measured, law_ratio=by_law, standard_error_ratio=0.0)
    law, disagrees = distrust_if_gpus_disagree(TRUSTED, compared, disagreed=False)
    assert disagrees is refuted
    assert law.trusted is not refuted


def test_chance_is_allowed_for_once() -> None:
    """Three standard errors before a refutation, none before trust returns."""
    compared = BusyShares(measured_ratio=0.8, law_ratio=0.5, standard_error_ratio=0.02)
    assert distrust_if_gpus_disagree(TRUSTED, compared, disagreed=False) == (TRUSTED, False)
    assert distrust_if_gpus_disagree(TRUSTED, compared, disagreed=True)[1]
    young = replace(compared, measured_ratio=1.0, settled=False)
    assert distrust_if_gpus_disagree(TRUSTED, young, disagreed=False) == (TRUSTED, False)


def test_an_untrusted_law_keeps_its_reason() -> None:
    """The GPUs add nothing to a law that does not predict."""
    found = replace(TRUSTED, trusted=False, reason=Reason.MODEL_DOES_NOT_PREDICT)
    compared = BusyShares(measured_ratio=1.0, law_ratio=0.2, standard_error_ratio=0.0)
    assert distrust_if_gpus_disagree(found, compared, disagreed=False) == (found, True)


def test_old_readings_fade() -> None:
    """Five idle minutes after five busy ones leave a share of e^−1 of them."""
    state = GpuState()
    for utilization in [1.0] * 20 + [0.0] * 20:
        state = observe(state, (_pod(utilization=utilization),), (_window(),), (), (), 45.0)
    assert state.busy_seconds / state.seconds == pytest.approx(0.27, abs=0.01)


def _pod(
    *,
    utilization: float | None = 0.8,
    power: float | None = 200.0,
    age: float = 1.0,
    gpus: tuple[GPUSample, ...] | None = None,
    accelerator: bool | None = None,
) -> PodSample:
    card = GPUSample(gpu="0", age_seconds=age, utilization_ratio=utilization, power_watts=power)
    return PodSample(
        name="pod-0",
        ready=True,
        gpus=(card,) if gpus is None else gpus,
        launch=EngineLaunch(accelerator=accelerator),
    )


def _window() -> Window:
    return Window(
        pod="pod-0",
        engine="0",
        seconds=TICK_SECONDS,
        step_count=600.0,
        generated_tokens=1500.0,
        prompt_tokens=40000.0,
        cached_tokens=10000.0,
    )
