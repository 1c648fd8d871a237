"""A controller that puts the count back each time, on a real API server."""

import time

from tests.integration.operator_under_test import Operator, Tenant

FIGHT_SECONDS = 25.0
# The operator looks once a second, so undisturbed it would write at nearly every look.
FEW_WRITES = 5


def test_who_puts_the_count_back_is_named_and_left_alone(
    tenant: Tenant, operator: Operator
) -> None:
    """Three reverts, then a pause: told in condition, event and log by the field manager's name."""
    tenant.create_deployment(replicas=1)
    tenant.create_slo(replicas={"min": 3, "max": 4})
    deadline = time.monotonic() + FIGHT_SECONDS
    reverts = 0
    while time.monotonic() < deadline:
        if tenant.replicas() != 1:
            tenant.apps.patch_namespaced_deployment_scale(
                "chat",
                tenant.namespace,
                {"spec": {"replicas": 1}},
                field_manager="argocd-controller",
            )
            reverts += 1
        time.sleep(0.2)
    assert 3 <= reverts <= FEW_WRITES
    tenant.wait_condition("ScalingLimited", "True", "ReplicasReverted")
    said = f"put back to 1 {reverts} times in a row by argocd-controller"
    tenant.wait_message("ScalingLimited", said)
    assert said in tenant.wait_event("ReplicasReverted")
    assert operator.log_lines("reason=ReplicasReverted", "argocd-controller")
    assert tenant.replicas() == 1
