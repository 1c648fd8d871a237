"""Batch limits: recommended always, changed only where the administrator and the tenant allow."""

from pathlib import Path

from tests.integration.operator_under_test import (
    Tenant,
    steady_trace,
)

# Few enough sequences that more of them serve the same load with fewer replicas.
SMALL_BATCH = "--max-num-seqs=8"
RATE_PER_SECOND = 6.0
LEARNING_SECONDS = 150.0


def _generation(tenant: Tenant) -> int:
    found = tenant.apps.read_namespaced_deployment("chat", tenant.namespace)
    return int(found.metadata.annotations["deployment.kubernetes.io/revision"])


def test_a_shell_command_is_refused_with_a_reason(tenant: Tenant, tmp_path: Path) -> None:
    """Flags inside a shell script are read and never changed; the condition says why."""
    script = "exec vllm serve tiny --max-num-seqs 8 --max-num-batched-tokens 2048"
    tenant.create_deployment(replicas=2, command=["sh", "-c", script])
    trace = steady_trace(tmp_path / "trace.csv", rate=RATE_PER_SECOND, seconds=30)
    tenant.begin_traffic(trace, duration_seconds=600)
    tenant.create_slo(batching={"mode": "Auto", "minInterval": "10m"})
    tenant.wait_condition(
        "BatchingInSync", "False", "ArgumentsNotUnderstood", timeout_seconds=LEARNING_SECONDS
    )
    tenant.wait(
        lambda: tenant.status()["batching"]["current"].get("maxNumSeqs") == 8, what="8 in force"
    )
    assert _generation(tenant) == 1
