"""The fleet on a virtual clock: pods start, drain and fail; both backends agree."""

import dataclasses

import numpy as np
import pytest
from sim_fleets import FLEET, Script, agreeing, run, trace

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import ColdStart, SlowPods, read_fleet
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.replicas import layout


def test_ordered_pod_is_ready_one_cold_start_later_and_paid_for_from_the_order():
    """The cost of capacity begins before its use."""
    script = Script((60.0, Wanted(replicas=2)))
    result = run(script)
    ready = {tick.time_seconds: tick.ready for tick in result.ticks}

    assert (ready[105.0], ready[120.0]) == (1, 2)
    assert result.replica_seconds == pytest.approx(300 + 240)
    assert result.scale_actions == 1
    pods = script.seen[-1].pods
    assert [pod.ready_after_seconds for pod in pods] == [60.0, 60.0]


def test_observation_shows_what_was_scraped_and_its_age():
    """The autoscaler sees the past, with its age, and counters that only grow."""
    script = Script()
    run(script)
    ages = {pod.engines[0].gauges_age_seconds for o in script.seen for pod in o.pods}
    tokens = [o.pods[0].engines[0].generation_tokens_total for o in script.seen]

    assert ages == {FLEET.scrape_lag_seconds}
    assert tokens == sorted(tokens)
    assert tokens[-1] > 0
    assert script.seen[0].desired_replicas == script.seen[0].current_replicas == 1


@pytest.mark.parametrize(
    ("drain", "lost"),
    [pytest.param(True, False, id="drained"), pytest.param(False, True, id="not")],
)
def test_scale_down_loses_requests_only_without_draining(drain, lost):
    """Requests in flight on the removed pod."""
    fleet = dataclasses.replace(FLEET, initial_replicas=3, drain=drain)
    result = run(Script((60.0, Wanted(replicas=1))), fleet)

    assert bool((result.status == layout.FAILED).any()) is lost


def test_latest_ready_pod_goes_first_and_pending_ones_before_it():
    """Kubernetes' order of removal."""
    script = Script(
        (15.0, Wanted(replicas=2)), (90.0, Wanted(replicas=3)), (105.0, Wanted(replicas=2)),
        (150.0, Wanted(replicas=1)),
    )  # fmt: skip
    run(script)
    names = {o.time_seconds: [p.name for p in o.pods if not p.deleting] for o in script.seen}

    assert names[105.0] == ["fleet-0", "fleet-1", "fleet-2"]
    assert names[120.0] == ["fleet-0", "fleet-1"]
    assert names[165.0] == ["fleet-0"]


def test_failed_pod_is_replaced_and_its_requests_are_lost():
    """A failure costs what was in flight and a cold start."""
    fleet = dataclasses.replace(FLEET, initial_replicas=2, mean_seconds_to_failure=150.0)
    script = Script()
    result = run(script, fleet, trace=trace(seconds=900.0))

    assert (result.status == layout.FAILED).any()
    assert len({pod.name for o in script.seen for pod in o.pods}) > 2
    assert all(o.current_replicas == 2 for o in script.seen)


def test_pods_beyond_the_quota_stay_unschedulable_and_cost_nothing():
    """GPU shortage, and what becomes of it when another pod goes."""
    fleet = dataclasses.replace(FLEET, gpu_quota=2)
    script = Script((15.0, Wanted(replicas=4)))
    result = run(script, fleet)
    reasons = [pod.unschedulable_reason for pod in script.seen[-1].pods]

    assert [reason is not None for reason in reasons] == [False, False, True, True]
    assert result.replica_seconds == pytest.approx(300 + 285)


def test_new_limits_are_rolled_out_pod_by_pod():
    """The rollout surges by one, keeps the count, and ends with the new limits everywhere."""
    limits = EngineLimits(max_num_seqs=16, max_num_batched_tokens=512, kv_capacity_tokens=60_000)
    fleet = dataclasses.replace(FLEET, initial_replicas=2)
    script = Script((30.0, Wanted(limits=limits)))
    result = run(script, fleet, trace=trace(rate=1.0, seconds=600.0))
    last = script.seen[-1]

    assert min(tick.ready for tick in result.ticks) >= 2
    assert max(tick.ready for tick in result.ticks) <= 3
    assert any(o.rollout_in_progress for o in script.seen)
    assert not last.rollout_in_progress
    live = [pod for pod in last.pods if not pod.deleting]
    assert [pod.engines[0].max_num_seqs for pod in live] == [16, 16]
    assert {pod.template_hash for pod in live} == {"1"}


def test_queue_bound_holds_from_the_decision_on():
    """Admission needs no restart."""
    script = Script((60.0, Wanted(max_queued=4)))
    result = run(script, trace=trace(rate=6.0))
    rejected = result.status == layout.REJECTED

    assert rejected.any()
    assert result.arrival_seconds[rejected].min() > 60.0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("engine: abacus", "abacus", id="engine"),
        pytest.param("routing: fastest", "routing", id="routing"),
        pytest.param("cold_start: {mean_seconds: soon}", "cold_start.mean_seconds", id="number"),
        pytest.param("a: [", "YAML", id="yaml"),
        pytest.param("replicas: 3", "replicas", id="unknown-field"),
    ],
)
def test_bad_fleet_file_is_refused_by_field(tmp_path, text, named):
    """The message names the field."""
    path = tmp_path / "fleet.yaml"
    path.write_text(text)

    with pytest.raises(InvalidInputError, match=named):
        read_fleet(path)


def test_compiled_fleet_that_outgrows_its_table_of_engines_loses_nothing():
    """Many pods over a run, as failures make them: every engine stays where it was."""
    fleet = dataclasses.replace(
        FLEET, initial_replicas=8, mean_seconds_to_failure=40.0,
        cold_start=ColdStart(mean_seconds=5.0),
    )  # fmt: skip
    result = agreeing(Script(), fleet, trace=trace(rate=8.0))

    assert np.isfinite(result.latency_seconds).mean() > 0.5


def test_least_loaded_routing_around_slow_pods_beats_taking_turns():
    """Requests in flight tell which engine is slow."""
    fleet = dataclasses.replace(
        FLEET, initial_replicas=10, slow_pods=SlowPods(share_ratio=0.3, factor=3.0)
    )
    load = trace(rate=40.0, seconds=120.0)
    least = agreeing(Script(), fleet, trace=load)
    turns = agreeing(Script(), dataclasses.replace(fleet, routing=Routing.ROUND_ROBIN), trace=load)

    assert np.quantile(least.latency_seconds, 0.95) < np.quantile(turns.latency_seconds, 0.95)
