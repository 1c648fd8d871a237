"""Lengths and the share given up are of many requests, whatever stood still or began anew.

1. After a thaw of any length the mean output and the share given up stay what they are.
2. So they do when any number of engines begin anew, at any moment, seen as a restart or not.
3. Requests that a window counts by chance do not move what minutes have shown.
"""

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.paper_fleet import OUTPUT_TOKENS, PROMPT_TOKENS, PaperFleet

from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.requests.lengths import LengthState, observe, publish
from servingslo.estimation.windows.counters import Window
from servingslo.models.workload import LengthDistribution

# Looks before and after what happens, enough for the engines' first windows at the slowest scrapes.
LOOKS = 12
AFTER = 12
# What ten minutes of memory say of a mean is off by so many standard errors at most, in all looks
# of all examples, beside half the prior where requests are few.
DEVIATIONS = 5.0
LEAST_SECONDS = 60.0

rates = st.floats(math.log(0.5), math.log(100.0)).map(math.exp)
scrapes = st.sampled_from((1.0, 2.0, 5.0, 15.0, 30.0, 60.0))
thaws = st.floats(math.log(5.0), math.log(1200.0)).map(math.exp)


def _check(fleet: PaperFleet, looks: list[float], begin: float) -> None:
    """Every look from `begin` on tells what is true, within its own sampling error."""
    state, told = EstimatorState(), 0
    for now in looks:
        state, estimate = update(state, fleet.look(now))
        if now < begin or estimate.output_tokens_mean is None:
            continue
        told += 1
        # Of exponential lengths, and of as many requests as came in the shortest memory.
        counted = fleet.rate * LEAST_SECONDS
        allowed = 0.15 + DEVIATIONS * math.sqrt(2.0 / max(counted, 1.0))
        assert estimate.output_tokens_mean <= OUTPUT_TOKENS * (1.0 + allowed)
        assert estimate.prompt_tokens_mean is not None
        assert estimate.prompt_tokens_mean <= PROMPT_TOKENS * 2.0
        assert (estimate.abort_ratio or 0.0) <= 0.03
    assert told


@given(
    rate=rates,
    pods=st.integers(1, 20),
    scrape=scrapes,
    thaw=thaws,
    even=st.booleans(),
    seed=st.integers(0, 99),
)
@example(rate=0.5, pods=2, scrape=5.0, thaw=525.0, even=False, seed=30)
@settings(max_examples=40, deadline=None)
def test_a_thaw_moves_no_mean_whatever_its_first_window_counts(
    rate: float, pods: int, scrape: float, thaw: float, even: bool, seed: int
) -> None:
    """Invariant 1: the operator stood still, and looks again from one scrape to the next."""
    warm = max(LOOKS * scrape, LEAST_SECONDS)
    end = warm + thaw + AFTER * scrape
    fleet = PaperFleet(
        rate=rate, pods=pods, seconds=end + 1.0, seed=seed, even=even, scrape_seconds=scrape
    )
    before = np.arange(0.0, warm, scrape)
    looks = [*before, *np.arange(warm + thaw, end, scrape)]
    _check(fleet, [float(look) for look in looks], warm)


@given(
    rates,
    st.integers(2, 20),
    scrapes,
    st.data(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_engines_that_begin_anew_move_no_mean_however_many_they_are(
    rate: float, pods: int, scrape: float, data: st.DataObject, lost: bool, even: bool, seed: int
) -> None:
    """Invariant 2: each at its own moment of a scrape interval, alone or all at once."""
    warm = max(LOOKS * scrape, LEAST_SECONDS)
    which = data.draw(st.sets(st.integers(0, pods - 1), min_size=1), label="which")
    share = st.floats(0.0, 1.0)
    begun = {pod: warm + scrape * data.draw(share, label="when") for pod in sorted(which)}
    seen = {pod: at + scrape * data.draw(share, label="seen") for pod, at in begun.items()}
    end = warm + AFTER * scrape
    fleet = PaperFleet(
        rate=rate, pods=pods, seconds=end + 1.0, seed=seed, even=even, scrape_seconds=scrape,
        begun=begun, lost=lost, restarts_at=seen if data.draw(st.booleans(), label="told") else {},
    )  # fmt: skip
    _check(fleet, [float(look) for look in np.arange(0.0, end, scrape)], warm)


def _learned(rate: float) -> LengthState:
    """Minutes of exponential outputs at this rate."""
    state = LengthState()
    for _ in range(40):
        count = 15.0 * rate
        window = Window(
            pod="a", engine="0", seconds=15.0, running_before=50.0, running_after=50.0,
            first_tokens=count, prompt_tokens=PROMPT_TOKENS * count,
            generated_tokens=OUTPUT_TOKENS * count, finished=count, aborted=0.0,
        )  # fmt: skip
        state, _ = publish(observe(state, [window], None, None))
    return state


@given(
    rates,
    st.integers(1, 20),
    st.floats(0.5, 2.0),
    st.lists(st.floats(0.0, 0.5), min_size=1, max_size=4),
    st.floats(0.7, 1.4),
)
@settings(deadline=None)
def test_a_handful_of_ends_moves_no_mean(
    rate: float, pods: int, seconds: float, shares: list[float], fullness: float
) -> None:
    """Invariant 3: full batches make tokens while hardly a request begins, second after second."""
    state = _learned(rate)
    for share in shares:
        number = min(math.floor(share * rate * seconds), 5) + 1
        windows = [
            Window(
                pod=f"pod-{pod}", engine="0", seconds=seconds, running_before=50.0 / pods,
                running_after=50.0 / pods, first_tokens=number / pods,
                prompt_tokens=3.0 * PROMPT_TOKENS * number / pods,
                generated_tokens=fullness * rate * seconds * OUTPUT_TOKENS / pods,
                finished=number / pods, aborted=0.0,
            )
            for pod in range(pods)
        ]  # fmt: skip
        state, found = publish(observe(state, windows, None, None))
        assert isinstance(found.output, LengthDistribution)
        assert found.output.mean_tokens <= 1.35 * OUTPUT_TOKENS
        assert found.prompt_tokens_mean is not None
        assert found.prompt_tokens_mean <= 1.5 * PROMPT_TOKENS
        assert found.abort_ratio == 0.0
