"""A change of mix: longer requests are planned with at once, drift and crowds are not one."""

from dataclasses import replace

import pytest

from servingslo.estimation.requests.lengths import (
    EXPONENTIAL_POINTS,
    Lengths,
    LengthState,
    observe,
    publish,
)
from servingslo.estimation.requests.mix_change import Evidence, longer_ratios
from servingslo.estimation.windows.counters import Window
from servingslo.models.workload import LengthDistribution

STARTED = 300.0


def _window(*, prompt: float = 1000.0, output: float = 200.0, growth: float = 0.0) -> Window:
    """A quarter of a minute in which batches grow by so much."""
    return Window(
        pod="a",
        engine="0",
        seconds=15.0,
        running_before=100.0,
        running_after=100.0 + growth,
        first_tokens=STARTED,
        prompt_tokens=STARTED * prompt,
        cached_tokens=0.1 * STARTED * prompt,
        generated_tokens=STARTED * output,
        finished=STARTED - growth,
    )


def _after(state: LengthState, *windows: Window) -> tuple[LengthState, Lengths]:
    found = Lengths()
    for window in windows:
        state, found = publish(observe(state, [window], None, None))
    return state, found


@pytest.fixture
def usual() -> LengthState:
    """Ten minutes of prompts of 1,000 and outputs of 200 tokens."""
    return _after(LengthState(), *[_window()] * 40)[0]


@pytest.mark.parametrize(
    ("changed", "prompt", "output"),
    [
        pytest.param(_window(prompt=3000.0), 3000.0, 200.0, id="prompts"),
        pytest.param(_window(output=600.0), 1000.0, 600.0, id="outputs"),
        pytest.param(_window(prompt=3000.0, output=600.0), 3000.0, 600.0, id="both"),
    ],
)
def test_a_mix_of_longer_requests_is_known_within_one_window(
    usual: LengthState, changed: Window, prompt: float, output: float
) -> None:
    """Three times as long: the mean is the new one, and what did not change stays."""
    found = _after(usual, changed)[1]
    assert found.prompt_tokens_mean == pytest.approx(prompt, rel=0.05)
    assert found.output_tokens_mean == pytest.approx(output, rel=0.05)
    assert found.cached_ratio == pytest.approx(0.1, rel=0.05)


def test_a_changed_mix_is_corrected_by_what_follows(usual: LengthState) -> None:
    """A window that lies half in the old mix does not stay for ten minutes."""
    mixed = _window(prompt=2100.0)
    found = _after(usual, mixed, *[_window(prompt=3000.0)] * 4)[1]
    assert found.prompt_tokens_mean == pytest.approx(3000.0, rel=0.15)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_window(prompt=1600.0, output=320.0), id="drift"),
        pytest.param(_window(prompt=300.0, output=60.0), id="shorter"),
        pytest.param(_window(output=400.0, growth=200.0), id="batches that grow in a crowd"),
        pytest.param(
            replace(
                _window(), first_tokens=3.0, prompt_tokens=9e3, generated_tokens=6e2, finished=3.0
            ),
            id="few",
        ),
    ],
)
def test_drift_crowds_and_single_requests_are_no_other_mix(
    usual: LengthState, other: Window
) -> None:
    """They enter memory with the weight of one window among forty."""
    found = _after(usual, other)[1]
    assert found.prompt_tokens_mean == pytest.approx(1000.0, rel=0.05)
    assert found.output_tokens_mean == pytest.approx(200.0, rel=0.1)


def _decoded_share(window: Window) -> float:
    """Prompt tokens computed for each token after a request's first."""
    assert window.prompt_tokens is not None
    assert window.generated_tokens is not None
    computed = window.prompt_tokens - (window.cached_tokens or 0.0)
    return computed / (window.generated_tokens - (window.first_tokens or 0.0))


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(_window(), id="a tenth cached"),
        pytest.param(replace(_window(), cached_tokens=None), id="no counter of the cache"),
        pytest.param(replace(_window(), cached_tokens=300_000.0), id="all cached"),
    ],
)
def test_prefill_is_what_was_computed_for_each_token_decoded(window: Window) -> None:
    """Cached tokens are not computed, and the first token of a request is not decoded."""
    found = _after(LengthState(), window, window)[1]
    assert found.prefill_tokens_per_token == pytest.approx(_decoded_share(window))


def test_prefill_of_several_engines_is_that_of_all_together() -> None:
    """One with prompts of 1,000 and one with prompts of 3,000: their mean."""
    both = [_window(), replace(_window(prompt=3000.0), pod="b")]
    found = publish(observe(LengthState(), both, None, None))[1]
    assert found.prefill_tokens_per_token == pytest.approx(_decoded_share(_window(prompt=2000.0)))


def test_prefill_of_another_mix_is_known_while_lengths_are_not(usual: LengthState) -> None:
    """Half of it after one scrape, 7/8 after three; lengths drift by a fortieth each."""
    drift = _window(prompt=1600.0, output=200.0)
    before, after = _decoded_share(_window()), _decoded_share(drift)
    for scrapes, reached in ((1, 0.5), (3, 0.875)):
        found = _after(usual, *[drift] * scrapes)[1]
        assert found.prefill_tokens_per_token == pytest.approx(
            before + reached * (after - before), rel=1e-6
        )
        assert found.prompt_tokens_mean == pytest.approx(1000.0, rel=0.08)


def test_prefill_for_each_token_is_unknown_before_a_token_was_decoded() -> None:
    """Nothing at all, and first tokens alone: None, not endless."""
    assert Lengths().prefill_tokens_per_token is None
    assert publish(LengthState())[1].prefill_tokens_per_token is None
    first = replace(_window(), generated_tokens=STARTED)
    assert _after(LengthState(), first)[1].prefill_tokens_per_token is None


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        pytest.param(1000.0, 200.0, (1.0, 1.0), id="as-remembered"),
        pytest.param(1040.0, 190.0, (1.0, 1.0), id="by-chance"),
        pytest.param(1300.0, 200.0, (1.3, 1.0), id="longer-prompts"),
        pytest.param(700.0, 280.0, (1.0, 1.4), id="longer-answers"),
    ],
)
def test_requests_of_the_last_minute_that_surely_are_longer_are_told(prompt, output, expected):
    """Shorter ones are followed by memory in time."""
    tick = Evidence(
        seconds=30.0, started=500.0, prompt_tokens=500.0 * prompt, generated_tokens=500.0 * output
    )
    known = _exponential(1000.0), _exponential(200.0)
    assert longer_ratios(*known, (tick, tick)) == pytest.approx(expected)


def test_few_requests_tell_nothing_of_their_length():
    """Ten in a minute may be as long by chance."""
    tick = Evidence(seconds=30.0, started=5.0, prompt_tokens=15_000.0, generated_tokens=3_000.0)
    known = _exponential(1000.0), _exponential(200.0)
    assert longer_ratios(*known, (tick, tick)) == (1.0, 1.0)


def _exponential(mean: float) -> LengthDistribution:
    points = tuple(mean * one for one in EXPONENTIAL_POINTS)
    return LengthDistribution(tokens=points, weights=(0.2,) * len(points))
