"""What a buffer saves where a cold start takes 300 s, of which most is the node."""

from dataclasses import replace

import pytest
from tests.features.node_buffer.buffered_fleet import (
    COURSES,
    FLEET,
    NODE_SECONDS,
    WAYS,
    played,
    trace_of,
)
from tests.unit.sim_fleets import Script

from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, NodeSpec
from servingslo_lab.sim.replicas.backend import INTERPRETED
from servingslo_lab.sim.traces.workloads import constant

CERTAIN = ColdStart(mean_seconds=NODE_SECONDS, variation_ratio=0.0)
PODS = ColdStart(mean_seconds=60.0, variation_ratio=0.0)
END = 1200.0


def ready_seconds(*steps: tuple[float, Wanted]) -> tuple[list[float | None], float]:
    """When each pod of a script became ready after its order, and the paid node-seconds."""
    fleet = replace(
        FLEET,
        cold_start=PODS,
        nodes=NodeSpec(start=CERTAIN, idle_seconds=60.0),
        initial_replicas=1,
    )
    script = Script(*steps)
    trace = trace_of(constant(0.05, END), 1)
    result = simulate(fleet, trace, script, seed=1, backend=INTERPRETED)
    pods = script.seen[-1].pods
    return [pod.ready_after_seconds for pod in pods], result.replica_seconds


def test_a_pod_waits_for_a_node_and_not_for_one_that_was_kept_free() -> None:
    """300 s without, 60 s with it; a node is paid from its order on."""
    times, paid = ready_seconds((300.0, Wanted(replicas=2)))
    assert times[1] == pytest.approx(NODE_SECONDS + 60.0)
    assert paid == pytest.approx(END + (END - 300.0))
    times, paid = ready_seconds(
        (45.0, Wanted(nodes_ahead=1)), (300.0, Wanted(replicas=2, nodes_ahead=0))
    )
    assert times[1] == pytest.approx(60.0)
    assert paid == pytest.approx(END + (END - 45.0))


def test_a_node_that_nothing_needs_goes_after_a_while() -> None:
    """What was kept free and is not any more is paid for one minute longer."""
    _, paid = ready_seconds((45.0, Wanted(nodes_ahead=1)), (600.0, Wanted(nodes_ahead=0)))
    assert paid == pytest.approx(END + (600.0 - 45.0) + 60.0)


@pytest.mark.slow("servingslo.features.node_buffer", "servingslo.policy.planner")
@pytest.mark.timeout(1800)
def test_in_a_ramp_it_keeps_requests_that_wait_for_nodes_would_cost() -> None:
    """Two points of share for a tenth of the node-hours at most."""
    shares, hours = {}, {}
    for way in ("nothing", "stated"):
        run, _ = played(WAYS[way], COURSES["ramp"], 1)
        shares[way], hours[way] = run.share_in_slo(1.0, 0.05), run.replica_hours
    assert shares["stated"] - shares["nothing"] > 0.02
    assert hours["stated"] < 1.1 * hours["nothing"]
