"""Why a pod does not start or go on, as the kubelet reports it of the pod's containers.

The kubelet writes a reason into `state.waiting` for everything that it will try again, and into
`state.terminated` what ended. Two of the waiting reasons belong to each start; all others are
failures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Waiting reasons of a start that goes well. Source: Kubernetes, pkg/kubelet/kubelet_pods.go.
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
# Reasons of an end that say less than the exit code.
_PLAIN_ENDS = frozenset({"Error", "Completed", ""})
_IMAGE_WORDS = ("Image", "Registry")
_CRASH_LOOP = "CrashLoopBackOff"
# Of a message of the kubelet: the first words name the object that is missing.
_LONGEST_MESSAGE = 120


def container_failure(status: Mapping[str, Any], *, ready: bool) -> str | None:
    """Why the pod fails, such as 'CrashLoopBackOff after OOMKilled'; None where nothing says so.

    status: of a v1 Pod. ready: whether its condition Ready holds; a ready pod does not fail.
    The text holds neither ', ' nor parentheses: callers list several pods in one line.
    """
    if ready:
        return None
    init: Sequence[Mapping[str, Any]] = status.get("initContainerStatuses") or ()
    main: Sequence[Mapping[str, Any]] = status.get("containerStatuses") or ()
    since = _unready_since(status)
    found = (
        *(_waiting(entry) for entry in (*init, *main)),
        # An init container may end well.
        *(_ended(entry) for entry in init if _state(entry, "terminated").get("exitCode")),
        *(_ended(entry) for entry in main),
        *(_restarted(entry, since) for entry in main),
    )
    first = next((words for words in found if words), None)
    return None if first is None else _listable(first)


def _waiting(entry: Mapping[str, Any]) -> str:
    """A start that the kubelet tries again."""
    waiting = _state(entry, "waiting")
    reason = str(waiting.get("reason") or "")
    if reason in _STARTING:
        return ""
    if reason == _CRASH_LOOP:
        ended = _end_in_words((entry.get("lastState") or {}).get("terminated"))
        return f"{reason} after {ended}" if ended else reason
    if any(word in reason for word in _IMAGE_WORDS):
        return f"{reason} of {entry['image']}" if entry.get("image") else reason
    message = str(waiting.get("message") or "")
    return f"{reason}: {message}" if message else reason


def _ended(entry: Mapping[str, Any]) -> str:
    """A container that has just ended."""
    return _end_in_words((entry.get("state") or {}).get("terminated"))


def _restarted(entry: Mapping[str, Any], unready_since: str) -> str:
    """A container that runs again after it ended, if the pod has been unready since then."""
    running = _state(entry, "running")
    if not running or not entry.get("restartCount"):
        return ""
    # Timestamps of the API are RFC 3339 in UTC with whole seconds: their order is that of text.
    if unready_since and str(running.get("startedAt") or "") < unready_since:
        return ""
    ended = _end_in_words((entry.get("lastState") or {}).get("terminated"))
    return f"restarted after {ended}" if ended else ""


def _state(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Details of the container's state of this name; empty where it is in another."""
    return (entry.get("state") or {}).get(name) or {}


def _end_in_words(ended: Mapping[str, Any] | None) -> str:
    """'OOMKilled', or 'exit code 1' where the reason says less; '' where nothing ended."""
    if ended is None:
        return ""
    reason = str(ended.get("reason") or "")
    return f"exit code {ended.get('exitCode', 'unknown')}" if reason in _PLAIN_ENDS else reason


def _unready_since(status: Mapping[str, Any]) -> str:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    ready = next((entry for entry in conditions if entry.get("type") == "Ready"), {})
    return str(ready.get("lastTransitionTime") or "")


def _listable(text: str) -> str:
    """One line of bounded length without what separates pods in a list."""
    plain = " ".join(text.replace(", ", "; ").replace("(", "").replace(")", "").split())
    return plain if len(plain) <= _LONGEST_MESSAGE else f"{plain[: _LONGEST_MESSAGE - 1]}…"
