"""Constraints that bind seldom, live: a small KV cache, and an objective on the queue time."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator_under_test import LENGTH_SPREAD, Operator, Tenant, steady_trace
from tests.integration.test_lifecycle_scaling import LAW

pytestmark = pytest.mark.slow("servingslo.policy.rules", "servingslo.models.fleet")

# Of the simulated small card a request of 512 and 128 tokens takes some three seconds. A small
# cache serves 1.3 per second: at less it may be seen to serve, and a young workload then orders
# nothing.
RATE = 1.0
RATE_BEYOND_THE_CACHE = 2.0
# 2,560 tokens: four such requests with their contexts, where a card has room for a hundred.
SMALL_CACHE = ("--num-gpu-blocks-override=160",)
FEW_SLOTS = ("--model=tiny", "--max-num-seqs=4", "--max-num-batched-tokens=2048")
TPOT = {"metric": "tpot", "percentile": 95, "threshold": "100ms"}
QUEUE_TIME = {"metric": "queueTime", "percentile": 95, "threshold": "50ms"}
PATIENCE_SECONDS = 60.0
ATTEMPTS = 5


def _recommendation(tenant: Tenant) -> tuple[str | None, bool]:
    """What binds now, and whether more than one replica is asked for."""
    status = tenant.status()
    return status.get("bindingConstraint"), status.get("replicas", {}).get("desired", 0) > 1


@pytest.mark.parametrize(
    ("engine", "rate", "spec", "binding", "reason"),
    [
        pytest.param(
            {"args": SMALL_CACHE},
            RATE_BEYOND_THE_CACHE,
            {},
            "kv-cache",
            "KVCacheBound",
            id="kv-cache",
        ),
        pytest.param(
            {"args": FEW_SLOTS, "only_these": True},
            RATE,
            {"objectives": [TPOT, QUEUE_TIME]},
            "queue-time",
            "QueueTimeBound",
            id="queue-time",
        ),
    ],
)
def test_what_binds_orders_replicas_and_is_named(
    tenant: Tenant,
    operator: Operator,
    tmp_path: Path,
    engine: dict[str, Any],
    rate: float,
    spec: dict[str, Any],
    binding: str,
    reason: str,
) -> None:
    """The count follows it, and line, event and status name it; nothing else asks for as much.

    It acts only once the constraint binds: a first look may order for what waits instead.
    Requests that queue for the cache wait, too, and sometimes order more than the cache does.
    """
    tenant.create_deployment(replicas=1, **engine)
    trace = steady_trace(tmp_path / "trace.csv", rate=rate, seconds=120.0, spread=LENGTH_SPREAD)
    tenant.begin_traffic(trace, duration_seconds=600)
    tenant.create_slo(serviceLaw=LAW, mode="Recommend", **spec)
    needles = ("decided", tenant.namespace, "action=scale-up", f"binding={binding}")
    for _ in range(ATTEMPTS):
        tenant.wait(
            lambda: _recommendation(tenant) == (binding, True),
            what=f"a recommendation that {binding} binds",
            timeout_seconds=PATIENCE_SECONDS,
        )
        tenant.patch_slo({"mode": "Auto"})
        tenant.wait(lambda: tenant.replicas() > 1, what="more replicas")
        # The count is written before the line that says why.
        tenant.wait_line(operator, "decided", "action=scale-up")
        if operator.log_lines(*needles):
            break
        # What waits by now bound at that tick: once more from the start.
        tenant.patch_slo({"mode": "Recommend"})
        tenant.scale(1)
    assert operator.log_lines(*needles), f"{binding} bound in no order of {ATTEMPTS}"
    assert f"reason={reason}" in operator.log_lines(*needles)[0]
    tenant.wait(lambda: any(reason in text for _, text in tenant.events()), what="its event")
