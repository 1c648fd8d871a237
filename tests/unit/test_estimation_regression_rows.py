"""Which windows say something of the service law, and how well it is known."""

from dataclasses import replace

import pytest

from servingslo.estimation.law.rows import regression_rows
from servingslo.estimation.windows.counters import Window
from servingslo.models.engine.service_time import ServiceLaw

# The small card of the catalogue at 580 tokens of context, its c left out.
LAW = ServiceLaw(
    step_fixed_seconds=0.015, step_per_sequence_seconds=0.00038, prefill_per_token_seconds=0.0
)
SECONDS = 1.0


def _window(sequences: float) -> Window:
    """An engine with so many running all the time; each stays for 128 steps."""
    step_seconds = LAW.step_seconds(sequences)
    steps = SECONDS / step_seconds
    return Window(
        pod="a",
        engine="0",
        seconds=SECONDS,
        running_before=sequences,
        running_after=sequences,
        waiting_before=0.0,
        waiting_after=0.0,
        first_tokens=steps * sequences / 128,
        ttft_sum_seconds=0.0,
        inter_token_count=steps * sequences,
        inter_token_sum_seconds=sequences * SECONDS,
        step_count=steps,
        generated_tokens=steps * sequences,
        prompt_tokens=0.0,
    )


@pytest.mark.parametrize("sequences", [4.1, 4.5, 5.0, 6.0, 8.0])
@pytest.mark.parametrize("dispersion", [1.0, 2.0])
def test_a_few_running_are_known_well_enough_to_be_scored(
    sequences: float, dispersion: float
) -> None:
    """Where idle time hides in the accounting, inter-token latency tells as much as below it.

    Without it a fleet of three that had four to five running each waited for its law for up to two
    minutes of 1 s windows: they entered the fit and counted for nothing else.
    """
    row = regression_rows(_window(sequences), dispersion)[0]
    assert row.scored
    predicted = row.x[0] * LAW.step_fixed_seconds + row.x[1] * LAW.step_per_sequence_seconds
    assert predicted == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"from_zero": True}, id="first-window-of-an-engine"),
        pytest.param({"restarted": True}, id="restart"),
        pytest.param({"warm": False}, id="first-tokens-of-an-engine"),
        pytest.param({"running_before": 0.0}, id="load-began-inside"),
        pytest.param({"running_after": 0.0}, id="load-ended-inside"),
        pytest.param({"paired": False}, id="scraped-apart"),
    ],
)
def test_a_window_with_an_unknown_idle_share_says_nothing(changed: dict[str, object]) -> None:
    """Ten running on average may be twenty for half of the time: the steps are those of twenty."""
    assert regression_rows(_window(10.0)) != ()
    assert regression_rows(replace(_window(10.0), **changed)) == ()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"running_before": None, "running_after": None}, id="no-gauges"),
        pytest.param({"running_before": 0.0, "waiting_before": 3.0}, id="a-queue"),
    ],
)
def test_an_engine_that_is_not_known_to_be_empty_is_not_empty(changed: dict[str, object]) -> None:
    """Gauges may be missing; counters and histograms say what they said."""
    assert regression_rows(replace(_window(10.0), **changed)) == regression_rows(_window(10.0))


def test_a_draft_makes_the_law_that_of_a_token() -> None:
    """With two of three tokens guessed, a token's time and an answer's are those that were seen.

    A real step of 15 ms + 0.38 ms for each sequence makes three tokens of each: the row says that
    a token takes a third of it, by accounting and by inter-token latency alike.
    """
    plain = _window(8.0)
    assert plain.generated_tokens is not None
    drafted = replace(
        plain,
        generated_tokens=3.0 * plain.generated_tokens,
        accepted_tokens=2.0 * plain.generated_tokens,
    )
    token = ServiceLaw(
        step_fixed_seconds=LAW.step_fixed_seconds / 3.0,
        step_per_sequence_seconds=LAW.step_per_sequence_seconds / 3.0,
        prefill_per_token_seconds=0.0,
    )
    for window in (drafted, replace(drafted, step_count=None)):
        row = regression_rows(window)[0]
        predicted = row.x[0] * token.step_fixed_seconds + row.x[1] * token.step_per_sequence_seconds
        assert predicted == pytest.approx(1.0, abs=0.03)
        assert row.sequences == pytest.approx(8.0, abs=1.1)


@pytest.mark.parametrize(("tokens_each", "seen"), [(1.0, False), (40.0, True)])
def test_a_prompt_token_of_each_request_shows_no_cost_of_prefill(tokens_each, seen) -> None:
    """A decode engine computes the last one of a prompt that another has prefilled."""
    window = _window(20.0)
    window = replace(window, prompt_tokens=tokens_each * (window.first_tokens or 0.0))
    (row,) = regression_rows(window)
    assert (row.x[2] > 0.0) is seen
