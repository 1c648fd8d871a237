"""Pods of targets of other kinds: of an adapter, and groups of pods that are one replica."""

from itertools import pairwise
from typing import Any

import pytest

from servingslo.adapters.kubernetes.api.discovery import ApiResource
from servingslo.adapters.kubernetes.api.selectors import parse_selector
from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.pods.records import (
    OwnerRecord,
    deployment_record,
    pod_record,
    stateful_set_record,
)
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import ClusterMetrics, WorkloadView


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
    assert not inventory.rolls_out("a", "set")
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


async def _read(inventory: Inventory, spec: dict[str, int]) -> WorkloadView:
    server: Any = _Scales(spec)
    workloads = KubernetesWorkloads(server, server, inventory, NoConfigMaps())
    target = ScaleTarget(
        api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name="chat"
    )
    return await workloads.read("a", target, None, ClusterMetrics().recognize("a", None))


@pytest.mark.parametrize("count", [0, 3])
async def test_the_count_of_a_kind_that_is_read_by_its_scale(count: int) -> None:
    """A Scale states no count of zero: such a target sleeps, and is woken again."""
    inventory = Inventory(client=None)  # type: ignore[arg-type]  # it is never started
    view = await _read(inventory, {"replicas": count} if count else {})
    assert view.desired_replicas == count


def _of_set(uid: str, replicas: int = 2) -> OwnerRecord:
    """A ReplicaSet of the target, as an Argo Rollout has for each of its templates."""
    return OwnerRecord(namespace="a", uid=uid, owner_uid="set", replicas=replicas)


def _workload(updated: int) -> dict:
    """A workload of the target with two pods, of which so many have its newest template."""
    return {
        "metadata": {
            "namespace": "a",
            "name": "chat",
            "uid": "below",
            "ownerReferences": [{"uid": "set", "controller": True}],
        },
        "spec": {"replicas": 2},
        "status": {
            "replicas": 2,
            "updatedReplicas": updated,
            "updateRevision": "new",
            "currentRevision": "new" if updated == 2 else "old",
        },
    }


@pytest.mark.parametrize(
    ("below", "rolls_out"),
    [
        pytest.param([_of_set("old"), _of_set("new")], True, id="two-templates"),
        pytest.param([_of_set("old", 0), _of_set("new")], False, id="the-old-one-is-empty"),
        pytest.param([stateful_set_record(_workload(1), None)], True, id="stateful-set"),
        pytest.param([stateful_set_record(_workload(2), None)], False, id="stateful-set-done"),
        pytest.param([deployment_record(_workload(1), None)], True, id="deployment"),
        pytest.param([deployment_record(_workload(2), None)], False, id="deployment-done"),
    ],
)
async def test_a_rollout_of_a_kind_that_is_read_by_its_scale(below: list, rolls_out: bool) -> None:
    """It shows in the workloads that the target owns; while it lasts no replica is removed."""
    inventory = Inventory(client=None)  # type: ignore[arg-type]  # it is never started
    for record in below:
        inventory._owner_changed(None, record)
    assert (await _read(inventory, {"replicas": 2})).rollout_in_progress is rolls_out
    for record in below:
        inventory._owner_changed(record, None)
    assert not (await _read(inventory, {"replicas": 2})).rollout_in_progress
