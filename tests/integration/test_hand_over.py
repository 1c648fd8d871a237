"""The count in others' hands: what KEDA's trigger is told, and that nobody else writes it."""

from typing import Any

import pytest
from tests.integration.audit import audited_writes
from tests.integration.keda_manifests import SCALED_OBJECTS, documented
from tests.integration.operator_under_test import Engines, Operator, Tenant, ticks_pass
from tests.integration.promql import series_of

from servingslo_lab.rig.cluster import Rig

# The operator looks for a CRD that is not installed this often.
ABSENT_CRD_SECONDS = 45.0
# A pod without metrics is given this long after it became ready, then they count as missing.
GRACE_SECONDS = 75.0


def _told(rig: Rig, scaled_object: dict[str, Any]) -> list[str]:
    """What the trigger's query answers, as KEDA asks it."""
    (trigger,) = scaled_object["spec"]["triggers"]
    return [
        series["value"][1] for series in series_of(rig.prometheus_url, trigger["metadata"]["query"])
    ]


@pytest.mark.usefixtures("keda_crds")
def test_keda_is_told_the_count_and_nobody_else_sets_it(
    rig: Rig, operator: Operator, tenant: Tenant, engines: Engines
) -> None:
    """The documented ScaledObject is valid, no conflict, and its query answers with the count."""
    rig.configure_prometheus(static_targets={"servingslo": [operator.metrics_address]})
    tenant.create_deployment(replicas=2)
    tenant.create_slo(actuation="Metric", replicas={"min": 3, "max": 4})
    tenant.wait_condition("ScalingLimited", "True", "NobodyScales")
    scaled_object = documented("type: prometheus", tenant.namespace, "chat")
    tenant.custom.create_namespaced_custom_object(
        namespace=tenant.namespace, body=scaled_object, field_validation="Strict", **SCALED_OBJECTS
    )
    tenant.wait(lambda: _told(rig, scaled_object) == ["3"], what="KEDA is told 3")
    tenant.wait(
        lambda: "ScaledObject/chat" in tenant.message("Ready"),
        what="the ScaledObject is known",
        timeout_seconds=ABSENT_CRD_SECONDS,
    )
    tenant.wait_condition("Ready", "True", "Ready")
    tenant.wait(
        lambda: tenant.condition("ScalingLimited")[1] != "NobodyScales", what="somebody scales"
    )
    ticks_pass(operator)
    assert tenant.replicas() == 2
    assert tenant.status()["replicas"]["desired"] == 3

    tenant.scale(4)  # as KEDA's HPA does, here one too many
    tenant.wait(lambda: tenant.status()["replicas"]["current"] == 4, what="4 are seen")
    # What was seen for seconds only is not given back yet, whoever would carry it out.
    tenant.wait(lambda: _told(rig, scaled_object) == ["4"], what="none of them is given back yet")
    tenant.wait(
        lambda: operator.log_lines("decided", tenant.namespace, "replicas=4", "reason=WarmingUp"),
        what="the reason is told",
    )
    ticks_pass(operator)
    assert tenant.replicas() == 4
    assert "ReplicasChangedByUser" not in dict(tenant.events())
    tenant.wait_line(operator, "decided", "actuation=Metric")

    for pod in tenant.pods():
        engines.break_pod(tenant.namespace, pod, "empty")
    tenant.wait(
        lambda: _told(rig, scaled_object) == [],
        what="no number without metrics",
        timeout_seconds=GRACE_SECONDS,
    )
    assert tenant.replicas() == 4
    lines = rig.audit_log.read_text(encoding="utf-8").splitlines()
    assert [w for w in audited_writes(lines) if w.namespace == tenant.namespace] == []
