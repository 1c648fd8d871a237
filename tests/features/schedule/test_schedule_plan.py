"""Schedules as timelines: ready when a window begins, restarts inside, asleep, what is reported."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.policy_world import REPLICAS_ONLY, World, run, steady
from tests.unit.sim_fleets import FLEET
from tests.unit.world_gateway import Gated

from servingslo.adapters.gauges import metric_samples
from servingslo.api.convert import fleet_from_spec
from servingslo.controller.reporting.status import status_fields
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.features.schedule.bounds import SCHEDULE, Schedule
from servingslo.features.schedule.report import REPORT, WindowReport
from servingslo.features.schedule.windows import Window
from servingslo.policy.inputs import ReplicaTargets, SignalProblem, Targets
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.production import Knobs, Production, benchmark_targets
from servingslo_lab.sim.replicas.backend import INTERPRETED
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths

# Virtual time begins at midnight of 1 January 1970 in UTC.
COLD_START, TICK = 60.0, 15.0
BEGIN, END = 1200.0, 2400.0
TWENTY_PAST = "20 0 * * *"


def window(
    cron: str = TWENTY_PAST, seconds: float = END - BEGIN, *, least: int | None = None,
    most: int | None = None,
) -> Window:  # fmt: skip
    """A window in UTC."""
    return Window(cron=cron, zone="UTC", duration_seconds=seconds, minimum=least, maximum=most)


def scheduled(*windows: Window, targets: Targets = REPLICAS_ONLY) -> Targets:
    """The targets with these windows."""
    return replace(targets, features={SCHEDULE.name: Schedule(windows=windows)})


def ready_at(told, seconds: float) -> int:
    """Pods that were ready at the tick of this time."""
    seen = next(o for o in told.observations if o.time_seconds == seconds)
    return sum(pod.ready for pod in seen.pods)


def test_replicas_of_a_window_are_ready_when_it_begins_and_go_after_it() -> None:
    """Ordered one lead ahead, and no earlier: a cold start, a scrape and a tick."""
    told = run(World(rate=steady(1.0), replicas=2), scheduled(window(least=6))).until(END + 900.0)
    assert ready_at(told, BEGIN) == 6
    first = next(d for d in told.decisions if (d.replicas_after or 0) >= 6)
    assert BEGIN - COLD_START - 4 * TICK <= first.time_seconds < BEGIN - COLD_START
    assert first.reason is Reason.MIN_REPLICAS_REACHED
    assert {d.replicas_after for d in told.between(BEGIN, END - TICK)} == {6}
    assert told.decisions[-1].replicas_after == 1


def test_a_max_holds_from_the_beginning_and_the_plan_stays_free_below_it() -> None:
    """At once, like that of a resource; the demand decides below."""
    targets = scheduled(window(most=2))
    told = run(World(rate=steady(12.0), replicas=4), targets).until(END + 300.0)
    assert told.at(BEGIN - TICK).replicas_after > 2
    assert {d.replicas_after for d in told.between(BEGIN, END - TICK)} == {2}
    assert told.at(BEGIN).reason is Reason.MAX_REPLICAS_REACHED
    assert told.decisions[-1].replicas_after > 2


def test_a_restart_inside_a_window_changes_nothing() -> None:
    """Nothing of it is remembered: the time says that it is in force."""
    told = run(World(rate=steady(1.0), replicas=2), scheduled(window(least=6))).until(1500.0)
    told.state = PlannerState()
    told.until(1800.0)
    assert {d.replicas_after for d in told.between(1500.0, 1800.0)} == {6}


def test_a_tick_that_comes_too_late_orders_at_once() -> None:
    """The operator was away for the whole lead, and for the beginning."""
    world = World(rate=steady(1.0), replicas=2, now=1500.0)
    assert run(world, scheduled(window(least=6))).tick().replicas_after == 6


def test_a_sleeping_target_is_woken_for_a_window_and_sleeps_after_it() -> None:
    """Without any request; inside the window it does not sleep."""
    asleep = ReplicaTargets(minimum=0, maximum=8, idle_seconds=300.0)
    targets = scheduled(window(least=2), targets=replace(REPLICAS_ONLY, replicas=asleep))
    told = run(Gated(rate=steady(0.0), replicas=1), targets).until(END + 900.0)
    assert told.at(BEGIN - 300.0).replicas_after == 0
    assert ready_at(told, BEGIN) == 2
    assert {d.replicas_after for d in told.between(BEGIN, END - TICK)} == {2}
    assert told.decisions[-1].replicas_after == 0


def test_a_target_sleeps_in_a_window_alone_and_is_back_at_its_end() -> None:
    """At night to zero; the usual minimum is ordered a lead before the window ends."""
    replicas = ReplicaTargets(minimum=2, maximum=8, idle_seconds=300.0, zero_at_times=True)
    targets = scheduled(window(least=0), targets=replace(REPLICAS_ONLY, replicas=replicas))
    told = run(Gated(rate=steady(0.0), replicas=2), targets).until(END + 60.0)
    assert {d.replicas_after for d in told.between(0.0, BEGIN - TICK)} == {2}
    assert told.at(END - 300.0).replicas_after == 0
    assert ready_at(told, END) == 2


def test_without_metrics_a_window_still_holds_its_minimum() -> None:
    """Prometheus is away: the clock is not."""
    gone = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE)
    told = run(World(rate=steady(1.0), replicas=2), scheduled(window(least=6))).until(900.0)
    told.world.problems = (gone,)
    told.until(BEGIN)
    assert told.decisions[-1].replicas_after == 6


def test_reports_name_the_windows_the_next_one_and_what_contradicts() -> None:
    """In status, gauges, log line and explanation."""
    other = window("30 0 * * *", 300.0, most=4)
    targets = scheduled(window(least=6, most=9), other)
    told = run(World(rate=steady(1.0), replicas=2), targets).until(1860.0)
    ahead, inside, cut = told.at(600.0), told.at(1500.0), told.at(1800.0)
    assert REPORT.of(ahead.features).windows == ()
    fields = status_fields(inside, generation=1, last_batch_change_seconds=None)["schedule"]
    assert (fields["min"], fields["max"]) == (6, 9)
    (own,) = fields["windows"]
    assert own == {
        "cron": TWENTY_PAST, "timeZone": "UTC", "min": 6, "max": 9,
        "begins": "1970-01-01T00:20:00Z", "ends": "1970-01-01T00:40:00Z",
    }  # fmt: skip
    assert fields["next"]["begins"] == "1970-01-01T00:30:00Z"
    assert "cutMin" not in fields
    gauges = {s.name: s.value for s in metric_samples(inside)}
    assert gauges["servingslo_schedule_min_replicas"] == 6
    assert gauges["servingslo_schedule_max_replicas"] == 9
    assert f"windows=\"min 6, max 9 by '{TWENTY_PAST}' UTC\"" in log_line(inside)
    assert "Schedule: at least 6, at most 9 now" in text(inside)
    assert f"Binds: min 6, max 9 by '{TWENTY_PAST}' UTC" in text(inside)
    assert "Binds: replicas.min" in text(ahead)
    assert "next: max 4 by '30 0 * * *' UTC, from 1970-01-01T00:30:00Z" in text(inside)
    assert (cut.replicas_after, REPORT.of(cut.features).cut_minimum) == (4, 6)
    assert "cut_min=6" in log_line(cut)
    assert "Bounds contradict: min 6 is above the max of a window" in text(cut)


def test_nothing_is_reported_without_a_schedule() -> None:
    """Neither in the status nor as gauges."""
    last = run(World(rate=steady(1.0), replicas=2)).until(60.0).decisions[-1]
    assert REPORT.of(last.features) is None
    assert status_fields(last, generation=1, last_batch_change_seconds=None)["schedule"] is None
    assert not [s for s in metric_samples(last) if "schedule" in s.name]


def test_each_pool_has_its_own_schedule_and_the_whole_reports_all() -> None:
    """The pool with a window gets its replicas, the other one does not."""
    pool = {"cost": {"gpuHourly": 1}, "replicas": {"max": 8}}
    own = {"max": 8, "schedule": [{"cron": TWENTY_PAST, "duration": "20m", "min": 4}]}
    fleet = fleet_from_spec(
        {
            "mode": "Auto",
            "objectives": [{"metric": "ttft", "percentile": 95, "threshold": "1s"}],
            "pools": [
                {**pool, "name": "h100", "targetRef": {"kind": "Deployment", "name": "h100"},
                 "replicas": own},
                {**pool, "name": "l4", "targetRef": {"kind": "Deployment", "name": "l4"}},
            ],
        }
    )  # fmt: skip
    decision = _planned(fleet, 1260.0)
    assert (decision.pools["h100"].replicas_after, decision.pools["l4"].replicas_after) == (4, 1)
    (told,) = REPORT.of(decision.features).windows
    assert isinstance(told, WindowReport)
    assert (told.pool, told.minimum) == ("h100", 4)


def _planned(fleet: FleetTargets, at: float):
    worlds = {pool.name: World(rate=steady(1.0), replicas=1) for pool in fleet.pools}
    state, decision = FleetState(), None
    for now in np.arange(at - 10 * TICK, at + TICK, TICK):
        seen = {
            name: replace(world.observe(float(now)), pool=name) for name, world in worlds.items()
        }
        decision, state = plan_fleet(seen, fleet, run(worlds["l4"]).limits, state, float(now))
    return decision


def night() -> Trace:
    """Few requests over four hours from midnight on, fewer than one replica serves."""
    random = np.random.default_rng(1)
    return generated(constant(0.1, 4 * 3600.0), uniform_lengths((50, 800), (10, 200)), random)


@pytest.mark.slow("servingslo.features.schedule", "servingslo.policy.planner")
@pytest.mark.timeout(900)
def test_in_a_backtest_the_window_begins_with_its_replicas_ready() -> None:
    """From two to three in the morning six replicas; before and after it one is enough."""
    targets = scheduled(window("0 2 * * *", 3600.0, least=6), targets=benchmark_targets())
    production = Production(
        replace(targets, replicas=ReplicaTargets(maximum=8)), Knobs(batching=False, admission=False)
    )
    result = simulate(FLEET, night(), production, seed=1, backend=INTERPRETED)
    ready = {tick.time_seconds: tick.ready for tick in result.ticks}
    begin, end = 2 * 3600.0, 3 * 3600.0
    assert ready[begin - 300.0] == 1
    assert {count for at, count in ready.items() if begin <= at < end} == {6}
    assert ready[end + 1800.0] == 1
