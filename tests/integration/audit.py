"""What the operator wrote, by the API server's audit log, beside what it says that it wrote."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from tests.integration.operator_under_test import KILLED, RELEASE_NAMESPACE, SERVICE_ACCOUNT

from servingslo.policy.knobs.decisions import GATEWAY_LIMITS
from servingslo.policy.routes import LANES
from servingslo.runtimes.launch.command_line import expanded

OPERATOR_USER = f"system:serviceaccount:{RELEASE_NAMESPACE}:{SERVICE_ACCOUNT}"
# Of whichever release: its name ends so.
_OF_AN_OPERATOR = re.compile(rf"system:serviceaccount:[^:]+:([^:]+-)?{SERVICE_ACCOUNT}")
# Written all the time, and no change of a target.
_TOLD_ELSEWHERE = {"events", "leases"}
# Questions about one's own rights: created, never stored.
_KNOBS = {
    **dict.fromkeys(("backendtrafficpolicies", "destinationrules"), GATEWAY_LIMITS),
    "httproutes": "route-weights",
    **dict.fromkeys(("deployments", "statefulsets", "leaderworkersets"), "batch-limits"),
}
# Knobs of features that write replicas of another kind, by whichever name.
_OTHER = "other"
_PLURALS = {"BackendTrafficPolicy": "backendtrafficpolicies"}
_BOUND = "max_parallel_requests"
_SHARE, _WEIGHTS_RECORD = "fallback_thousandths", "/metadata/annotations/servingslo.dev~1weights"
_BOUND_PATHS = {
    "/spec/circuitBreaker/maxParallelRequests",
    "/spec/trafficPolicy/connectionPool/http/http2MaxRequests",
}
_REVIEWS = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs")
_CONTAINER = re.compile(r"/spec/template/spec/containers/\d+")
# From the API server's answer to the line in the log, on a busy machine.
_TELLING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Write:
    """One write to a target: where, by which knob, and the values that it set."""

    namespace: str
    target: str
    knob: str
    values: tuple[tuple[str, int], ...]


def audited_writes(lines: Iterable[str]) -> Iterator[Write]:
    """The successful writes of the operator's account, status and events aside."""
    return (write for _, write in timed_writes(lines))


def timed_writes(lines: Iterable[str]) -> Iterator[tuple[float, Write]]:
    """The same, each with when it was answered, seconds since the epoch."""
    for line in lines:
        entry = json.loads(line)
        reference = entry.get("objectRef", {})
        resource, subresource = reference.get("resource"), reference.get("subresource")
        if (
            not _OF_AN_OPERATOR.fullmatch(entry["user"]["username"])
            or entry["stage"] != "ResponseComplete"
            or entry["responseStatus"]["code"] >= 300
            or resource in _TOLD_ELSEWHERE
            or subresource == "status"
            or resource in {*_REVIEWS, "pods"}
            or _released(entry.get("requestObject"))
        ):
            continue
        seconds = datetime.fromisoformat(entry["stageTimestamp"]).timestamp()
        yield (
            seconds,
            Write(
                namespace=reference["namespace"],
                target=f"{resource}/{reference['name']}",
                knob="replicas" if subresource == "scale" else _KNOBS.get(resource, _OTHER),
                values=tuple(sorted(_patched(entry["requestObject"]))),
            ),
        )


def told_changes(lines: Iterable[str]) -> Iterator[tuple[str, Write]]:
    """Outcome and content of each change in the operator's log."""
    for line in lines:
        if " changed namespace=" not in line:
            continue
        pairs = dict(word.split("=", 1) for word in shlex.split(line[line.index("changed ") :])[1:])
        if pairs["knob"] == "dynamic-batching":
            # Limits on servers themselves: the API server knows nothing of them.
            continue
        if pairs["knob"] == LANES:
            yield from _told_lanes(pairs)
            continue
        kind, name = pairs["target"].split("/")
        knob = pairs["knob"]
        if knob not in {"replicas", *_KNOBS.values()}:
            found = next((pairs[key] for key in pairs if key.endswith("_replicas")), None)
            if found is None:
                # Labels of pods: one line for all of them.
                continue
            pairs["replicas"], knob = found, _OTHER
        removed = pairs.get("flags_removed", "").split(",")
        values = {
            key: int(pairs[key].split("->")[-1])
            for key in ("replicas", *_LIMITS, _BOUND, _SHARE)
            if key in pairs and key not in removed and _is_set(key, pairs[key])
        }
        write = Write(
            namespace=pairs["namespace"],
            target=f"{_PLURALS.get(kind, f'{kind.lower()}s')}/{name}",
            knob=knob,
            values=tuple(sorted(values.items())),
        )
        yield pairs["outcome"], write


def _told_lanes(pairs: dict[str, str]) -> Iterator[tuple[str, Write]]:
    """One change of lanes as the bounds that it writes, each in the policy of its class."""
    kind, policies = pairs["target"].split("/")
    lanes = [change for name, change in pairs.items() if name.startswith("lane_")]
    for policy, change in zip(policies.split(","), lanes, strict=True):
        set_to = [(_BOUND, int(change.split("->")[-1]))] if _is_set(_BOUND, change) else []
        target = f"{_PLURALS[kind]}/{policy}"
        yield pairs["outcome"], Write(pairs["namespace"], target, GATEWAY_LIMITS, tuple(set_to))


def differences(audit: Iterable[str], log: Iterable[str]) -> list[str]:
    """Each write that is not told once, and each change told that was not written.

    Where the API server gave no answer the operator cannot know, and says so: such a change may
    have been written or not. One that a test killed, and said so in its log, may not have told the
    write that it made in its last second: one for each kill.
    """
    timed, lines = list(timed_writes(audit)), list(log)
    written = Counter(write for _, write in timed)
    told, perhaps = Counter(), Counter()
    for outcome, write in told_changes(lines):
        if outcome in {"written", "rolled-back"}:
            told[write] += 1
        elif outcome == "unanswered":
            perhaps[write] += 1
    silent = written - told - perhaps
    for killed in killed_at_seconds(lines):
        last = [w for at, w in timed if killed - _TELLING_SECONDS <= at <= killed and silent[w]]
        silent -= Counter(last[-1:])
    return [
        *(f"written and not told {count} times: {write}" for write, count in silent.items()),
        *(f"told and not written {n} times: {w}" for w, n in (told - written).items()),
    ]


def killed_at_seconds(log: Iterable[str]) -> list[float]:
    """When a test killed an operator, by the lines that it left in the log."""
    return [float(line.rpartition("=")[2]) for line in log if line.startswith(KILLED)]


def _is_set(name: str, change: str) -> bool:
    """Whether a change sets a value: a bound may go, or stay because another set it meanwhile."""
    return name != _BOUND or ("->" in change and not change.endswith("unknown"))


def _released(patch: object) -> bool:
    """Whether a write is of `servingslo release`, which tells it on its own output."""
    changes = patch if isinstance(patch, list) else []
    return any("servingslo.dev~1released" in change["path"] for change in changes)


def _patched(patch: list[dict]) -> Iterator[tuple[str, int]]:
    """The values that a JSON Patch of /scale, of a container's arguments or of a route sets."""
    found = {}
    for change in patch:
        if change["path"] == _WEIGHTS_RECORD and change["op"] != "test":
            found[_SHARE] = _thousandths(patch, change.get("value"))
            break
        if change["op"] == "replace" and _CONTAINER.fullmatch(change["path"]):
            found.update(_limits_of(change["value"]))
        if change["op"] != "add":
            continue
        if change["path"] == "/spec/replicas":
            found["replicas"] = change["value"]
            continue
        if change["path"] in _BOUND_PATHS:
            found[_BOUND] = change["value"]
    yield from found.items()


def _limits_of(container: dict) -> Iterator[tuple[str, int]]:
    """The limits of a container's command line."""
    known = {one["name"]: one["value"] for one in container.get("env") or () if "value" in one}
    lines = [*(container.get("command") or ()), *(container.get("args") or ())]
    # Of a flag that stands there twice the engine takes the last.
    words = [part for word in expanded(lines, known) for part in word.split("=", 1)]
    for name, value in pairwise(words):
        limit = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and limit in _LIMITS and value.isdecimal():
            yield limit, int(value)


def _thousandths(patch: list[dict], record: str | None) -> int:
    """The share of the weights that a patch sets for backends that had none by its record.

    record: None where it is taken away with the last of the operator's weights.
    """
    if record is None:
        return 0
    weights = [one["value"] for one in patch if one["path"].endswith("/weight")]
    added = zip(weights, json.loads(record)["former"], strict=True)
    return round(1000 * sum(now for now, former in added if former == 0) / sum(weights))
