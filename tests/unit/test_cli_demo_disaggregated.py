"""The verdict on prefill and decode pools rests on clients' records, and it can fail."""

import dataclasses

import pytest

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo_lab.cli.demo.disaggregated.run import (
    phases_of,
)
from servingslo_lab.cli.demo.disaggregated.verdict import (
    Look,
    figures_of,
    missed,
    table,
)
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
