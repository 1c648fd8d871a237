"""Share of requests that clients gave up, and where it is told."""

from dataclasses import replace

import pytest
from tests.golden.decisions import SCALE_UP

from servingslo.estimation.requests.lengths import LengthState, observe, publish
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows.counters import Window, advance
from servingslo.explain.document import as_dict
from servingslo.explain.text import text as text_of


def _window(**counts: float) -> Window:
    return Window(pod="a", engine="0", seconds=15.0, generated_tokens=9000.0, **counts)


@pytest.mark.parametrize(
    ("counts", "ratio"),
    [
        pytest.param({"first_tokens": 100.0, "finished": 100.0}, 0.0, id="none"),
        pytest.param(
            {"first_tokens": 100.0, "finished": 100.0, "aborted": 8.0}, 0.08, id="counted"
        ),
        pytest.param({"first_tokens": 100.0, "finished": 90.0}, 0.1, id="in-no-counter"),
        pytest.param(
            {"first_tokens": 80.0, "finished": 100.0, "aborted": 20.0}, 0.2, id="while-waiting"
        ),
        pytest.param(
            {
                "first_tokens": 100.0,
                "finished": 90.0,
                "running_before": 5.0,
                "running_after": 15.0,
            },
            0.0,
            id="still-running",
        ),
    ],
)
def test_requests_given_up_are_those_counted_as_aborted_and_those_in_no_counter(
    counts: dict[str, float], ratio: float
) -> None:
    """Over the requests that ended; what still runs did not."""
    _, lengths = publish(observe(LengthState(), [_window(**counts)], None, None))
    assert lengths.abort_ratio == pytest.approx(ratio)


def _sample(finished: dict[str, float], tokens: float) -> EngineSample:
    return EngineSample(
        engine="0",
        counters_age_seconds=0.0,
        generation_tokens_total=tokens,
        finished_total=finished,
    )


@pytest.mark.parametrize(
    ("before", "after", "aborted"),
    [
        pytest.param({"stop": 5.0, "abort": 2.0}, {"stop": 9.0, "abort": 5.0}, 3.0, id="more"),
        pytest.param({"stop": 5.0}, {"stop": 9.0, "abort": 1.0}, 1.0, id="the-first"),
        pytest.param({"stop": 5.0}, {"stop": 9.0}, None, id="not-told"),
    ],
)
def test_a_window_tells_the_requests_that_the_engine_counts_as_aborted(
    before: dict[str, float], after: dict[str, float], aborted: float | None
) -> None:
    """None where it counts none apart."""
    pod = PodSample(name="a", ready=True)
    memory = advance(None, pod, _sample(before, 100.0), 1000.0, None).memory
    step = advance(memory, pod, _sample(after, 200.0), 1015.0, None)
    assert step.counters is not None
    assert step.counters.aborted == aborted


@pytest.mark.parametrize(
    ("ratio", "line"),
    [
        pytest.param(0.083, "clients gave up 8.3 % of the requests that ended", id="told"),
        pytest.param(0.004, None, id="noise"),
        pytest.param(None, None, id="unknown"),
    ],
)
def test_the_share_given_up_stands_in_the_document_and_the_explanation(
    ratio: float | None, line: str | None
) -> None:
    """The explanation is silent below what counters out of step make of none."""
    decision = replace(SCALE_UP, demand=replace(SCALE_UP.demand, aborted_ratio=ratio))
    assert as_dict(decision)["demand"].get("abortedRatio") == ratio
    text = text_of(decision)
    assert ("clients gave up" in text) is (line is not None)
    assert line is None or line in text
