"""The pods of a canary: one that never gets ready, and counts that change while it is watched."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.canary_fleet import FEW, REPLICAS, Fleet, start_fleet
from tests.integration.operator_under_test import Engines, Operator

from servingslo_lab.rig.cluster import Rig

FAILURE_ANNOTATION = "rig.servingslo.dev/failure"
GROWN = REPLICAS + 1

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]


@pytest.fixture
def growing(
    rig: Rig, engines: Engines, operator: Operator, tmp_path: Path
) -> Iterator[tuple[Fleet, Fleet]]:
    """One of each kind, under load at once."""
    found = (
        start_fleet(rig, engines, tmp_path, "grown"),
        start_fleet(rig, engines, tmp_path, "grown-set", kind="StatefulSet"),
    )
    yield found
    for fleet in found:
        fleet.tenant.end_traffic()
        rig.delete_namespace(fleet.tenant.namespace)


@pytest.fixture
def hanging(rig: Rig, engines: Engines, operator: Operator, tmp_path: Path) -> Iterator[Fleet]:
    """One more, whose new pod is to crash as soon as it is there."""
    fleet = start_fleet(rig, engines, tmp_path, "hang", kind="StatefulSet")
    yield fleet
    fleet.tenant.end_traffic()
    rig.delete_namespace(fleet.tenant.namespace)


def test_a_stateful_set_replaces_a_canary_that_crashes(hanging: Fleet, operator: Operator) -> None:
    """Its last pod crashes with the new limits: the former template, and a pod of it."""
    fleet = hanging
    core, namespace = fleet.tenant.core, fleet.tenant.namespace
    name = f"chat-{REPLICAS - 1}"
    fleet.wait_begun(operator)

    def broken() -> bool:
        found = [
            pod
            for pod in core.list_namespaced_pod(namespace).items
            if pod.metadata.name == name
            and f"--max-num-seqs={FEW}" != pod.spec.containers[0].args[-1]
            and not pod.metadata.deletion_timestamp
        ]
        for pod in found:
            note = {
                "metadata": {
                    "uid": pod.metadata.uid,
                    "annotations": {FAILURE_ANNOTATION: "crash-loop"},
                }
            }
            core.patch_namespaced_pod(name, namespace, note)
        return bool(found)

    fleet.tenant.wait(broken, what="the new pod crashes")
    fleet.wait_ended(operator)
    assert fleet.without_ours() == fleet.first
    fleet.wait_one_template()
    fleet.tenant.wait_event("BatchingCanaryFailed")


def test_replicas_go_on_scaling_while_a_canary_is_watched(
    growing: tuple[Fleet, Fleet], operator: Operator
) -> None:
    """One more is asked for meanwhile: it comes, the canary stands, and ends with its verdict."""
    asked: set[str] = set()
    came: set[str] = set()

    def both_came() -> bool:
        for fleet in growing:
            name = fleet.tenant.namespace
            if name not in asked and fleet.canary:
                fleet.tenant.patch_slo({"replicas": {"min": GROWN, "max": GROWN}})
                asked.add(name)
            if name in asked and name not in came and fleet.ready() == GROWN:
                assert fleet.canary
                came.add(name)
        return len(came) == len(growing)

    growing[0].tenant.wait(both_came, what="a further replica of each", timeout_seconds=600.0)
    for fleet in growing:
        fleet.wait_over(operator)
        assert fleet.changes(operator)[-1] == "BatchingChanged"
        fleet.wait_one_template(GROWN)
        assert fleet.limit > FEW
