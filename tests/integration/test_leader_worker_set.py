"""LeaderWorkerSets with their own controller and webhooks: groups are scaled, and counted whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.lws_processes import (
    GROUP,
    GROUP_SIZE,
    PLURAL,
    create_set,
    groups,
    pods,
    ready_groups,
    run_controller,
    target,
)
from tests.integration.operator_under_test import Operator, Tenant, steady_trace
from tests.integration.test_pools import DECODE, NAME, PREFILL, begin, by_name, pools

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.versions import LWS

# One replica of these engines serves about six such requests per second.
SURGE_PER_SECOND = 11.0
PATIENCE_SECONDS = 240.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]
RIG_TOOLS = (LWS,)


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """One of its own: on others, tests write what this controller would write."""
    with Rig.start() as running:
        running.add_nodes(3)
        yield running


@pytest.fixture(scope="module")
def chart_settings(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The controller runs before the operator, and the administrator allows its kind."""
    run_controller(rig, tmp_path_factory.mktemp("lws"))
    first = "extraScalableKinds[0]"
    return (f"{first}.apiGroup={GROUP}", f"{first}.resource={PLURAL}")


def told(tenant: Tenant, name: str = "chat") -> tuple[int, int]:
    """Current and ready replicas in the status."""
    found = tenant.status(name).get("replicas") or {}
    return found.get("current", -1), found.get("ready", -1)


def is_whole(tenant: Tenant, name: str, count: int) -> bool:
    """Whether there are so many groups, each with all its pods."""
    wanted = {(str(group), str(place)) for group in range(count) for place in range(GROUP_SIZE)}
    return set(pods(tenant, name)) == wanted


def test_groups_are_ordered_and_released_as_replicas(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """A surge orders a group, which is one replica, and its end releases a whole group."""
    create_set(tenant, "chat")
    tenant.create_slo(targetRef=target("chat"), replicas={"min": 1, "max": 3})
    tenant.wait_condition("MetricsFresh", "True")
    assert told(tenant) == (1, 1)
    surge = steady_trace(tmp_path / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
    tenant.begin_traffic(surge, duration_seconds=900)
    tenant.wait(
        lambda: groups(tenant, "chat") > 1, what="a group", timeout_seconds=PATIENCE_SECONDS
    )
    tenant.wait(
        lambda: told(tenant) == (groups(tenant, "chat"),) * 2 and told(tenant)[0] > 1,
        what="the status counts the groups",
    )
    assert ready_groups(tenant, "chat") == groups(tenant, "chat")
    assert is_whole(tenant, "chat", groups(tenant, "chat"))
    tenant.end_traffic()
    tenant.wait(
        lambda: groups(tenant, "chat") == 1, what="one group", timeout_seconds=PATIENCE_SECONDS
    )
    tenant.wait(lambda: is_whole(tenant, "chat", 1), what="the pods of one group")
    tenant.wait(lambda: told(tenant) == (1, 1), what="the status counts one group")
    assert tenant.status()["target"] == "chat"


def test_a_group_is_ready_when_its_workers_are(tenant: Tenant) -> None:
    """The leader's own readiness is not enough: the count is that of the controller."""
    create_set(tenant, "chat", worker_delay="25s")
    tenant.create_slo(targetRef=target("chat"), replicas={"min": 1, "max": 3})
    tenant.wait(lambda: told(tenant) == (1, 1), what="its group is ready")
    tenant.patch_slo({"replicas": {"min": 2, "max": 3}})
    tenant.wait(lambda: is_whole(tenant, "chat", 2), what="the second group's pods")
    leader = pods(tenant, "chat")["1", "0"]

    def leads() -> bool:
        found = tenant.core.read_namespaced_pod(leader, tenant.namespace)
        return any(one.type == "Ready" and one.status == "True" for one in found.status.conditions)

    tenant.wait(leads, what="the second leader is ready")
    tenant.wait(lambda: told(tenant)[0] == 2, what="the second group is known")
    assert (told(tenant), ready_groups(tenant, "chat")) == ((2, 1), 1)
    tenant.wait(lambda: told(tenant) == (2, 2), what="the second group is ready")
    assert ready_groups(tenant, "chat") == 2


def test_pools_of_groups_follow_the_load(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """Long prompts order groups of prefill, and none of decode beyond the bound on GPUs."""
    for name in (PREFILL, DECODE):
        create_set(tenant, name)
    cost = {"gpuHourly": 2.0, "gpusPerReplica": GROUP_SIZE}
    spec = [
        {**pool, "targetRef": target(pool["targetRef"]["name"]), "cost": cost} for pool in pools()
    ]
    alone = {"targetRef": None, "replicas": None, "coldStart": None}
    tenant.create_slo(NAME, **alone, pools=spec, gpus=4 * GROUP_SIZE)
    tenant.wait_condition("MetricsFresh", "True", name=NAME)
    begin(tenant, tmp_path, rate=16.0, prompt=1500, output=10)
    tenant.wait(
        lambda: groups(tenant, PREFILL) == 3, what="3 of prefill", timeout_seconds=PATIENCE_SECONDS
    )
    tenant.wait(
        lambda: by_name(tenant)["prefill"]["replicas"].get("ready") == 3,
        what="the status counts the groups",
    )
    assert is_whole(tenant, PREFILL, 3)
    assert groups(tenant, DECODE) == 1
    status = by_name(tenant)
    assert status["prefill"]["target"] == f"LeaderWorkerSet/{PREFILL}"
    assert tenant.status(NAME)["target"] == f"{PREFILL} + 1 more"
