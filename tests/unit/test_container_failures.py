"""Why a pod fails, as the kubelet reports it of its containers."""

from dataclasses import replace
from typing import Any

import pytest

from servingslo.adapters.kubernetes.pods.container_failures import container_failure
from servingslo.adapters.kubernetes.pods.records import ContainerRecord, pod_record

UNREADY = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:00:00Z"}
CRASHED = {"terminated": {"exitCode": 1, "reason": "Error"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
LOOPS = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": KILLED}
LOST = {"terminated": {"exitCode": 255, "reason": "Unknown"}}
RUNNING = {"running": {"startedAt": "2026-01-02T03:00:05Z"}}


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param(
            {"state": _waiting("CrashLoopBackOff"), "lastState": CRASHED, "restartCount": 4},
            "CrashLoopBackOff after exit code 1",
            id="crash-loop",
        ),
        pytest.param(
            {"state": _waiting("CrashLoopBackOff"), "lastState": KILLED, "restartCount": 4},
            "CrashLoopBackOff after OOMKilled",
            id="out-of-memory-loop",
        ),
        pytest.param(
            {"state": _waiting("ImagePullBackOff", "Back-off"), "image": "vllm/vllm:nope"},
            "ImagePullBackOff of vllm/vllm:nope",
            id="image",
        ),
        pytest.param(
            {"state": _waiting("CreateContainerConfigError", 'secret "a" not found, (b)')},
            'CreateContainerConfigError: secret "a" not found; b',
            id="configuration",
        ),
        pytest.param(
            {"state": _waiting("CrashLoopBackOff"), "lastState": LOST, "restartCount": 2},
            "CrashLoopBackOff",
            id="crash-loop-of-unknown-cause",
        ),
        pytest.param({"state": KILLED}, None, id="killed-once"),
        pytest.param({"state": _waiting("NodeLost")}, None, id="unknown-state"),
        pytest.param({"state": _waiting("ContainerCreating")}, None, id="starts"),
        pytest.param({"state": RUNNING, "restartCount": 0}, None, id="loads"),
        pytest.param({}, None, id="nothing-known"),
    ],
)
def test_the_kubelets_words_say_why_a_pod_fails(entry: dict[str, Any], said: str | None) -> None:
    """A start that is tried again, an end, a restart: each in words that fit into a list."""
    status = {"containerStatuses": [entry], "conditions": [UNREADY]}
    assert container_failure(status, ready=False) == said
    assert container_failure(status, ready=True) is None


BEFORE, SINCE = "2026-01-02T02:00:00Z", "2026-01-02T03:00:02Z"


def _ended(reason: str, began: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": 1, "reason": reason, "startedAt": began}}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param(
            {"state": RUNNING, "lastState": _ended("OOMKilled", SINCE), "restartCount": 2},
            "restarted after OOMKilled",
            id="again",
        ),
        pytest.param(
            {"state": _ended("Error", SINCE), "restartCount": 1},
            "restarted after exit code 1",
            id="just-ended-again",
        ),
        pytest.param(
            {"state": RUNNING, "lastState": _ended("Error", SINCE), "restartCount": 1},
            None,
            id="one-restart-of-a-first-start",
        ),
        pytest.param(
            {"state": RUNNING, "lastState": _ended("Error", BEFORE), "restartCount": 7},
            None,
            id="the-last-run-served",
        ),
        pytest.param(
            {"state": RUNNING, "lastState": _ended("Unknown", SINCE), "restartCount": 2},
            None,
            id="of-unknown-cause",
        ),
        pytest.param({"state": RUNNING, "restartCount": 2}, None, id="nothing-known-of-the-end"),
    ],
)
def test_only_repeated_ends_of_the_engine_are_a_failure(
    entry: dict[str, Any], said: str | None
) -> None:
    """One restart is none, nor is a sidecar that restarts: only the engine's container counts."""
    item = {
        "metadata": {"namespace": "a", "name": "p", "uid": "u"},
        "status": {"conditions": [UNREADY], "containerStatuses": [{"name": "vllm", **entry}]},
    }
    engine = ContainerRecord(name="vllm", image=None, command=(), args=())
    record = pod_record(item, None)
    assert record.sample(0.0, engine=engine).failing_reason == said
    sidecar = replace(engine, name="istio-proxy")
    assert record.sample(0.0, engine=sidecar).failing_reason is None
    assert record.sample(0.0, engine=None).failing_reason is None


def test_an_init_container_that_ends_well_is_no_failure() -> None:
    """A finished init container is part of each start; one that crashes is a failure."""
    done = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    main = {"state": _waiting("PodInitializing")}
    status = {"initContainerStatuses": [done], "containerStatuses": [main]}
    assert container_failure(status, ready=False) is None
    crashed = {"state": _waiting("CrashLoopBackOff"), "lastState": CRASHED}
    status = {"initContainerStatuses": [crashed], "containerStatuses": [main]}
    assert container_failure(status, ready=False) == "CrashLoopBackOff after exit code 1"


def test_a_record_carries_the_failure_and_since_when_the_pod_is_unready() -> None:
    """What the API server has of the pod reaches the planner's sample."""
    item = {
        "metadata": {"namespace": "a", "name": "p", "uid": "u"},
        "status": {"conditions": [UNREADY], "containerStatuses": [LOOPS]},
    }
    sample = pod_record(item, None).sample(1767322830.0, engine=None)
    assert sample.failing_reason == "CrashLoopBackOff after OOMKilled"
    assert sample.unready_for_seconds == 30.0
