"""Why a pod does not start or keep running, from the kubelet's reports on its containers.

The kubelet writes a reason into `state.waiting` if it will retry, and into `state.terminated` if
the container ended. Two of the waiting reasons occur in every start; all others are failures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Waiting reasons of a normal start. Source: Kubernetes, pkg/kubelet/kubelet_pods.go.
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
# Termination reasons that are less informative than the exit code.
_PLAIN_ENDS = frozenset({"Error", "Completed", ""})
_IMAGE_WORDS = ("Image", "Registry")
_CRASH_LOOP = "CrashLoopBackOff"
# Characters kept of a kubelet message: its first words name the missing object.
_LONGEST_MESSAGE = 120


def container_failure(status: Mapping[str, Any], *, ready: bool) -> str | None:
    """Why the pod fails, such as 'CrashLoopBackOff after OOMKilled'; None if no failure is known.

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
        # An init container may end successfully.
        *(_ended(entry) for entry in init if _state(entry, "terminated").get("exitCode")),
        *(_ended(entry) for entry in main),
        *(_restarted(entry, since) for entry in main),
    )
    first = next((words for words in found if words), None)
    return None if first is None else _listable(first)


def _waiting(entry: Mapping[str, Any]) -> str:
    """Text for a start that the kubelet retries; '' otherwise."""
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
    """Text for a container that has just ended; '' otherwise."""
    return _end_in_words((entry.get("state") or {}).get("terminated"))


def _restarted(entry: Mapping[str, Any], unready_since: str) -> str:
    """Text for a restarted container, if the pod has been unready since its end; '' otherwise."""
    running = _state(entry, "running")
    if not running or not entry.get("restartCount"):
        return ""
    # Timestamps of the API are RFC 3339 in UTC with whole seconds: their order is that of text.
    if unready_since and str(running.get("startedAt") or "") < unready_since:
        return ""
    ended = _end_in_words((entry.get("lastState") or {}).get("terminated"))
    return f"restarted after {ended}" if ended else ""


def _state(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Details of the container's state of this name; empty if it is in another state."""
    return (entry.get("state") or {}).get(name) or {}


def _end_in_words(ended: Mapping[str, Any] | None) -> str:
    """'OOMKilled', or 'exit code 1' if the reason is less informative; '' if nothing ended."""
    if ended is None:
        return ""
    reason = str(ended.get("reason") or "")
    return f"exit code {ended.get('exitCode', 'unknown')}" if reason in _PLAIN_ENDS else reason


def _unready_since(status: Mapping[str, Any]) -> str:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    ready = next((entry for entry in conditions if entry.get("type") == "Ready"), {})
    return str(ready.get("lastTransitionTime") or "")


def _listable(text: str) -> str:
    """One line of bounded length, without the separators of a pod list."""
    plain = " ".join(text.replace(", ", "; ").replace("(", "").replace(")", "").split())
    return plain if len(plain) <= _LONGEST_MESSAGE else f"{plain[: _LONGEST_MESSAGE - 1]}…"
