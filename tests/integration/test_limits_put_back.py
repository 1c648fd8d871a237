"""A GitOps tool that puts the container's arguments back, on a real API server."""

from pathlib import Path

import pytest
from tests.integration.canary_fleet import FEW, start_fleet
from tests.integration.operator_under_test import Engines, Operator

from servingslo_lab.rig.cluster import Rig

GITOPS = "argocd-controller"


@pytest.mark.slow("servingslo.adapters.kubernetes.batch_limits", "servingslo.policy.knobs.trial")
def test_limits_that_gitops_puts_back_are_left_alone_and_it_is_named(
    rig: Rig, engines: Engines, operator: Operator, tmp_path: Path
) -> None:
    """The canary is left, the field manager stands in condition and event, no other one begins."""
    fleet = start_fleet(rig, engines, tmp_path, "gitops")
    fleet.wait_begun(operator)
    former = fleet.first["template"]["spec"]["containers"][0]["args"]
    fleet.tenant.apps.patch_namespaced_deployment(
        "chat",
        fleet.tenant.namespace,
        {"spec": {"template": {"spec": {"containers": [{"name": "vllm", "args": former}]}}}},
        field_manager=GITOPS,
    )
    fleet.wait_ended(operator, 60.0)
    fleet.tenant.wait_condition("BatchingInSync", "False", "BatchingReverted")
    event = fleet.tenant.wait_event("BatchingReverted")
    for told in (fleet.tenant.message("BatchingInSync"), event):
        assert f"put back to max_num_seqs {FEW}" in told
        assert f"by {GITOPS}" in told
    assert fleet.changes(operator)[-1] == "BatchingLeftToUser"
    assert fleet.limit == FEW
    fleet.tenant.end_traffic()
    rig.delete_namespace(fleet.tenant.namespace)
