"""Pods of targets of other kinds: of an adapter, and groups of pods that are one replica."""

from itertools import pairwise
from typing import Any

import pytest

from servingslo.adapters.kubernetes.api.discovery import ApiResource
from servingslo.adapters.kubernetes.api.selectors import parse_selector
from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.pods.records import OwnerRecord, pod_record
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import ClusterMetrics


def pod(owner: str | None) -> dict:
    """A pod that the selector matches."""
    references = [] if owner is None else [{"uid": owner, "controller": True}]
    metadata = {"namespace": "a", "name": "chat-0", "uid": "pod", "labels": {"app": "chat"}}
    return {"metadata": metadata | {"ownerReferences": references}, "spec": {}, "status": {}}


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        pytest.param((), False, id="of-none"),
        pytest.param(("group",), True, id="of-another-kind"),
        pytest.param(("rs", "deployment", "group"), True, id="of-a-deployment-of-another-kind"),
        pytest.param(("rs", "deployment", None), False, id="of-a-plain-deployment"),
        pytest.param(("rs", None), False, id="of-a-plain-replica-set"),
    ],
)
def test_pods_of_another_kinds_workload_are_those_of_its_adapter(
    chain: tuple[str | None, ...], found: bool
) -> None:
    """Whatever selector a status states, it adopts no pod of a plain Deployment."""
    inventory = Inventory(client=None)  # type: ignore[arg-type]  # it is never started
    inventory._pod_changed(None, pod_record(pod(chain[0] if chain else None), None))
    for uid, owner in pairwise(chain):
        assert uid is not None
        inventory._owner_changed(
            None,
            OwnerRecord(namespace="a", uid=uid, owner_uid=owner, replicas=1),
        )
    pods = inventory.workload_pods(
        "a", target_uid="adapter", selector=parse_selector("app=chat"), strict=False
    )
    assert [one.name for one in pods] == (["chat-0"] if found else [])


def member(name: str, owner: str, *, ready: bool = True, **conditions: Any) -> dict:
    """A pod of a group, ready from its tenth second on or not, scheduled unless stated."""
    place = "0" if name.count("-") == 1 else name[-1]
    metadata = {
        "namespace": "a",
        "name": name,
        "uid": f"uid-{name}",
        "labels": {"app": "chat", "place": place},
        "ownerReferences": [{"uid": owner, "controller": True}],
        "creationTimestamp": "2026-11-27T10:00:00Z",
    }
    since = f"2026-11-27T10:00:1{place}Z"
    told = [
        {"type": "Ready", "status": str(ready), "lastTransitionTime": since},
        conditions or {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
    ]
    return {"metadata": metadata, "spec": {}, "status": {"conditions": told}}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
}


@pytest.mark.parametrize(
    ("workers", "ready", "ready_after", "unschedulable"),
    [
        pytest.param(
            [member("chat-0-1", "workers"), member("chat-0-2", "workers")],
            True, 12.0, False, id="all",
        ),
        pytest.param(
            [member("chat-0-1", "workers"), member("chat-0-2", "workers", ready=False)],
            False, None, False, id="one-is-not",
        ),
        pytest.param([member("chat-0-1", "workers")], False, None, False, id="one-is-missing"),
        pytest.param(
            [
                member("chat-0-1", "workers"),
                member("chat-0-2", "workers", ready=False, **UNSCHEDULABLE),
            ],
            False, None, True, id="no-node-for-one",
        ),
    ],
)  # fmt: skip
def test_a_group_is_ready_and_waits_as_all_its_pods_do(
    workers: list[dict], ready: bool, ready_after: float | None, unschedulable: bool
) -> None:
    """The leader is selected alone; its workers are those of the StatefulSet that it owns."""
    inventory = Inventory(client=None)  # type: ignore[arg-type]  # it is never started
    for uid, owner, replicas in (("leaders", "set", 1), ("workers", "uid-chat-0", 2)):
        inventory._owner_changed(
            None,
            OwnerRecord(namespace="a", uid=uid, owner_uid=owner, replicas=replicas),
        )
    # What another tenant writes: a workload, and its template, that say to be of this one's pod.
    for owner in ("uid-chat-0", "set"):
        record = OwnerRecord(namespace="b", uid=f"of-{owner}", owner_uid=owner, replicas=9)
        inventory._owner_changed(None, record)
    assert inventory.template_count("a", "set") == 1
    for item in (member("chat-0", "leaders"), *workers):
        inventory._pod_changed(None, pod_record(item, None))
    (found,) = inventory.workload_pods(
        "a", target_uid="set", selector=parse_selector("app=chat,place=0"), strict=False
    )
    sample = found.sample(1.8e9, engine=None)
    assert (found.name, sample.ready, sample.ready_after_seconds) == ("chat-0", ready, ready_after)
    assert bool(sample.unschedulable_reason) is unschedulable
    assert (sample.scheduled_after_seconds is None) == (len(workers) < 2 or unschedulable)


class _Scales:
    """An API server with one LeaderWorkerSet, and its Scale with this spec."""

    def __init__(self, spec: dict[str, int]) -> None:
        self.spec = spec

    async def resolve_scalable(self, api_version: str, _kind: str) -> ApiResource:
        return ApiResource(api_version=api_version, plural="leaderworkersets", scalable=True)

    async def get(self, _path: str) -> dict:
        status = {"replicas": self.spec.get("replicas", 0), "selector": "app=chat"}
        return {"metadata": {"uid": "set"}, "spec": self.spec, "status": status}


@pytest.mark.parametrize("count", [0, 3])
async def test_the_count_of_a_kind_that_is_read_by_its_scale(count: int) -> None:
    """A Scale states no count of zero: such a target sleeps, and is woken again."""
    server: Any = _Scales({"replicas": count} if count else {})
    inventory = Inventory(client=None)  # type: ignore[arg-type]  # it is never started
    workloads = KubernetesWorkloads(server, server, inventory, NoConfigMaps())
    target = ScaleTarget(
        api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name="chat"
    )
    view = await workloads.read("a", target, None, ClusterMetrics().recognize("a", None))
    assert view.desired_replicas == count
