"""Why a pod does not start or keep running, from the kubelet's reports on its containers.

One restart is no failure: an engine that was killed once serves again after a start. Two things
are. The kubelet names a state from which the container cannot start, such as a back-off or an image
that cannot be pulled; in any container, because the pod is not ready without it. Or the engine's
container ended twice and the pod was not ready in between. The kubelet itself restarts a container
at once after its first end and backs off after the second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_CRASH_LOOP = "CrashLoopBackOff"
# Waiting reasons of a container that cannot start. Source: Kubernetes, pkg/kubelet/images/types.go,
# pkg/kubelet/container/sync_result.go and pkg/kubelet/kuberuntime/kuberuntime_container.go.
_IMAGE_FAILURES = frozenset(
    {"ImagePullBackOff", "ImageInspectError", "ErrImagePull", "ErrImageNeverPull"}
    | {"InvalidImageName", "RegistryUnavailable", "SignatureValidationFailed"}
)
_START_FAILURES = frozenset(
    {_CRASH_LOOP, "RunContainerError", "CreateContainerConfigError", "CreateContainerError"}
    | {"PreCreateHookError", "PreStartHookError", "PostStartHookError"}
)
# Termination reasons that are less informative than the exit code.
_PLAIN_ENDS = frozenset({"Error", "Completed", ""})
# The kubelet lost the container, as after a restart of its node: it does not know how it ended.
_UNKNOWN_ENDS = frozenset({"Unknown", "ContainerStatusUnknown"})
# The kubelet's own back-off begins at the second end.
_ENDS_OF_A_FAILURE = 2
# Characters kept of a kubelet message: its first words name the missing object.
_LONGEST_MESSAGE = 120


def container_failure(status: Mapping[str, Any], *, ready: bool) -> str | None:
    """Why a container cannot start, such as 'CrashLoopBackOff after OOMKilled'; None if all can.

    status: of a v1 Pod. ready: whether its condition Ready holds; a ready pod does not fail.
    The text holds neither ', ' nor parentheses: callers list several pods in one line.
    """
    if ready:
        return None
    words = (_waiting(entry) for entry in _containers(status))
    return next((_listable(one) for one in words if one), None)


def repeated_ends(status: Mapping[str, Any], *, ready: bool) -> Mapping[str, str]:
    """The containers that ended twice or more since the pod was last ready: words by their name.

    'restarted after OOMKilled'. An end of unknown cause is left out. Empty for a ready pod.
    """
    if ready:
        return {}
    since = _unready_since(status)
    words = {str(entry.get("name")): _ended_again(entry, since) for entry in _containers(status)}
    return {name: _listable(one) for name, one in words.items() if one}


def _containers(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The reports on init containers and containers."""
    return (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )


def _waiting(entry: Mapping[str, Any]) -> str:
    """Text for a container that cannot start; '' otherwise."""
    waiting = _state(entry, "waiting")
    reason = str(waiting.get("reason") or "")
    if reason in _IMAGE_FAILURES:
        return f"{reason} of {entry['image']}" if entry.get("image") else reason
    if reason not in _START_FAILURES:
        return ""
    if reason == _CRASH_LOOP:
        ended = _end_in_words((entry.get("lastState") or {}).get("terminated") or {})
        return f"{reason} after {ended}" if ended else reason
    message = str(waiting.get("message") or "")
    return f"{reason}: {message}" if message else reason


def _ended_again(entry: Mapping[str, Any], unready_since: str) -> str:
    """Text for a container whose last run began and ended while the pod was unready; else ''."""
    ended = _state(entry, "terminated")
    ends = int(entry.get("restartCount") or 0) + bool(ended)
    last = ended or (entry.get("lastState") or {}).get("terminated") or {}
    began = str(last.get("startedAt") or "")
    # Timestamps of the API are RFC 3339 in UTC with whole seconds: their order is that of text.
    if ends < _ENDS_OF_A_FAILURE or not began or not unready_since or began < unready_since:
        return ""
    words = _end_in_words(last)
    return f"restarted after {words}" if words else ""


def _state(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Details of the container's state of this name; empty if it is in another state."""
    return (entry.get("state") or {}).get(name) or {}


def _end_in_words(ended: Mapping[str, Any]) -> str:
    """'OOMKilled', or 'exit code 1' if the reason is less informative; '' if it is unknown."""
    reason = str(ended.get("reason") or "")
    if not ended or reason in _UNKNOWN_ENDS:
        return ""
    return f"exit code {ended.get('exitCode', 'unknown')}" if reason in _PLAIN_ENDS else reason


def _unready_since(status: Mapping[str, Any]) -> str:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    ready = next((entry for entry in conditions if entry.get("type") == "Ready"), {})
    return str(ready.get("lastTransitionTime") or "")


def _listable(text: str) -> str:
    """One line of bounded length, without the separators of a pod list."""
    plain = " ".join(text.replace(", ", "; ").replace("(", "").replace(")", "").split())
    return plain if len(plain) <= _LONGEST_MESSAGE else f"{plain[: _LONGEST_MESSAGE - 1]}…"
