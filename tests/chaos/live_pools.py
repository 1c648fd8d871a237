"""A resource with a prefill and a decode pool in a storm on the rig: the same demand in both."""

from collections.abc import Mapping
from typing import Any

RESOURCE = "split"
PREFILL, DECODE = "split-prefill", "split-decode"
TARGETS = {PREFILL: "Prefill", DECODE: "Decode"}
RATE_PER_SECOND = 15.0
# At most, in requests per second. Prefill: 4 prompts of 512 tokens in a step of 15 + 4 × 0.15 +
# 2048 × 0.08 ms. Decode: 64 sequences of 128 tokens in steps of 39 ms.
PER_ENGINE = {PREFILL: 22.0, DECODE: 12.8}
# Prefill answers with one token; decode has the cache of the prompt.
TRAFFIC: Mapping[str, tuple[int, float]] = {PREFILL: (1, 0.0), DECODE: (128, 0.999)}


def resource_of(name: str) -> str:
    """The ServingSLO that scales a workload."""
    return RESOURCE if name in TARGETS else name


def pools_of(asked: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`spec.pools` with the bounds that were asked for, by target."""
    return [
        {
            "name": role.lower(),
            "role": role,
            "targetRef": {"kind": "Deployment", "name": target},
            "replicas": asked[target]["replicas"],
            "coldStart": "5s",
        }
        for target, role in TARGETS.items()
    ]


def status_of(status: Mapping[str, Any], target: str) -> Mapping[str, Any]:
    """The status of the whole with the counts of the pool on a target."""
    named = f"Deployment/{target}"
    counts = [pool.get("replicas") for pool in status.get("pools") or () if pool["target"] == named]
    return {**status, "replicas": counts[0] if counts else None}
