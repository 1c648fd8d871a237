"""Batch limits: recommended always, changed only where the administrator and the tenant allow."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import kubernetes
import pytest
from tests.integration.operator_under_test import (
    SERVICE_ACCOUNT,
    Operator,
    Tenant,
    steady_trace,
    ticks_pass,
)

from servingslo.adapters.kubernetes.api.client import connect
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.batch_limits.writer import KubernetesBatching
from servingslo.errors import WriteConflictError
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import EngineArguments
from servingslo_lab.rig.cluster import Rig

# Few enough sequences that more of them serve the same load with fewer replicas.
SMALL_BATCH = "--max-num-seqs=8"
RATE_PER_SECOND = 6.0
LEARNING_SECONDS = 150.0


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


@pytest.fixture
def writer(rig: Rig, tenant: Tenant, operator: Operator) -> Path:
    """A kubeconfig with the operator's permissions in the tenant's namespace, of another account.

    What it writes stands in no operator's log, so it is none of the operator's own writes.
    """
    tenant.core.create_namespaced_service_account(
        tenant.namespace, {"metadata": {"name": "writer"}}
    )
    kubernetes.client.RbacAuthorizationV1Api(rig.api_client()).create_namespaced_role_binding(
        tenant.namespace,
        {
            "metadata": {"name": "writer"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": SERVICE_ACCOUNT,
            },
            "subjects": [
                {"kind": "ServiceAccount", "name": "writer", "namespace": tenant.namespace}
            ],
        },
    )
    return rig.kubeconfig_for_service_account(tenant.namespace, "writer")


@pytest.mark.parametrize(
    ("started", "kept"),
    [
        pytest.param({"args": ["--model=tiny"]}, EngineArguments(), id="no-flag"),
        pytest.param({"command": ["vllm", "serve", "tiny"]}, EngineArguments(), id="no-args"),
        pytest.param(
            {"args": ["--model=tiny", "--max_num_seqs", "8"]},
            EngineArguments(max_num_seqs=8),
            id="one-flag",
        ),
    ],
)
async def test_limits_taken_back_leave_the_former_template(
    tenant: Tenant, writer: Path, started: Mapping[str, Sequence[str]], kept: EngineArguments
) -> None:
    """On the real API server: flags that were not there go again, and the first pods come back."""
    tenant.create_deployment(replicas=1, **started, only_these=True)
    before = tenant.template()
    first = tenant.replica_set_in_use()
    target = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
    client = await connect(kubeconfig=str(writer))
    try:
        batching = KubernetesBatching(client, Discovery(client))
        limits = EngineArguments(max_num_seqs=32, max_num_batched_tokens=1024)
        assert await batching.apply(tenant.namespace, target, None, limits, "vllm")
        assert tenant.template() != before
        tenant.wait(lambda: tenant.replica_set_in_use() != first, what="the rollout")
        while tenant.template() != before:
            # The Deployment's own controller writes its status meanwhile: as the operator, again.
            with suppress(WriteConflictError):
                assert await batching.apply(tenant.namespace, target, None, kept, "vllm")
        assert not await batching.apply(tenant.namespace, target, None, kept, "vllm")
    finally:
        await client.close()
    tenant.wait(lambda: tenant.replica_set_in_use() == first, what="the first ReplicaSet again")
