"""A crowd larger than replicas.max through a real Envoy: full, degraded, refused, and back."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.bursts import wait_for_answer
from tests.integration.gateway_manifests import AUTO, LAW, MANAGED
from tests.integration.operator_under_test import Operator, Tenant

from servingslo_lab.cli.demo.system import start_clients
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.envoy_front import EnvoyFront, policy_manifest
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending, read_records

SETTINGS = (
    "gateway.profile=envoy-gateway",
    "admission.kinds[0]=BackendTrafficPolicy",
    "degradation.enabled=true",
)
MOST_SHARE = 0.3
# When, in seconds, and which share of what the one replica carries within the objectives arrives;
# in between, along a line. The crowd grows so slowly that the steps follow: 30 s each, and each at
# most twice the one before. A jump is refused until they have.
KNOTS = (
    (0.0, 0.6),
    (30.0, 0.95),
    (330.0, 1.75),
    (360.0, 2.6),
    (390.0, 2.6),
    (420.0, 0.3),
    (620.0, 0.3),
)
DEGRADATION = {"route": "chat", "fallback": "small", "maxShare": MOST_SHARE}
# Records of so many seconds before the first refusal say where requests went then.
LOOK_SECONDS = 20.0
# Requests by which the operator learns what one l4-small carries of them, and for how long.
FIRST_RATE, FIRST_SECONDS = 3.0, 60.0


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator allows weights and bounds."""
    return SETTINGS


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart would start it."""
    return (
        "--gateway-profile=envoy-gateway",
        "--admission-kind=BackendTrafficPolicy",
        "--degradation=true",
    )


@pytest.fixture
def front(rig: Rig, tenant: Tenant) -> Iterator[EnvoyFront]:
    """Envoy before one replica, with a fallback of weight 0 in its route."""
    tenant.create_deployment(replicas=1)
    found = EnvoyFront(rig, tenant.namespace)
    found.create("chat", fallback="small")
    found.put_policy(policy_manifest("chat", route="chat", labels=MANAGED))
    with rig.scrape_plan_kept():
        found.start()
        wait_for_answer(found.url)
        yield found
        found.stop()


def _trace(path: Path, knots: Sequence[tuple[float, float]]) -> Path:
    """Requests at a rate that is given at some times, in seconds, and lies on lines in between."""
    times = np.arange(knots[0][0], knots[-1][0], 0.1)
    rates = np.interp(times, *zip(*knots, strict=True))
    arrived = np.cumsum(rates) * 0.1
    at = np.interp(np.arange(1.0, arrived[-1]), arrived, times)
    lines = (f"{one:.4f},512,128" for one in at)
    path.write_text("\n".join(["arrival_seconds,prompt_tokens,output_tokens", *lines]) + "\n")
    return path


def _send(
    rig: Rig, front: EnvoyFront, folder: Path, name: str, knots: Sequence[tuple[float, float]]
) -> Any:
    """Clients that send at these rates, and where their records are."""
    name = f"{front.namespace}-{name}"
    plan = {
        "url": front.url,
        "timeout_seconds": 60.0,
        "traffic": {
            "name": name,
            "namespace": front.namespace,
            "selector": {},
            "trace": str(_trace(folder / f"{name}.csv", knots)),
            "duration_seconds": knots[-1][0],
        },
    }
    return start_clients(rig, name, plan)


def _carried_by_one(rig: Rig, operator: Operator, front: EnvoyFront, folder: Path) -> float:
    """Requests per second that one replica carries within the objectives, as the operator says.

    By its gauge, which is of the last tick: the status keeps a number until a decision changes.
    """
    knots = [(0.0, FIRST_RATE), (FIRST_SECONDS, FIRST_RATE)]
    clients, _ = _send(rig, front, folder, "measure", knots)
    rig.wait_for(lambda: not clients.running, what="the clients end", timeout_seconds=180.0)
    (carried,) = (
        float(line.rpartition(" ")[2])
        for line in operator.metrics().splitlines()
        if line.startswith("servingslo_admitted_requests_per_second{")
        and f'namespace="{front.namespace}"' in line
    )
    return carried


def _weight_changes(operator: Operator, tenant: Tenant) -> list[str]:
    return operator.log_lines("changed", f"namespace={tenant.namespace}", "knob=route-weights")


def _shares(lines: list[str]) -> list[int]:
    """Shares in thousandths that were written."""
    written = (line.partition("fallback_thousandths=")[2].split(" ")[0] for line in lines)
    return [int(one.rpartition(">")[2]) for one in written]


@pytest.mark.acceptance
@pytest.mark.timeout(1200)
def test_a_crowd_is_served_then_degraded_then_refused_and_back(
    rig: Rig, tenant: Tenant, front: EnvoyFront, operator: Operator, tmp_path: Path
) -> None:
    """In that order by the clients' own records; then the owner's weights stand there again."""
    tenant.create_deployment("small", replicas=2)
    before = front.route("chat")["spec"]
    tenant.create_slo(
        replicas={"min": 1, "max": 1},
        serviceLaw=LAW,
        admission=AUTO,
        degradation=DEGRADATION,
    )
    carried = _carried_by_one(rig, operator, front, tmp_path)
    knots = [(at, ratio * carried) for at, ratio in KNOTS]
    clients, path = _send(rig, front, tmp_path, "crowd", knots)
    tenant.wait_condition("FallbackUsable", "True", "NotDegraded")
    whole = KNOTS[-1][0]
    rig.wait_for(lambda: not clients.running, what="clients end", timeout_seconds=whole + 180.0)
    tenant.wait(lambda: front.weights("chat") == [1, 0], what="the owner's weights")
    records = sorted(read_records(path), key=lambda one: one.arrival_seconds)

    degraded = [r.arrival_seconds for r in records if _is_from(r, "small")]
    refused = [r.arrival_seconds for r in records if r.ending is Ending.REFUSED]
    assert degraded
    assert refused
    before_refusals = [r for r in records if 0.0 < refused[0] - r.arrival_seconds < LOOK_SECONDS]
    to_fallback = sum(_is_from(r, "small") for r in before_refusals)
    assert degraded[0] < refused[0] - LOOK_SECONDS
    assert to_fallback > 0.5 * MOST_SHARE * len(before_refusals)
    assert refused[-1] < degraded[-1] < whole - 30.0
    assert all(_is_from(r, "chat") for r in records if r.arrival_seconds > whole - 30.0)

    changes = _weight_changes(operator, tenant)
    assert "no further replica: MaxReplicasReached" in changes[0]
    shares = _shares(changes)
    assert max(shares) == 1000 * MOST_SHARE
    assert all(b <= max(50, 2 * a) for a, b in itertools.pairwise([0, *shares]))
    assert front.route("chat")["spec"] == before
    assert not front.route("chat")["metadata"].get("annotations")


def _is_from(record: ClientRecord, backend: str) -> bool:
    return record.ending is Ending.FINISHED and record.served_by == backend


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_a_fallback_that_is_full_is_not_used_further(
    rig: Rig, tenant: Tenant, front: EnvoyFront, operator: Operator, tmp_path: Path
) -> None:
    """It runs one request at a time and lets one wait: by its own refusals, the share goes back."""
    tenant.create_deployment("small", args=["--max-num-seqs=1", "--max-num-queued-reqs=1"])
    tenant.create_slo(
        replicas={"min": 1, "max": 1}, serviceLaw=LAW, admission=AUTO, degradation=DEGRADATION
    )
    carried = _carried_by_one(rig, operator, front, tmp_path)
    clients, _ = _send(
        rig, front, tmp_path, "crowd", [(0.0, 2.0 * carried), (150.0, 2.0 * carried)]
    )
    tenant.wait_condition("FallbackUsable", "False", "FallbackFull", timeout_seconds=240.0)
    tenant.wait(
        lambda: any("reason=FallbackFull" in line for line in _weight_changes(operator, tenant)),
        what="the share goes back",
    )
    highest = max(_shares(_weight_changes(operator, tenant)))
    rig.wait_for(lambda: not clients.running, what="clients end", timeout_seconds=420.0)
    shares = _shares(_weight_changes(operator, tenant))
    assert max(shares) == highest
    after = shares[shares.index(highest) + 1 :]
    assert max(after) == after[0] < highest
