"""The verdict on classes rests on clients' records, and each of its promises can fail."""

import dataclasses
import math

import pytest

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo_lab.cli.demo.classes.verdict import (
    Arm,
    Look,
    figures_of,
    missed,
    nothing_shown,
    table,
)
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending

SECONDS, JOB_BEGINS, JOB_SECONDS = 400.0, 100.0, 120.0
OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.08),
)


def record(at: float, *, ttft: float = 0.3, ending: Ending = Ending.FINISHED) -> ClientRecord:
    """A request with 51 tokens, 20 ms each."""
    return ClientRecord(
        arrival_seconds=at, ending=ending, seconds=ttft + 50 * 0.02, ttft_seconds=ttft,
        output_tokens=51, attempts=1, refusals=0,
    )  # fmt: skip


def looks(replicas: int) -> list[Look]:
    """One a second."""
    return [
        Look(at_seconds=float(at), ordered=replicas, ready=replicas, bounds=(40, 8))
        for at in range(int(SECONDS) + 1)
    ]


CHAT = [record(float(at)) for at in range(400)]
# 240 requests in 120 s.
JOB = [record(JOB_BEGINS + 0.5 * (number + 1) - 1.3) for number in range(240)]


def figures(arm: Arm, *, replicas: int = 2, chat=CHAT, job=JOB):
    """Of these records, all good by default."""
    records = {"chat": chat, **({} if arm is Arm.ALONE else {"job": job})}
    return figures_of(
        arm, records, looks(replicas), OBJECTIVES, seconds=SECONDS, job_begin_seconds=JOB_BEGINS,
        least_seconds=JOB_SECONDS,
    )  # fmt: skip


def arms(**on):
    """All three, without classes at twice the replicas."""
    return [figures(Arm.ALONE), figures(Arm.OFF, replicas=4), figures(Arm.ON, **on)]


def test_what_was_kept_is_no_miss():
    """And is in the table; chat alone has no job."""
    found = arms()
    assert missed(found) == ()
    assert nothing_shown(found) == ()
    assert found[2].least_seconds == pytest.approx(120.0, abs=1.0)
    assert found[2].job_ratio == pytest.approx(1.0, abs=0.02)
    assert found[0].replica_seconds == pytest.approx(800.0)
    assert math.isnan(found[0].job_seconds)
    text = table(found)
    assert "100.00%" in text
    assert "0.222" in text


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ({"chat": [record(1.0, ending=Ending.REFUSED), *CHAT[:50]]}, "ttft within 1 s for 98.04%"),
        ({"chat": [record(1.0, ttft=1.2), *CHAT[:50]]}, "ttft within 1 s for 98.04%"),
        ({"replicas": 3}, "0.333 replica-hours, 0.222 for chat alone"),
        ({"job": [*JOB[:-1], record(JOB_BEGINS + 300.0)]}, "times the least possible"),
    ],
)
def test_a_broken_promise_is_a_miss(on: dict, words: str):
    """Refused and late chat, replicas for the job, a job that is late."""
    assert any(words in one for one in missed(arms(**on)))


def test_a_job_that_the_replicas_could_not_have_done_is_a_miss():
    """No least time is a time that was kept."""
    found = dataclasses.replace(figures(Arm.ON), job_seconds=math.nan)
    assert len(missed([figures(Arm.ALONE), figures(Arm.OFF), found])) == 1


def test_a_run_in_which_classes_change_nothing_shows_nothing():
    """Without them chat was kept at no cost; it shows something if chat was not."""
    assert nothing_shown([figures(Arm.ALONE), figures(Arm.OFF), figures(Arm.ON)])
    late = [record(float(at), ttft=2.0) for at in range(400)]
    assert not nothing_shown([figures(Arm.ALONE), figures(Arm.OFF, chat=late), figures(Arm.ON)])
