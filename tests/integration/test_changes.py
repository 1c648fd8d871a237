"""Each change that the operator makes, or tries, is one log line, one event and one count."""

from prometheus_client.parser import text_string_to_metric_families
from tests.integration.audit import audited_writes, told_changes
from tests.integration.operator_under_test import Operator, Tenant, ticks_pass

from servingslo_lab.rig.cluster import Rig


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
    rig: Rig, tenant: Tenant, operator: Operator, frozen_counts: str
) -> None:
    """What an admission policy refuses is a line, a count and the same event at every attempt."""
    tenant.create_deployment(replicas=1)
    tenant.wait_frozen()
    tenant.create_slo(replicas={"min": 3, "max": 8})
    message = tenant.wait_event("WriteFailed")
    assert message.startswith("replicas 1->3 not written: ")
    assert "counts are frozen" in message
    tenant.wait_condition("ScalingLimited", "True", "WriteFailed")
    tenant.wait_message("ScalingLimited", frozen_counts)
    tenant.wait(lambda: len(_told(operator, tenant)) >= 3, what="three attempts")
    assert set(_told(operator, tenant)) == {("refused", (("replicas", 3),))}
    assert set(_counts(operator, tenant)) == {("replicas", "refused", "WriteFailed")}
    assert _writes(rig, tenant) == []
    events = tenant.core.list_namespaced_event(
        tenant.namespace, field_selector="reason=WriteFailed"
    )
    (event,) = events.items
    assert event.count >= 2
    assert "Scaled" not in dict(tenant.events())
    assert tenant.status()["replicas"]["desired"] == 1
    assert not operator.log_lines("decided", tenant.namespace, "action=scale-up")
