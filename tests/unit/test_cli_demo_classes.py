"""The verdict on classes rests on clients' records, and each of its promises can fail."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from servingslo.api.v1alpha1.spec import ServingSLOSpec
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo_lab.cli.demo.classes.least_time import (
    JobTraffic,
    _ConstantLane,
    least_seconds,
    pace_ratio,
)
from servingslo_lab.cli.demo.classes.run import resource_of
from servingslo_lab.cli.demo.classes.verdict import (
    Arm,
    Look,
    draw,
    figures_of,
    missed,
    nothing_shown,
    table,
    typical_count,
)
from servingslo_lab.rig.simulated.engine_pods import DEFAULT_KIND
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.traces.trace import Trace

ROOT = Path(__file__).parents[2]
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
        ({"job": [*JOB[:-1], record(JOB_BEGINS + 200.0)]}, "times the least possible"),
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


def test_the_least_time_is_that_of_the_largest_lane_that_chat_bears():
    """More replicas leave more; a job that chat cannot bear at all has no least time."""
    rng = np.random.default_rng(1)
    count = 240
    chat = Trace(
        arrival_seconds=np.cumsum(rng.exponential(0.5, count)),
        prompt_tokens=np.full(count, 500.0),
        output_tokens=np.full(count, 100.0),
        duration_seconds=200.0,
    )
    traffic = JobTraffic(
        chat=chat, job=[(500, 100)] * 100, workers=32, begin_seconds=20.0, pause_seconds=0.5
    )
    one, two = (least_seconds(traffic, replicas, OBJECTIVES, 0) for replicas in (1, 2))
    assert 10.0 < two < one < 180.0
    strict = [dataclasses.replace(OBJECTIVES[0], threshold_seconds=1e-3)]
    assert math.isinf(least_seconds(traffic, 1, strict, 0))


def test_the_typical_count_is_that_of_chat_alone_while_the_job_runs():
    """Rounded, and of those seconds only."""
    before = [Look(at_seconds=float(at), ordered=8, ready=8) for at in range(10)]
    during = [Look(at_seconds=10.0 + at, ordered=2 + (at > 3), ready=2) for at in range(10)]
    assert typical_count([*before, *during], 10.0, 19.0) == 3


@pytest.mark.parametrize("arm", Arm)
def test_its_resources_are_allowed(arm: Arm):
    """As the operator reads them."""
    spec = ServingSLOSpec.model_validate(resource_of(ROOT, arm, "team")["spec"])
    assert (spec.classes is not None) == (arm is Arm.ON)


def test_the_picture_is_one():
    """Also if nothing of chat was served."""
    records = {arm: {"chat": CHAT, "job": JOB} for arm in Arm}
    records[Arm.OFF] = {"chat": [record(1.0, ending=Ending.REFUSED)]}
    picture = draw(
        records, {arm: looks(2) for arm in Arm}, OBJECTIVES, begins_seconds=JOB_BEGINS
    )  # fmt: skip
    assert picture is None or picture.startswith(b"\x89PNG")


def test_the_least_time_is_at_the_pace_of_the_machine():
    """Engines that are woken a fifth late need more than a fifth longer, and the pace is found."""
    rng = np.random.default_rng(1)
    count = 240
    chat = Trace(
        arrival_seconds=np.cumsum(rng.exponential(0.5, count)),
        prompt_tokens=np.full(count, 500.0),
        output_tokens=np.full(count, 100.0),
        duration_seconds=200.0,
    )
    traffic = JobTraffic(
        chat=chat, job=[(500, 200)] * 200, workers=64, begin_seconds=20.0, pause_seconds=0.5
    )
    objectives = (Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.05),)
    even, late = (least_seconds(traffic, 2, objectives, 0, pace) for pace in (1.0, 1.2))
    assert late > 1.2 * even
    alone = simulate(
        FleetSpec(engine=DEFAULT_KIND, initial_replicas=2, max_replicas=2),
        chat,
        _ConstantLane(2, None),
        seed=0,
    ).tpot_seconds
    assert pace_ratio(chat, 1.2 * alone, 2, 0) == pytest.approx(1.2)
    assert pace_ratio(chat, [*(0.9 * alone), math.inf], 2, 0) == 1.0
