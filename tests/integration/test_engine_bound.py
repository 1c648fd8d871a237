"""Admission by the engines' own bound: written with batch limits, one pod first, and enforced."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.canary_fleet import FEW, Fleet, start_fleet
from tests.integration.operator_under_test import Engines, Operator, steady_trace

from servingslo_lab.rig.cluster import Rig

VIA = {"mode": "Auto", "via": {"kind": "EngineArguments"}}
FLAG = "--max-num-queued-reqs="
# Far more than three of these engines serve.
CROWD_PER_SECOND = 60.0
VERIFIED_SECONDS = 240.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator lets pod templates be patched, with the engines' own bound too."""
    return ("batching.apply.enabled=true", "admission.kinds[0]=EngineArguments")


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart passes it on."""
    return ("--batching-apply=true", "--admission-kind=EngineArguments")


@pytest.fixture
def fleet(rig: Rig, engines: Engines, operator: Operator, tmp_path: Path) -> Iterator[Fleet]:
    """Engines with a batch that is too small, and no bound."""
    found = start_fleet(rig, engines, tmp_path, "queue", admission=VIA)
    yield found
    found.tenant.end_traffic()
    rig.delete_namespace(found.tenant.namespace)


def test_the_bound_comes_with_the_limits_and_holds(
    fleet: Fleet, operator: Operator, tmp_path: Path
) -> None:
    """One canary for both; in a crowd engines refuse, and the condition says that it holds."""
    tenant = fleet.tenant
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    assert fleet.changes(operator)[-1] == "BatchingChanged"
    fleet.wait_one_template()
    words = fleet.read()["spec"]["template"]["spec"]["containers"][0]["args"]
    bounds = [int(word.removeprefix(FLAG)) for word in words if word.startswith(FLAG)]
    assert len(bounds) == 1
    assert fleet.limit > FEW
    assert tenant.condition("AdmissionBound")[1] == "LimitUnverified"
    crowd = steady_trace(tmp_path / "crowd.csv", rate=CROWD_PER_SECOND, seconds=30)
    tenant.end_traffic()
    tenant.begin_traffic(crowd, duration_seconds=1800)
    tenant.wait(
        lambda: tenant.condition("AdmissionBound")[1] == "LimitVerified",
        what="the bound holds",
        timeout_seconds=VERIFIED_SECONDS,
    )
    assert fleet.changes(operator).count("BatchingCanaryStarted") == 1
