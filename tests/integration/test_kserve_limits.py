"""Batch limits in an LLMInferenceService: KServe's CRD and preset, and a stand-in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.kserve_stand_in import (
    API_VERSION,
    KIND,
    SERVICES,
    install_crd,
    merged,
    service,
    stand_in,
)
from tests.integration.operator_under_test import Operator, Tenant, steady_trace, ticks_pass

from servingslo.adapters.kubernetes.batch_limits.canary_records import CANARY_ANNOTATION
from servingslo_lab.rig.cluster import Rig

TARGET = {"apiVersion": API_VERSION, "kind": KIND, "name": "llama"}
CHILD = "llama-kserve"
# Few enough sequences that more of them serve the same load with fewer replicas.
FORMER = ["--max-num-seqs=8", "--max-num-batched-tokens=2048"]
RATE_PER_SECOND = 6.0
LEARNING_SECONDS = 150.0


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator lets the operator write into LLMInferenceServices."""
    return ("batching.apply.enabled=true", "batching.apply.llmInferenceServices=true")


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart passes it on."""
    return ("--batching-apply=true", "--batching-llm-inference-services=true")


@pytest.fixture
def user(rig: Rig, tenant: Tenant) -> Iterator[Tenant]:
    """A tenant whose LLMInferenceServices get their Deployments."""
    install_crd(rig)
    with stand_in(rig, tenant.namespace):
        yield tenant


def found(user: Tenant) -> dict[str, Any]:
    """The service as it is now."""
    item: dict[str, Any] = user.custom.get_namespaced_custom_object(
        namespace=user.namespace, name="llama", **SERVICES
    )
    return item


def own(user: Tenant) -> dict[str, Any]:
    """The service's own container."""
    container: dict[str, Any] = found(user)["spec"]["template"]["containers"][0]
    return container


def label(user: Tenant, value: str) -> None:
    """As the owner of the service does it."""
    user.custom.patch_namespaced_custom_object(
        namespace=user.namespace,
        name="llama",
        body={"metadata": {"labels": {"servingslo.dev/managed": value}}},
        **SERVICES,
    )


def test_limits_go_into_a_labelled_service_and_back_with_the_resource(
    user: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """Its controller rolls them out; the child alone is never written into."""
    manifest = service("llama", app="chat")
    (container,) = manifest["spec"]["template"]["containers"]
    container |= {"name": "main", "args": FORMER}
    user.custom.create_namespaced_custom_object(
        namespace=user.namespace, body=manifest, field_validation="Strict", **SERVICES
    )
    former = own(user)
    assert merged(manifest["spec"]["template"])["containers"][0]["command"][-1] == "--"
    trace = steady_trace(tmp_path / "trace.csv", rate=RATE_PER_SECOND, seconds=30)
    user.begin_traffic(trace, duration_seconds=900)
    at_once = {"mode": "Auto", "rollout": "AllAtOnce", "minInterval": "10m"}
    user.create_slo(targetRef=TARGET, replicas={"min": 2, "max": 4}, batching=at_once)

    # Its owner has said nothing yet.
    user.wait_condition("BatchingInSync", "False", "NotPermitted", timeout_seconds=LEARNING_SECONDS)
    user.wait_message("BatchingInSync", 'servingslo.dev/managed: "true"')
    ticks_pass(operator)
    assert own(user) == former

    label(user, "true")
    user.wait(
        lambda: own(user) != former,
        what="a change of the service's line",
        timeout_seconds=LEARNING_SECONDS,
    )
    written = own(user)
    assert {**written, "args": FORMER} == former
    assert int(written["args"][0].removeprefix("--max-num-seqs=")) > 8
    assert CANARY_ANNOTATION in found(user)["metadata"]["annotations"]
    user.wait(lambda: user.arguments(CHILD) == written["args"], what="its Deployment has them")
    user.wait(
        lambda: user.status().get("batching", {}).get("current", {}).get("maxNumSeqs", 0) > 8,
        what="the new limit in force",
    )
    user.wait_event("BatchingChanged")
    ticks_pass(operator)
    assert own(user) == written
    lines = operator.log_lines(" changed ", f"namespace={user.namespace} ", "knob=batch-limits")
    assert len(lines) == 1
    assert "target=LLMInferenceService/llama" in lines[0]
    assert "outcome=written" in lines[0]

    user.delete_slo()
    user.wait(lambda: own(user) == former, what="the service's former line")
    assert CANARY_ANNOTATION not in found(user)["metadata"].get("annotations", {})
    user.wait(lambda: user.arguments(CHILD) == FORMER, what="its Deployment has it")
    user.wait_line(operator, "outcome=rolled-back", "target=LLMInferenceService/llama")
    ticks_pass(operator)
    assert own(user) == former
