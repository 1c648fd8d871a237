"""Batch limits reach one pod first, on engines that do not quite obey the law.

All fleets of a module live at the same time: each takes minutes, most of which is waiting.
"""

from collections.abc import Iterator

import pytest
from tests.integration.canary_fleet import (
    BUSY_PER_SECOND,
    FEW,
    REPLICAS,
    STEP_IN_THE_LAW,
    Fleet,
    start_fleet,
)
from tests.integration.operator_under_test import Engines, Operator

from servingslo_lab.rig.cluster import Rig

# What is about a whole canary, from minutes of learning to the verdict of one more.
slow = pytest.mark.slow(
    "servingslo.features.batch_limits",
    "servingslo.policy.knobs.trial",
    "servingslo.controller.actuators",
)
SMALL_NODE = {"rig.servingslo.dev/pool": "full"}


@pytest.fixture(scope="module")
def fleets(
    rig: Rig, engines: Engines, operator: Operator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Fleet]]:
    """Fleets of this module, all under load at once."""
    folder = tmp_path_factory.mktemp("traces")
    rig.add_nodes(1, gpus_per_node=REPLICAS, labels=SMALL_NODE)
    found = {
        # First: pods of the others may be scheduled onto any node with a GPU left.
        "full": start_fleet(rig, engines, folder, "full", node=SMALL_NODE),
        "good": start_fleet(rig, engines, folder, "good"),
        "set": start_fleet(rig, engines, folder, "set", kind="StatefulSet"),
        "bad": start_fleet(
            rig, engines, folder, "bad", uneven=STEP_IN_THE_LAW, rate=BUSY_PER_SECOND
        ),
    }
    yield found
    for fleet in found.values():
        fleet.tenant.end_traffic()
        rig.delete_namespace(fleet.tenant.namespace)


@slow
@pytest.mark.parametrize("name", ["good", "set"])
def test_good_limits_reach_all_pods_after_one(
    fleets: dict[str, Fleet], operator: Operator, name: str
) -> None:
    """One pod, the verdict, then the rollout that its owner had asked for, to the letter."""
    fleet = fleets[name]
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    told = fleet.changes(operator)
    assert told[0] == "BatchingCanaryStarted"
    assert told[-1] == "BatchingChanged"
    assert fleet.limit > FEW
    fleet.wait_one_template()
    rollout = {key: value for key, value in fleet.without_ours().items() if key != "template"}
    assert rollout == {key: value for key, value in fleet.first.items() if key != "template"}
    fleet.tenant.wait_event("BatchingCanaryStarted")
    fleet.tenant.wait_event("BatchingChanged")


@slow
def test_limits_that_serve_worse_are_taken_back_to_the_letter(
    fleets: dict[str, Fleet], operator: Operator
) -> None:
    """A step in the law beyond the former limit: the canary is worse, and its template goes."""
    fleet = fleets["bad"]
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    told = fleet.changes(operator)
    assert told[0] == "BatchingCanaryStarted"
    assert told[-1] == "BatchingRolledBack"
    assert fleet.without_ours() == fleet.first
    fleet.wait_one_template()
    fleet.tenant.wait_event("BatchingRolledBack")
    told = [text for why, text in fleet.tenant.events() if why == "BatchingRolledBack"]
    assert any("elsewhere" in text for text in told)
