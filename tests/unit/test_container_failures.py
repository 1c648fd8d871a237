"""Why a pod fails, as the kubelet reports it of its containers."""

from typing import Any

import pytest

from servingslo.adapters.kubernetes.container_failures import container_failure
from servingslo.adapters.kubernetes.records import pod_record

UNREADY = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:00:00Z"}
CRASHED = {"terminated": {"exitCode": 1, "reason": "Error"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
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
        pytest.param({"state": KILLED}, "OOMKilled", id="just-killed"),
        pytest.param({"state": CRASHED}, "exit code 1", id="just-ended"),
        pytest.param(
            {"state": RUNNING, "lastState": CRASHED, "restartCount": 1},
            "restarted after exit code 1",
            id="restarted",
        ),
        pytest.param(
            {
                "state": {"running": {"startedAt": "2026-01-02T01:00:00Z"}},
                "lastState": CRASHED,
                "restartCount": 1,
            },
            None,
            id="restarted-long-before-it-was-unready",
        ),
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
        "status": {"conditions": [UNREADY], "containerStatuses": [{"state": KILLED}]},
    }
    sample = pod_record(item, None).sample(1767322830.0, image=None)
    assert sample.failing_reason == "OOMKilled"
    assert sample.unready_for_seconds == 30.0
