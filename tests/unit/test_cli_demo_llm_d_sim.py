"""The verdict on llm-d-inference-sim: it rests on clients' records, and it can fail."""

import random
from dataclasses import replace

import pytest

from servingslo_lab.cli.demo.engines.llm_d_sim import ENGINE, SurgeFigures, missed, table
from servingslo_lab.rig.pod_servers import Answered

GOOD = SurgeFigures(
    answers=tuple(Answered(float(at), 1.3, 200, 0.1, 41) for at in range(100)),
    began=0.0,
    surge=(25.0, 55.0),
    replicas=((0.0, 1), (30.0, 3), (54.0, 4), (80.0, 2), (99.0, 1)),
)
SLOW = Answered(10.0, 3.0, 200, 1.8, 41)


def test_a_run_that_follows_is_kept() -> None:
    """One, four, one replicas, and every request answered in time."""
    assert missed(GOOD) == ()
    assert "100.0%: objective kept" in table(GOOD)
    assert missed(replace(GOOD, replicas=(*GOOD.replicas, (100.0, 3)))) == ()
    assert "1 before, 4 in the surge, 1 after it" in table(GOOD)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        pytest.param(
            replace(GOOD, answers=(*GOOD.answers, Answered(1.0, 1.0, 429, 1.0, 41))),
            "1 requests failed",
            id="a-failure",
        ),
        pytest.param(
            replace(GOOD, replicas=((0.0, 1), (40.0, 1), (99.0, 1))),
            "did not rise: 1 before, 1 in the surge",
            id="no-rise",
        ),
        pytest.param(
            replace(GOOD, replicas=((0.0, 1), (40.0, 4), (99.0, 4))),
            "did not come back: 1 before, 4 in the surge, 4 after it",
            id="no-return",
        ),
    ],
)
def test_a_run_that_does_not_follow_is_missed(figures: SurgeFigures, words: str) -> None:
    """The words say what was seen."""
    assert any(words in one for one in missed(figures))


def test_late_first_tokens_miss_the_objective() -> None:
    """Six of 106 requests are late: fewer than 95 % are in time."""
    late = replace(GOOD, answers=(*GOOD.answers, *(SLOW,) * 6))
    assert "objective missed" in table(late)


def test_requests_fit_the_engine() -> None:
    """Lengths are as stated, and prompts differ, so that no prefix is found in its cache."""
    numbers = random.Random(1)  # noqa: S311 - lengths, not secrets
    one, two = ENGINE.question(numbers), ENGINE.question(numbers)
    assert 32 <= one.output_tokens <= 96
    assert one.body != two.body
