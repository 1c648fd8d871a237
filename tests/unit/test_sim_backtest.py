"""Backtests: what is run, what is kept, and how policies are set beside each other."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from servingslo.errors import ServingSLOError
from servingslo_lab.sim.backtest import run
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.kept import key_of
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import policy_of
from servingslo_lab.sim.scenario import Cell, Scenario, autoscaler_of
from servingslo_lab.sim.scoring import Objectives, Score, interval, score
from servingslo_lab.sim.summary import summaries
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.workloads import flash_crowd, generated, uniform_lengths

FLEET = FleetSpec(engine="l4-small", cold_start=ColdStart(mean_seconds=30.0))
OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)


def crowd(seed: int = 3) -> Trace:
    """Twelve minutes of 9 requests a second, with three of 36."""
    course = flash_crowd(
        9.0, 4.0, at_seconds=240.0, rise_seconds=30.0, hold_seconds=180.0, duration_seconds=720.0
    )
    return generated(course, uniform_lengths((100, 900), (20, 200)), np.random.default_rng(seed))


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """The crowd as a file."""
    path = tmp_path_factory.mktemp("trace") / "crowd.csv"
    write_trace(crowd(), path)
    return Scenario(name="crowd", fleet=FLEET, trace_path=str(path), warm=True)


def cell(scenario: Scenario, policy: str, seed: int = 1, **changes: object) -> Cell:
    """A run of a policy."""
    made = Cell(scenario=scenario, policy=policy_of(policy), seed=seed, against_oracle=False)
    return replace(made, **changes)


def ignored(_cell: Cell) -> None:
    """Nobody watches."""


@pytest.mark.slow("servingslo_lab.sim")
def test_processes_give_what_one_gives(scenario, tmp_path):
    """In the order of the cells, whoever was done first."""
    cells = [cell(scenario, name, seed) for seed in (1, 2) for name in ("hpa-kv", "keda-slo")]
    one = run(cells, tmp_path / "a", processes=1, done=ignored)
    two = run(cells, tmp_path / "b", processes=2, done=ignored)

    assert one == two
    assert [(o.policy, o.seed) for o in one] == [(c.policy.label, c.seed) for c in cells]


@pytest.mark.slow("servingslo_lab.sim")
def test_a_process_that_is_killed_ends_the_backtest_and_loses_nothing(scenario, tmp_path):
    """Nobody waits for the runs of a process that is gone; what was done is there again."""
    cells = [cell(scenario, "hpa-kv", seed) for seed in range(1, 9)]

    def kill_all(_cell: Cell) -> None:
        for worker in multiprocessing.active_children():
            worker.kill()

    with pytest.raises(ServingSLOError, match="run again to go on"):
        run(cells, tmp_path, processes=2, done=kill_all)
    assert multiprocessing.active_children() == []
    assert list(tmp_path.glob("*.json"))
    assert len(run(cells, tmp_path, processes=1, done=ignored)) == len(cells)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda c: replace(c, seed=2), id="seed"),
        pytest.param(lambda c: replace(c, policy=policy_of("hpa-kv:kv_usage=0.5")), id="setting"),
        pytest.param(lambda c: replace(c, against_oracle=True), id="beside the oracle"),
        pytest.param(
            lambda c: replace(c, scenario=replace(c.scenario, fleet=FleetSpec())), id="fleet"
        ),
        pytest.param(lambda c: replace(c, scenario=replace(c.scenario, scale=2.0)), id="scale"),
        pytest.param(
            lambda c: replace(c, scenario=replace(c.scenario, skipped_seconds=9.0)), id="warm-up"
        ),
    ],
)
def test_whatever_decides_a_run_is_in_its_key(scenario, changed):
    """Another run is never taken for this one."""
    one = cell(scenario, "hpa-kv")
    assert key_of(changed(one)) != key_of(one)


def scored(policy: str, share: float, hours: float, seed: int = 1) -> Outcome:
    """A run by its two numbers."""
    made = Score(
        share_ratio=share, replica_hours=hours, relative_cost=hours / 5.0, actions_per_hour=3.0,
        worst_minute_ratio=share / 2, recovery_seconds=60.0 * seed,
        dollars_per_million_tokens=None, rejected_ratio=0.0, lost_ratio=0.0,
        ttft_p99_seconds=1.0, tpot_p99_seconds=0.05,
    )  # fmt: skip
    return Outcome(scenario="x", policy=policy, seed=seed, score=made, timeline=None)


def test_the_frontier_is_who_nobody_beats():
    """Cheaper and worse is on it, dearer and worse is not; hindsight beats nobody."""
    found = summaries(
        [
            scored("good", 0.99, 10.0), scored("cheap", 0.9, 6.0), scored("bad", 0.9, 10.0),
            scored("static", 1.0, 5.0), replace(scored("none", 0.0, 0.0), score=None),
        ],
        dollars_per_hour=2.0,
    )  # fmt: skip
    beaten = {one.policy: one.beaten_by for one in found}

    assert beaten == {"good": (), "cheap": (), "bad": ("good", "cheap"), "static": ()}
    assert found[0].dollars.mean == 20.0
    assert found[0].dollars_per_million_tokens is None


def test_a_place_on_the_frontier_is_claimed_where_the_intervals_allow_it():
    """Two that the seeds do not tell apart claim none, nor one whose share may be nothing."""
    runs = {
        "sure": ((0.99, 10.0), (0.991, 10.1)),
        "near": ((0.950, 6.0), (0.951, 6.05)),
        "nearer": ((0.952, 6.1), (0.953, 6.15)),
        "wild": ((0.02, 1.0), (0.06, 1.1)),
    }
    outcomes = [
        scored(policy, *run, seed=seed)
        for policy, seeds in runs.items()
        for seed, run in enumerate(seeds, start=1)
    ]
    found = {one.policy: one for one in summaries(outcomes, dollars_per_hour=1.0)}
    assert {name for name, one in found.items() if one.on_frontier} >= {"sure", "near", "wild"}
    assert {name for name, one in found.items() if one.surely_on_frontier} == {"sure"}
    assert found["wild"].may_be_beaten_by == ()
    assert found["wild"].share_ratio.low < 0.0


def test_means_over_seeds_have_students_interval():
    """Of 1, 2, 3: the mean 2, s = 1, and t(0.975, 2) = 4.303 over √3."""
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert interval([4.0]).half_width is None


def test_a_score_counts_what_was_never_answered():
    """Requests that were rejected miss, and minutes on end below the share are added up."""
    held = replace(FLEET, initial_replicas=1, max_queued=4)
    scenario = Scenario(name="x", fleet=held, trace_path="")
    idle = autoscaler_of(policy_of("hpa-kv"), scenario, replace(held, max_replicas=1), crowd())
    found = score(simulate(held, crowd(), idle, seed=1), OBJECTIVES, dollars_per_hour=1.0)

    assert found.rejected_ratio > 0.3
    assert found.share_ratio + found.rejected_ratio <= 1.0 + 1e-9
    assert found.recovery_seconds >= 240.0
    assert found.worst_minute_ratio < found.share_ratio
