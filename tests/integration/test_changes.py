"""Each change that the operator makes, or tries, is one log line, one event and one count."""

from collections.abc import Iterator

import kubernetes
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.audit import audited_writes, told_changes
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo.rig.cluster import Rig
from servingslo.rig.waiting import wait_until


def _told(operator: Operator, tenant: Tenant) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    """Outcome and values of each change in the log, of this tenant."""
    lines = operator.log_lines("changed ", f"namespace={tenant.namespace} ")
    return [(outcome, write.values) for outcome, write in told_changes(lines)]


def _counts(operator: Operator, tenant: Tenant) -> dict[tuple[str, str, str], float]:
    return {
        (sample.labels["knob"], sample.labels["outcome"], sample.labels["reason"]): sample.value
        for family in text_string_to_metric_families(operator.metrics())
        for sample in family.samples
        if sample.name == "servingslo_changes_total"
        and sample.labels["namespace"] == tenant.namespace
    }


def _writes(rig: Rig, tenant: Tenant) -> list[tuple[tuple[str, int], ...]]:
    """Values of each write to this tenant's targets, by the audit log."""
    lines = rig.audit_log.read_text(encoding="utf-8").splitlines()
    return [w.values for w in audited_writes(lines) if w.namespace == tenant.namespace]


@pytest.fixture
def frozen(rig: Rig, tenant: Tenant) -> Iterator[None]:
    """An admission policy of the cluster that refuses every change of a count in the namespace."""
    admission = kubernetes.client.AdmissionregistrationV1Api(rig.api_client())
    name = f"frozen-{tenant.namespace}"
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["deployments/scale"],
    }
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "counts are frozen"}],
        },
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": tenant.namespace}}
    binding = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    admission.create_validating_admission_policy(policy)
    admission.create_validating_admission_policy_binding(binding)
    yield
    admission.delete_validating_admission_policy_binding(name)
    admission.delete_validating_admission_policy(name)


def test_a_count_that_was_written_is_told_in_all_three(
    rig: Rig, tenant: Tenant, operator: Operator
) -> None:
    """Log, event and counter name the change once, and the audit log has the same write."""
    tenant.create_deployment(replicas=1)
    tenant.create_slo(replicas={"min": 3, "max": 8})
    message = tenant.wait_event("Scaled")
    ticks_pass(operator)
    assert message == "replicas 1->3: MinReplicasReached"
    assert _told(operator, tenant) == [("written", (("replicas", 3),))]
    assert _counts(operator, tenant) == {("replicas", "written", "MinReplicasReached"): 1}
    assert _writes(rig, tenant) == [(("replicas", 3),)]


def test_a_count_that_is_refused_is_told_each_time(
    rig: Rig, tenant: Tenant, operator: Operator, frozen: None
) -> None:
    """What an admission policy refuses is a line, a count and the same event at every attempt."""
    tenant.create_deployment(replicas=1)

    def denied() -> bool:
        try:
            tenant.apps.patch_namespaced_deployment_scale(
                "chat", tenant.namespace, {"spec": {"replicas": 2}}, dry_run="All"
            )
        except kubernetes.client.ApiException:
            return True
        return False

    wait_until(denied, what="the policy is in force")
    tenant.create_slo(replicas={"min": 3, "max": 8})
    message = tenant.wait_event("WriteFailed")
    assert message.startswith("replicas 1->3 not written: ")
    assert "counts are frozen" in message
    tenant.wait(lambda: len(_told(operator, tenant)) >= 3, what="three attempts")
    assert set(_told(operator, tenant)) == {("refused", (("replicas", 3),))}
    assert set(_counts(operator, tenant)) == {("replicas", "refused", "WriteFailed")}
    assert _writes(rig, tenant) == []
    events = tenant.core.list_namespaced_event(
        tenant.namespace, field_selector="reason=WriteFailed"
    )
    (event,) = events.items
    assert event.count >= 2
