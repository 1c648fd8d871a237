"""What is kept of pods and workloads: readiness, start times, rollouts, owners."""

import time
from typing import Any

import pytest

from servingslo.adapters.kubernetes.pods.records import (
    autoscaler_record,
    container_records,
    deployment_record,
    pod_record,
    scaled_object_record,
    stateful_set_record,
)
from servingslo.adapters.kubernetes.pods.refusals import latest_refusal
from servingslo.runtimes.shell.words import LONGEST_LINE_CHARACTERS

NOW = 1_767_323_100.0  # 2026-01-02T03:05:00Z


def _pod(*conditions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    status = {"phase": "Running", "conditions": list(conditions), **fields.pop("status", {})}
    return {
        "metadata": {
            "namespace": "team",
            "name": "chat-1",
            "uid": "pod-uid",
            "creationTimestamp": "2026-01-02T03:00:00Z",
            "labels": {"app": "chat", "pod-template-hash": "abc"},
            "ownerReferences": [
                {"uid": "other", "controller": False},
                {"uid": "rs-uid", "controller": True},
            ],
            **fields.pop("metadata", {}),
        },
        "spec": {"containers": [{"name": "vllm", "image": "vllm:1", "args": ["--a=1"]}]},
        "status": status,
    }


def _condition(type_: str, status: str, since: str, **fields: str) -> dict[str, Any]:
    return {"type": type_, "status": status, "lastTransitionTime": since, **fields}


SCHEDULED = _condition("PodScheduled", "True", "2026-01-02T03:00:02Z")
READY = _condition("Ready", "True", "2026-01-02T03:01:30Z")


def test_a_ready_pod_tells_its_start_times() -> None:
    """Times from creation to scheduling and to readiness come from the conditions."""
    sample = pod_record(_pod(SCHEDULED, READY), None).sample(NOW, engine=None)
    assert sample.ready
    assert sample.template_hash == "abc"
    assert sample.scheduled_after_seconds == 2
    assert sample.ready_after_seconds == 90
    assert sample.ready_for_seconds == 210
    assert sample.age_seconds == 300


def test_the_start_of_the_containers_splits_image_from_loading() -> None:
    """The last of them counts; while one has not started or one was restarted, it is unknown."""

    def containers(*times: str | None, restarts: int = 0) -> dict[str, Any]:
        states = [{"running": {"startedAt": time}} if time else {"waiting": {}} for time in times]
        return {
            "containerStatuses": [{"state": state, "restartCount": restarts} for state in states]
        }

    early, late = "2026-01-02T03:00:10Z", "2026-01-02T03:00:40Z"
    for status, started in (
        (containers(early, late), 40),
        (containers(early, None), None),
        (containers(early, late, restarts=1), None),
        ({}, None),
    ):
        sample = pod_record(_pod(SCHEDULED, READY, status=status), None).sample(NOW, engine=None)
        assert sample.started_after_seconds == started


@pytest.mark.parametrize(
    ("status", "message", "refused"),
    [
        pytest.param(
            "True",
            'pods "chat-5f-x2k9z" is forbidden: exceeded quota: gpus, used: 5, limited: 5',
            "exceeded quota: gpus, used: 5, limited: 5",
            id="quota",
        ),
        pytest.param("True", "admission webhook denied it", "admission webhook denied it", id="no"),
        pytest.param("False", "", None, id="over"),
    ],
)
def test_a_deployment_tells_why_its_pods_are_not_made(status, message, refused) -> None:
    """In the API server's words, without the name of the pod that was tried."""
    conditions = [
        _condition("Available", "True", "2026-01-02T03:00:02Z"),
        _condition("ReplicaFailure", status, "2026-01-02T03:00:02Z", message=message),
    ]
    item = {
        "metadata": {"namespace": "team", "name": "chat", "uid": "u"},
        "spec": {"selector": {"matchLabels": {"app": "chat"}}, "template": {"spec": {}}},
        "status": {"conditions": conditions},
    }
    assert deployment_record(item, None).pods_refused == refused


def _attempt(reason: str, minute: int, **fields: object) -> dict[str, object]:
    return {"reason": reason, "lastTimestamp": f"2026-01-02T03:{minute:02}:00Z", **fields}


FORBIDDEN = (
    'create Pod chat-1 in StatefulSet chat failed error: pods "chat-1" is forbidden: exceeded quota'
)


@pytest.mark.parametrize(
    ("events", "refused"),
    [
        pytest.param((), None, id="none"),
        pytest.param(
            (_attempt("SuccessfulCreate", 1), _attempt("FailedCreate", 2, message=FORBIDDEN)),
            "exceeded quota",
            id="refused-since",
        ),
        pytest.param(
            (_attempt("FailedCreate", 2, message=FORBIDDEN), _attempt("SuccessfulCreate", 3)),
            None,
            id="made-since",
        ),
        pytest.param(
            (
                _attempt("SuccessfulCreate", 1),
                {
                    "reason": "FailedCreate",
                    "lastTimestamp": None,
                    "series": {"lastObservedTime": "2026-01-02T03:02:00.5Z"},
                    "message": "webhook denied it",
                },
            ),
            "webhook denied it",
            id="new-event-api",
        ),
        pytest.param((_attempt("FailedDelete", 4, message=FORBIDDEN),), None, id="other"),
    ],
)
def test_a_stateful_set_s_last_attempt_tells_why_no_pod_is_made(events, refused) -> None:
    """In the API server's words; an attempt that succeeded since ends it."""
    assert latest_refusal(events) == refused


def test_a_pod_that_was_never_ready_has_no_start_time() -> None:
    """What did not happen is unknown, never zero."""
    unready = _condition("Ready", "False", "2026-01-02T03:00:02Z")
    sample = pod_record(_pod(SCHEDULED, unready), None).sample(NOW, engine=None)
    assert not sample.ready
    assert sample.ready_after_seconds is None
    assert sample.ready_for_seconds is None


def test_a_restarted_pod_does_not_tell_when_it_first_was_ready() -> None:
    """After a restart the condition speaks of the restart: the start time is unknown."""
    status = {"containerStatuses": [{"restartCount": 2}, {"restartCount": 1}]}
    sample = pod_record(_pod(SCHEDULED, READY, status=status), None).sample(NOW, engine=None)
    assert sample.restarts == 3
    assert sample.ready_after_seconds is None


def test_an_unschedulable_pod_says_why() -> None:
    """The scheduler's message is kept; a pod that merely waits has none."""
    refused = _condition(
        "PodScheduled", "False", "2026-01-02T03:00:00Z", reason="Unschedulable", message="no gpu"
    )
    gated = _condition("PodScheduled", "False", "2026-01-02T03:00:00Z", reason="SchedulingGated")
    pending = {"phase": "Pending"}
    assert pod_record(_pod(refused, status=pending), None).unschedulable_reason == "no gpu"
    assert pod_record(_pod(gated, status=pending), None).unschedulable_reason is None


@pytest.mark.parametrize(
    ("gates", "labels", "condition", "said"),
    [
        pytest.param(
            ["kueue.x-k8s.io/admission"],
            {"kueue.x-k8s.io/queue-name": "team-a"},
            "SchedulingGated",
            "scheduling gate kueue.x-k8s.io/admission, queue team-a",
            id="kueue",
        ),
        pytest.param(
            ["example.com/quota"],
            {"kueue.x-k8s.io/queue-name": "team-a"},
            None,
            "scheduling gate example.com/quota",
            id="before-any-condition",
        ),
        pytest.param(
            ["a.io/one", "b.io/two"], {}, "SchedulingGated",
            "scheduling gates a.io/one, b.io/two", id="two",
        ),
        pytest.param([], {}, "SchedulingGated", "blocked", id="condition-alone"),
        pytest.param([], {}, "Unschedulable", None, id="no-place"),
        pytest.param([], {}, None, None, id="free"),
    ],
)  # fmt: skip
def test_a_gated_pod_names_its_gates(gates, labels, condition, said) -> None:
    """Each gate by its name, Kueue's with the queue; a pod without a place is not gated."""
    conditions = () if condition is None else (
        _condition("PodScheduled", "False", "2026-01-02T03:00:00Z",
                   reason=condition, message="blocked"),
    )  # fmt: skip
    item = _pod(*conditions, status={"phase": "Pending"}, metadata={"labels": labels})
    item["spec"]["schedulingGates"] = [{"name": name} for name in gates]
    record = pod_record(item, None)
    assert record.sample(NOW, engine=None).queued_reason == said


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Running", False), ("Pending", False), ("Failed", True), ("Succeeded", True)],
)
def test_a_finished_pod_is_no_replica(phase: str, finished: bool) -> None:
    """Evicted and completed pods linger, and serve nothing."""
    assert pod_record(_pod(status={"phase": phase}), None).finished is finished


def _workload(spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "chat", "uid": "u"},
        "spec": {"selector": {"matchLabels": {"app": "chat"}}, **spec},
        "status": status,
    }


@pytest.mark.parametrize(
    ("status", "rolling"),
    [
        pytest.param({"replicas": 3, "updatedReplicas": 3}, False, id="settled"),
        pytest.param(
            {"replicas": 5, "updatedReplicas": 5, "readyReplicas": 3}, False, id="scaling"
        ),
        pytest.param({"replicas": 4, "updatedReplicas": 1}, True, id="rolling"),
        pytest.param({"replicas": 3}, True, id="just-begun"),
        pytest.param({}, False, id="empty"),
    ],
)
def test_a_scale_up_of_a_deployment_is_no_rollout(status: dict, rolling: bool) -> None:
    """Only pods of an older template make a rollout."""
    record = deployment_record(_workload({"replicas": 3}, status), None)
    assert record.rollout_in_progress is rolling


@pytest.mark.parametrize(
    ("status", "rolling"),
    [
        pytest.param(
            {"currentRevision": "a", "updateRevision": "a", "replicas": 3}, False, id="on"
        ),
        pytest.param(
            {
                "currentRevision": "a",
                "updateRevision": "b",
                "replicas": 3,
                "updatedReplicas": 1,
            },
            True,
            id="rolling",
        ),
    ],
)
def test_a_stateful_set_rolls_between_revisions(status: dict, rolling: bool) -> None:
    """Two revisions with pods of the older one make a rollout."""
    record = stateful_set_record(_workload({"replicas": 3}, status), None)
    assert record.rollout_in_progress is rolling


def test_scalers_name_their_target() -> None:
    """An HPA names group and kind; a ScaledObject leaves out what KEDA fills in."""
    metadata = {"namespace": "team", "name": "s"}
    reference = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "chat"}
    hpa = autoscaler_record({"metadata": metadata, "spec": {"scaleTargetRef": reference}}, None)
    assert (hpa.group, hpa.target_kind, hpa.target_name) == ("argoproj.io", "Rollout", "chat")
    scaled = scaled_object_record(
        {"metadata": metadata, "spec": {"scaleTargetRef": {"name": "chat"}}}, None
    )
    assert (scaled.group, scaled.target_kind, scaled.target_name) == ("apps", "Deployment", "chat")


@pytest.mark.parametrize(
    ("types", "least", "wakes"),
    [
        pytest.param(("external-push",), 0, False, id="ours-alone"),
        pytest.param(("external-push", "prometheus"), 0, True, id="a-queue-as-well"),
        pytest.param(("external-push", "prometheus"), None, True, id="zero-by-default"),
        pytest.param(("external-push", "prometheus"), 1, False, id="never-to-zero"),
        pytest.param(("external-push", "cpu"), 0, False, id="measured-on-pods"),
    ],
)
def test_a_trigger_beside_ours_wakes_what_kedas_object_lets_go_to_zero(types, least, wakes):
    """KEDA looks at it by itself while there is no pod."""
    spec = {"scaleTargetRef": {"name": "chat"}, "triggers": [{"type": one} for one in types]}
    if least is not None:
        spec["minReplicaCount"] = least
    metadata = {"namespace": "team", "name": "s"}
    assert scaled_object_record({"metadata": metadata, "spec": spec}, None).wakes is wakes


def test_a_container_keeps_literal_variables_that_its_arguments_name_and_no_secret():
    """What comes from Secrets, ConfigMaps and fields stays unread; devices are told."""
    item = {
        "metadata": {"namespace": "a", "name": "p", "uid": "1"},
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "args": ["--max-num-seqs=$(SEQS)", "--max-num-batched-tokens=$(SECRET)"],
                    "env": [
                        {"name": "SEQS", "value": "96"},
                        {
                            "name": "SECRET",
                            "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}},
                        },
                        {"name": "UNUSED", "value": "x"},
                    ],
                    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}},
                },
                {"name": "plain", "resources": {"requests": {"cpu": "1"}}},
            ]
        },
    }
    engine, plain = pod_record(item, None).containers
    assert engine.environment == {"SEQS": "96"}
    assert engine.accelerator
    assert not plain.accelerator


def _pod_of(container):
    metadata = {"namespace": "a", "name": "p", "uid": "1"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "vllm", **container}]}}


def test_many_variables_beside_a_long_line_take_no_time():
    """Each pod of a tenant's is read at each of its events, on the loop that serves everybody."""
    source = {"configMapKeyRef": {"name": "m", "key": "k"}}
    variables = [
        *({"name": f"V{number:05d}", "value": "1"} for number in range(20_000)),
        *({"name": f"W{number:05d}", "valueFrom": source} for number in range(10_000)),
    ]
    for length in (LONGEST_LINE_CHARACTERS - 10, 400_000):
        item = _pod_of({"args": ["$(V00007)", "x" * length], "env": variables})
        began = time.process_time()
        (found,) = pod_record(item, None).containers
        assert time.process_time() - began < 0.5
    assert (found.args, found.environment) == ((), {})
    assert found.unread == (
        "command and args, with the variables in them, are longer than 32768 characters"
    )


@pytest.mark.parametrize(
    ("limits", "annotations", "part"),
    [
        pytest.param({"nvidia.com/gpu": 1}, {}, False, id="whole"),
        pytest.param({"nvidia.com/mig-2g.35gb": 1}, {}, True, id="mig"),
        pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000}, {}, True, id="hami-memory"),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}, {}, True, id="hami-percent"
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}, {}, False, id="hami-whole"
        ),
        pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}, {}, True, id="hami-cores"),
        pytest.param({"nvidia.com/gpu.shared": 1}, {}, True, id="time-slice"),
        pytest.param(
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8000}, {}, True, id="volcano"
        ),
        pytest.param({}, {"gpu-fraction": "0.5"}, True, id="run-ai"),
        pytest.param({}, {"tensor-fusion.ai/vram-limit": "10Gi"}, True, id="tensor-fusion"),
        pytest.param({"amd.com/cpx_nps4": 1}, {}, True, id="amd-partition"),
        pytest.param({"amd.com/spx_nps1": 1}, {}, False, id="amd-whole"),
        pytest.param({"nvidia.com/gpu-10gb": 1}, {}, True, id="nos"),
        pytest.param({"k8s.amazonaws.com/vgpu": 1}, {}, True, id="aws"),
        pytest.param({"metax-tech.com/sgpu": 1}, {}, True, id="metax"),
        pytest.param({"koordinator.sh/gpu": 50}, {}, True, id="koordinator"),
        pytest.param({"koordinator.sh/gpu": "100"}, {}, False, id="koordinator-whole"),
        pytest.param({"cpu": 4, "memory": "8Gi"}, {"team": "gpu"}, False, id="none"),
    ],
)
def test_a_part_of_a_card_is_told_from_a_whole_one(limits, annotations, part):
    """A slice or a share has less memory than its card's name says."""
    engine = {"name": "e", "image": "i", "resources": {"limits": limits}}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [engine]}}
    (container,) = container_records(pod)
    assert container.part is part


@pytest.mark.parametrize(
    ("label", "value", "part"),
    [
        ("cloud.google.com/gke-gpu-partition-size", "1g.10gb", True),
        ("cloud.google.com/gke-gpu-sharing-strategy", "mps", True),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", True),
        ("nvidia.com/gpu.product", "NVIDIA-L4-SHARED", True),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", False),
        ("nvidia.com/gpu.sharing-strategy", "time-slicing", True),
        ("nvidia.com/gpu.sharing-strategy", "none", False),
        ("nvidia.com/mig.config", "all-1g.18gb", True),
        ("nvidia.com/mig.config", "all-disabled", False),
    ],
)
def test_a_node_whose_cards_are_split_gives_a_part(label, value, part):
    """By the pod's selector or its required affinity; a container without a card gets none."""
    rule = {"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [rule]}}
    engine = {"name": "e", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    for place in ({"nodeSelector": {label: value}}, {"affinity": {"nodeAffinity": required}}):
        found = container_records({"spec": {"containers": [engine, {"name": "proxy"}], **place}})
        assert [one.part for one in found] == [part, False]
