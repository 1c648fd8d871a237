"""Batch limits: recommended always, changed only where the administrator and the tenant allow."""

from pathlib import Path

import pytest
from tests.integration.operator_under_test import (
    Operator,
    Tenant,
    steady_trace,
    ticks_pass,
)

# Few enough sequences that more of them serve the same load with fewer replicas.
SMALL_BATCH = "--max-num-seqs=8"
RATE_PER_SECOND = 6.0
LEARNING_SECONDS = 150.0

pytestmark = pytest.mark.slow(
    "servingslo.adapters.kubernetes.batch_limits", "servingslo.policy.knobs"
)


@pytest.fixture
def small_batch(tenant: Tenant, tmp_path: Path) -> Tenant:
    """A tenant under load whose engines run with a batch that is too small."""
    tenant.create_deployment(replicas=2, args=[SMALL_BATCH])
    trace = steady_trace(tmp_path / "trace.csv", rate=RATE_PER_SECOND, seconds=30)
    tenant.begin_traffic(trace, duration_seconds=600)
    return tenant


def _generation(tenant: Tenant) -> int:
    found = tenant.apps.read_namespaced_deployment("chat", tenant.namespace)
    return int(found.metadata.annotations["deployment.kubernetes.io/revision"])


def test_a_larger_batch_rolls_out_once(small_batch: Tenant, operator: Operator) -> None:
    """In mode Auto the flag in the pod template changes, in one rollout, and then rests."""
    tenant = small_batch
    tenant.create_slo(batching={"mode": "Auto", "rollout": "AllAtOnce", "minInterval": "10m"})
    tenant.wait(
        lambda: SMALL_BATCH not in tenant.arguments(),
        what="a change of the batch limit",
        timeout_seconds=LEARNING_SECONDS,
    )
    changed = tenant.arguments()
    # Everything else stays as it came, and the flag keeps its place and form.
    assert [word for word in changed if not word.startswith("--max-num-")] == ["--model=tiny"]
    assert len(changed) == 4
    assert int(changed[-1].removeprefix("--max-num-seqs=")) > 8
    tenant.wait(lambda: _generation(tenant) == 2, what="its rollout")
    tenant.wait(
        lambda: tenant.status().get("batching", {}).get("current", {}).get("maxNumSeqs", 0) > 8,
        what="the new limit in force",
        timeout_seconds=60,
    )
    tenant.wait_event("BatchingChanged")
    ticks_pass(operator, 2)
    assert tenant.arguments() == changed
    assert _generation(tenant) == 2
    tenant.wait(lambda: bool(tenant.status()["batching"].get("lastChange")), what="its time")
    needles = (" changed ", f"namespace={tenant.namespace} ", "knob=batch-limits")
    tenant.wait_line(operator, *needles)
    (line,) = operator.log_lines(*needles)
    assert "outcome=written" in line
    assert f"max_num_seqs=8->{changed[-1].removeprefix('--max-num-seqs=')} " in line
    counted = 'knob="batch-limits",name="chat"'
    sample = f"servingslo_changes_total{{{counted}"
    tenant.wait(lambda: sample in operator.metrics(), what=sample)
