"""The verdict on prefill and decode pools rests on clients' records, and it can fail."""

import dataclasses
import math

import numpy as np
import pytest

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo_lab.cli.demo.disaggregated.run import (
    LONG_OUTPUT_TOKENS,
    LONG_PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    phases_of,
    requests_of,
)
from servingslo_lab.cli.demo.disaggregated.verdict import (
    Look,
    checked,
    draw,
    figures_of,
    missed,
    table,
)
from servingslo_lab.cli.demo.report import verdict_line
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending

SECONDS = 400.0
PHASES = phases_of(SECONDS)
OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.08),
)
# Prefill and decode in each mix, with a step down of each role.
COUNTS = ((2, 2), (4, 2), (1, 3), (1, 1))


def record(at: float, *, ttft: float = 0.3, ending: Ending = Ending.FINISHED) -> ClientRecord:
    """A request with 100 tokens, 20 ms each."""
    return ClientRecord(
        arrival_seconds=at, ending=ending, seconds=ttft + 99 * 0.02, ttft_seconds=ttft,
        output_tokens=100, attempts=1, refusals=0,
    )  # fmt: skip


def looks() -> list[Look]:
    """One a second."""
    found = []
    for at in range(int(SECONDS)):
        phase = sum(at >= one.begins_seconds for one in PHASES) - 1
        prefill, decode = COUNTS[phase]
        found.append(
            Look(
                at_seconds=float(at), ordered=(prefill, decode), ready=(prefill, decode),
                held_gpus=prefill + decode,
            )
        )  # fmt: skip
    return found


def figures(records: list[ClientRecord] | None = None, gpus_max: int = 8):
    """Of these, all good by default."""
    return figures_of(
        [record(float(at)) for at in range(400)] if records is None else records,
        looks(), PHASES, OBJECTIVES, gpus_max=gpus_max, through_ratio=0.9,
        transfer="33 ms, measured",
    )  # fmt: skip


def test_what_was_kept_is_no_miss():
    """And is in the table: counts by phase, hours by pool, requests lost."""
    found = figures()
    assert missed(found) == ()
    assert [one.counts for one in found.phases] == list(COUNTS)
    assert found.phases[2].ratio == pytest.approx(1 / 3)
    assert found.steps_down == (1, 1)
    # 60 s, 120 s, 108 s and 111 s of the counts.
    prefill, decode = 60 * 2 + 120 * 4 + 108 + 111, 60 * 2 + 120 * 2 + 108 * 3 + 111
    assert found.replica_seconds == pytest.approx((prefill, decode))
    text = table(found)
    assert "400, 0 lost" in text
    assert "prefill 4, decode 2, ratio 2.00" in text


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (
            [record(float(at), ttft=1.2 if 60 < at < 72 else 0.3) for at in range(400)],
            'ttft held for 90.8 % of requests in "longer prompts", 95 % are promised',
        ),
        ([record(1.0, ending=Ending.BROKEN), *[record(2.0)] * 30], "1 requests were lost"),
        (
            [record(1.0, ttft=1.2), *[record(2.0)] * 8],
            "ttft held for 88.8 % of requests over the run",
        ),
    ],
)
def test_a_request_that_is_late_or_lost_is_a_miss(records: list[ClientRecord], words: str):
    """By the clients' own records."""
    assert any(words in one for one in missed(figures(records)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"most_gpus": 9}, "pods held 9 GPUs"),
        ({"steps_down": (0, 1)}, "prefill never stepped down"),
        ({"steps_down": (1, 0)}, "decode never stepped down"),
    ],
)
def test_what_was_not_shown_is_a_miss(changes: dict, words: str):
    """Each promise can fail by itself."""
    (found,) = missed(dataclasses.replace(figures(), **changes))
    assert words in found


def test_the_verdict_is_one_line_of_what_was_checked_by_phase():
    """Kept over the run is not kept: the phase that is meant to be hard is judged by itself."""
    late = [record(float(at), ttft=1.2 if 60 < at < 72 else 0.3) for at in range(400)]
    found = figures(late)
    assert all(100.0 * ratio >= one.percentile for one, ratio in found.within_ratios)
    line = verdict_line(missed(found), checked(found))
    assert line.startswith('verdict: missed: ttft held for 90.8 % of requests in "longer prompts"')
    assert "at first 100 %, longer prompts 90.8 %, longer answers 100 %" in line
    assert "prefill/decode 1.00 → 2.00 → 0.33 → 1.00" in line
    assert verdict_line(missed(figures()), checked(figures())).startswith("verdict: kept; checked:")


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (((2, 2), (2, 2), (2, 2), (2, 2)), ("did not rise", "did not fall")),
        # Prefill grew with the prompts, and decode as much: the ratio never rose.
        (((1, 1), (2, 2), (2, 3), (1, 1)), ("did not rise with the prompts: 1.00 → 1.00 → 0.67",)),
    ],
)
def test_counts_that_do_not_follow_the_mix_are_a_miss(counts: tuple, words: tuple[str, ...]):
    """The ratio rises with the prompts and falls with the answers."""
    found = figures()
    phases = [
        dataclasses.replace(phase, counts=both)
        for phase, both in zip(found.phases, counts, strict=True)
    ]
    told = missed(dataclasses.replace(found, phases=tuple(phases)))
    assert len(told) == len(words)
    assert all(word in one for word, one in zip(words, told, strict=True))


def test_requests_have_the_lengths_of_their_phase():
    """Within a few percent once a mix has arrived."""
    found = np.array(requests_of(2000.0, seed=3))
    for begin, end, prompt, output in (
        (0, 300, PROMPT_TOKENS, OUTPUT_TOKENS),
        (460, 900, LONG_PROMPT_TOKENS, OUTPUT_TOKENS),
        (1060, 1440, PROMPT_TOKENS, LONG_OUTPUT_TOKENS),
        (1600, 2000, PROMPT_TOKENS, OUTPUT_TOKENS),
    ):
        chosen = found[(found[:, 0] >= begin) & (found[:, 0] < end)]
        assert chosen[:, 1].mean() == pytest.approx(prompt, rel=0.05)
        assert chosen[:, 2].mean() == pytest.approx(output, rel=0.05)


def test_the_picture_is_one():
    """Also of a request without an answer."""
    records = [record(1.0), record(20.0, ending=Ending.BROKEN), record(400.0)]
    offered = [(one.arrival_seconds, 900, 100) for one in records]
    picture = draw(figures(records), records, looks(), PHASES, offered)
    assert picture is None or picture.startswith(b"\x89PNG")
    assert math.isnan(figures([]).in_slo_ratio)
