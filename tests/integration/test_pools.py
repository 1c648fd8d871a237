"""Two pools under one ServingSLO: ordered writes, a pool that is gone, Recommend, moved specs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.audit import timed_writes
from tests.integration.operator_under_test import (
    LENGTH_SPREAD,
    Operator,
    Tenant,
    steady_trace,
)

from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION

NAME = "llama"
PREFILL, DECODE = "llama-prefill", "llama-decode"
GPUS = 4
# Of the simulated small card, as the catalogue has it.
LAW = {
    "stepFixedSeconds": 0.015,
    "stepPerSequenceSeconds": 0.00015,
    "prefillPerTokenSeconds": 0.00008,
    "contextPerTokenSeconds": 0.0000004,
}
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def pools(*, least: int = 1, law: bool = True) -> list[dict]:
    """A prefill and a decode pool. least: replicas of decode."""
    found = [
        {
            "name": name,
            "role": role,
            "targetRef": {"kind": "Deployment", "name": target},
            "replicas": {"min": minimum, "max": 3},
            "coldStart": "5s",
        }
        for name, role, target, minimum in (
            ("prefill", "Prefill", PREFILL, 1),
            ("decode", "Decode", DECODE, least),
        )
    ]
    return [{**one, "serviceLaw": LAW} for one in found] if law else found


def create(tenant: Tenant, *, least: int = 1, **spec: object) -> None:
    """Two Deployments of one replica, and one ServingSLO over both."""
    for target in (PREFILL, DECODE):
        tenant.create_deployment(target)
    alone = {"targetRef": None, "replicas": None, "coldStart": None}
    tenant.create_slo(NAME, **alone, pools=pools(least=least), **spec)


def begin(tenant: Tenant, folder: Path, *, rate: float, prompt: int, output: int) -> None:
    """Requests that pass both pools: one token of prefill, and a cached prompt for decode."""
    for target, tokens, cached in ((PREFILL, 1, 0.0), (DECODE, output, 0.999)):
        trace = steady_trace(
            folder / f"{target}-{rate}-{prompt}-{output}.csv",
            rate=rate, seconds=60, prompt_tokens=prompt, output_tokens=tokens,
            spread=LENGTH_SPREAD,
        )  # fmt: skip
        tenant.begin_traffic(trace, name=target, duration_seconds=900, cached_ratio=cached)


def by_name(tenant: Tenant) -> dict[str, dict]:
    """The pools of the status."""
    return {one["name"]: one for one in tenant.status(NAME).get("pools", ())}


def shown(tenant: Tenant) -> dict[str, object]:
    """The cells of `kubectl get sslo -o wide`."""
    client = tenant.rig.api_client()
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{tenant.namespace}/{PLURAL}"
    method, url, headers, *_ = client.param_serialize(
        "GET", path, header_params={"Accept": _TABLE}, auth_settings=["BearerToken"]
    )
    answer = client.call_api(method, url, headers)
    table = json.loads(answer.read())
    names = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(names, table["rows"][0]["cells"], strict=True))


def sums_after_writes(tenant: Tenant, begin_counts: dict[str, int]) -> Iterator[int]:
    """Replicas of both Deployments after each write of the operator, by the audit log."""
    counts = dict(begin_counts)
    lines = tenant.rig.audit_log.read_text(encoding="utf-8").splitlines()
    for _, write in sorted(timed_writes(lines), key=lambda one: one[0]):
        target = write.target.removeprefix("deployments/")
        if write.namespace == tenant.namespace and target in counts:
            counts[target] = dict(write.values)["replicas"]
            yield sum(counts.values())


@pytest.mark.slow("servingslo.policy.pools")
def test_the_ratio_follows_the_load_by_ordered_writes_within_the_gpus(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """Long prompts order prefill; long answers then decode, into GPUs that prefill gave back.

    The counts never ask for more GPUs than allowed, and both pools are shown.
    """
    create(tenant, gpus=GPUS)
    tenant.wait_condition("MetricsFresh", "True", name=NAME)
    begin(tenant, tmp_path, rate=16.0, prompt=1500, output=10)
    tenant.wait(lambda: tenant.replicas(PREFILL) == 3, what="3 of prefill", timeout_seconds=150)
    assert tenant.replicas(DECODE) == 1
    status = by_name(tenant)
    assert set(status) == {"prefill", "decode"}
    assert status["prefill"]["role"] == "Prefill"
    assert status["decode"]["target"] == f"Deployment/{DECODE}"
    tenant.wait(
        lambda: shown(tenant)["Pools"] == "prefill 3/decode 1", what="kubectl shows both pools"
    )
    assert shown(tenant)["Desired"] == GPUS
    assert shown(tenant)["Target"] == f"{PREFILL} + 1 more"

    tenant.end_traffic()
    begin(tenant, tmp_path, rate=8.0, prompt=200, output=500)
    tenant.wait(lambda: tenant.replicas(DECODE) == 3, what="3 of decode", timeout_seconds=240)
    assert tenant.replicas(PREFILL) == 1
    sums = list(sums_after_writes(tenant, {PREFILL: 1, DECODE: 1}))
    # Two steps up at least, the donor's step down and the receiver's step up.
    assert len(sums) >= 3
    assert max(sums) == GPUS
    assert operator.log_lines("decided", tenant.namespace, "pool=decode", "action=scale-up")
