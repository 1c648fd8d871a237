"""Lanes of the simulated gateway: bounds by class, workers that send again, scores by class."""

from dataclasses import dataclass

import numpy as np

from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ClassSpec, FleetSpec
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.scoring import Objectives, score
from servingslo_lab.sim.traces.trace import Trace

OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
FLEET = FleetSpec(
    engine="l4-small", classes=(ClassSpec(name="chat"), ClassSpec(name="job", workers=8))
)


@dataclass
class Bounded:
    """Sets the bounds once and keeps what it observed."""

    bounds: dict
    seen: list

    def decide(self, observation):
        """One replica, the bounds at the first tick."""
        self.seen.append(observation)
        return Wanted(lanes={} if len(self.seen) > 1 else self.bounds)


def trace_of(job=60):
    """Chat each second for three minutes, and a job that is due after twenty seconds."""
    chat = np.arange(180.0)
    arrivals = np.concatenate([chat, np.full(job, 20.0)])
    order = np.argsort(arrivals, kind="stable")
    names = np.array(["chat"] * len(chat) + ["job"] * job)[order]
    return Trace(
        arrival_seconds=arrivals[order],
        prompt_tokens=np.full(len(arrivals), 200, dtype=np.int64),
        output_tokens=np.full(len(arrivals), 50, dtype=np.int64),
        duration_seconds=180.0,
        class_names=tuple(map(str, names)),
    )


def run(bounds, fleet=FLEET):
    """The result, its score, and what the autoscaler observed."""
    autoscaler = Bounded(bounds, [])
    result = simulate(fleet, trace_of(), autoscaler, seed=1)
    return result, score(result, OBJECTIVES, dollars_per_hour=1.0), autoscaler.seen


def test_a_lane_bounds_its_class_and_workers_send_again():
    """Two of the job are in flight at most, all are answered, later than without a bound."""
    result, told, seen = run({"job": 2})
    by_name = {one.name: one for one in told.classes}
    assert (result.status == layout.FINISHED).all()
    assert by_name["chat"].share_ratio == 1.0
    later = [one.classes["job"].instances[0] for one in seen[2:]]
    assert max(one.active for one in later) == 2.0
    assert later[-1].rejected_total > 0.0
    _, free, _ = run({})
    ends = {one.name: one.last_end_seconds for one in free.classes}
    assert ends["job"] < by_name["job"].last_end_seconds
