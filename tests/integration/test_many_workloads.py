"""At constant demand many workloads are known as one is: laws, rates, and nothing ordered.

The larger one has 140 resources with 600 pods.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.integration.many_workloads import ManyWorkloads, Watched, orders
from tests.integration.operator_under_test import Engines, Operator, install_chart

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

# Of a tick and a scrape. One tick of 140 resources takes a second or two beside the rig.
TICK_SECONDS = 5.0
# A law needs eight windows with histograms; in turns each engine has one in two or three ticks.
LEARNT_WITHIN_SECONDS = 480.0
QUIET_TICKS = 12
# What was ordered while laws were learnt may be given back when demand was seen for two minutes.
SETTLED_SECONDS = 120.0
# A law that still becomes better may move one count in twenty from what is needed.
MOVED_SHARE = 0.05
_ORDER = re.compile(r" namespace=(\S+) name=(\S+) .* replicas=(\d+)->(\d+) ")
# Of a workload's mean over these ticks; in one window of 5 s some thirty requests come, and of it a
# scrape that is answered half a second late on a busy machine is 10 %.
RATE_ERROR = 0.1
# Of one tick: rates that a late turn had falsified were nothing, or 4.7 times the truth.
RATE_ERROR_OF_A_TICK = 0.8
# A liveness probe of the kubelet waits so long (Kubernetes, probe timeoutSeconds).
PROBE_SECONDS = 1.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]


@pytest.fixture(
    params=[
        # Few, and yet read in turns.
        pytest.param((40, 160, "tests.integration.turns_operator"), id="40"),
        pytest.param((140, 600, "servingslo.cli"), id="140"),
    ]
)
def running(
    rig: Rig, audited: None, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[ManyWorkloads, Operator]]:
    """The workloads, with engines of their own, and the operator on all of them."""
    resources, pods, program = request.param
    with rig.scrape_plan_kept():
        host = Engines(rig)
        rig.configure_prometheus(http_sd_url=f"{host.url}/sd", scrape_interval_seconds=TICK_SECONDS)
        install_chart(rig)
        operator = Operator(
            rig,
            f"--tick-seconds={TICK_SECONDS:g}",
            "--prometheus-timeout-seconds=5",
            name="operator-of-many",
            program=program,
        )
        many = ManyWorkloads(rig=rig, engines=host, resources=resources, pods=pods, folder=tmp_path)
        try:
            many.create()
            operator.start()
            yield many, operator
        finally:
            operator.stop()
            many.delete()
            host.process.stop()


def moves_away(line: str, needed: Mapping[tuple[str, str], int]) -> bool:
    """Whether a changed count went from what is needed, by the line about it."""
    order = _ORDER.search(line)
    assert order is not None, line
    count = needed[order[1], order[2]]
    return abs(int(order[4]) - count) > abs(int(order[3]) - count)


def test_many_workloads_at_constant_demand_are_known_as_one_and_left_alone(
    running: tuple[ManyWorkloads, Operator], record_property: Callable[[str, object], None]
) -> None:
    """Every law is trusted, every rate true, and no count goes from what is needed.

    What was ordered before laws were known may be given back, whenever it is known to be safe.
    """
    many, operator = running
    with Watched(operator) as watched:
        wait_until(
            lambda: many.seen(operator).trusted == many.resources,
            what="a trusted law of every workload",
            timeout_seconds=LEARNT_WITHIN_SECONDS,
            interval_seconds=TICK_SECONDS,
        )
        learning = orders(operator)
        time.sleep(SETTLED_SECONDS)
        before = orders(operator)
        seen = []
        for _ in range(QUIET_TICKS):
            time.sleep(TICK_SECONDS)
            seen.append(many.seen(operator))
    worst = max(one.worst_rate_error for one in seen)
    means = np.mean([one.rate_ratios for one in seen], axis=0)
    wrong = float(np.abs(means - 1.0).max())
    ordered, left = orders(operator)[len(before) :], many.superfluous()
    away = [line for line in ordered if moves_away(line, many.needed)]
    record_property("ordered_before_laws", len(learning))
    record_property("given_back_after", len(before) - len(learning))
    record_property("moved_at_rest", len(ordered))
    record_property("superfluous", sum(left))
    record_property("worst_rate_error", wrong)
    record_property("worst_rate_error_of_a_tick", worst)
    record_property("tick_seconds", sorted(watched.tick_seconds))
    record_property("slowest_probe_seconds", max(watched.probe_seconds))
    record_property("peak_mebibytes", watched.peak_mebibytes)
    assert len(away) <= MOVED_SHARE * many.resources, away
    assert sum(count < 0 for count in left) <= MOVED_SHARE * many.resources, left
    assert worst <= RATE_ERROR_OF_A_TICK
    assert wrong <= RATE_ERROR, means
    assert watched.refused_probes == 0
    assert max(watched.probe_seconds) < PROBE_SECONDS
