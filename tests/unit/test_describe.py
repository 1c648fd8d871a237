"""`kubectl describe` of a ServingSLO fits on a screen or two, and each number has one name."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from controller_fakes import NAME, Operator, record_of

from servingslo.adapters.kubernetes.resources import KubernetesResources, resource_record
from servingslo.cli.decision_document import decision_of, last_document
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import learned

# Of a status with two objectives; with prices and admission. It was 400 before.
SHORT, FULL = 78, 93
EVERYTHING = {"cost": {"gpuHourly": 2.5}, "admission": {"mode": "Recommend"}}


def described(value: Mapping[str, Any], level: int = 0) -> Iterator[str]:
    """The lines that `kubectl describe` prints of an object it has no printer for.

    Source: kubectl, pkg/describe, printUnstructuredContent: keys in order, a line for each leaf.
    """
    for key, entry in sorted(value.items()):
        indent = "  " * level
        if isinstance(entry, Mapping):
            yield f"{indent}{key}:"
            yield from described(entry, level + 1)
        elif isinstance(entry, list):
            yield f"{indent}{key}:"
            for part in entry:
                if isinstance(part, Mapping):
                    yield from described(part, level + 1)
                else:
                    yield f"{indent}  {part}"
        else:
            yield f"{indent}{key}: {entry}"


async def _status(**spec: Any) -> Mapping[str, Any]:
    operator = Operator()
    operator.apply(record_of(**spec))
    await operator.ticks(60)
    return operator.resources.status()


@pytest.mark.parametrize(
    ("spec", "most"),
    [pytest.param({}, SHORT, id="short"), pytest.param(EVERYTHING, FULL, id="all")],
)
async def test_a_status_is_a_screen_of_lines(spec: dict[str, Any], most: int) -> None:
    """What answers is there, what only machines read is one string."""
    status = await _status(**spec)
    lines = list(described(status))
    assert len(lines) <= most, "\n".join(lines)
    for field in ("reason", "summary", "bindingConstraint", "conditions", "learned"):
        assert status[field]
    assert set(EVERYTHING) <= set(status) if spec else "cost" not in status
    assert {entry["status"] for entry in status["conditions"]} <= {"True", "Unknown"}


class _Server:
    """An API server that merges patches of one status, as JSON merge patch says."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    async def patch(self, _path: str, body: Mapping[str, Any], _type: object) -> None:
        """Merge it."""
        _merge(self.status, body["status"])

    def read(self) -> Mapping[str, Any]:
        """The status as the operator and `servingslo explain` read it."""
        metadata = {"namespace": "inference", "name": NAME, "uid": "uid-1"}
        return resource_record({"metadata": metadata, "status": self.status}).status


def _merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value


async def test_what_only_machines_read_comes_last() -> None:
    """The two strings of a thousand characters part nothing that people read."""
    status, server = await _status(**EVERYTHING), _Server()
    resources, ref = KubernetesResources(server), record_of().ref
    await resources.patch_status(ref, status)
    lines = list(described(server.status))
    assert [line.split(":")[0] for line in lines[-3:]] == [
        "workingState",
        "  decision",
        "  learned",
    ]
    assert max(map(len, lines[:-2])) < 600 < min(map(len, lines[-2:]))
    assert server.read() == status
    # A version of before writes its own field: that is the newer one, until it is written again.
    _merge(server.status, {"learned": {"data": "older form", "savedAt": "later"}})
    assert server.read()["learned"] == {"data": "older form", "savedAt": "later"}
    await resources.patch_status(ref, {"learned": status["learned"]})
    assert server.read() == status
    await resources.patch_status(ref, {"learned": None})
    assert "learned" not in server.read()
    assert server.read()["lastDecision"] == status["lastDecision"]


async def test_no_number_stands_under_two_names() -> None:
    """Values with three digits do not repeat; a prediction may equal what was observed."""
    status = await _status(**EVERYTHING)
    equal = ("percentile", "predictedSeconds")
    lines = [line for line in described(status) if not any(name in line for name in equal)]
    leaves = [line.rpartition(": ")[2] for line in lines]
    fractions = [leaf for leaf in leaves if "." in leaf and leaf.replace(".", "").isdecimal()]
    assert fractions
    assert [value for value, count in Counter(fractions).items() if count > 1] == []


async def test_what_is_packed_is_what_the_operator_knows() -> None:
    """The decision in full and the learned state come out of the status as they went in."""
    operator = Operator()
    operator.apply(record_of())
    await operator.ticks(60)
    status = operator.resources.status()
    document = last_document(status)
    assert document is not None
    assert document["steps"]
    decision = decision_of(document, "inference", NAME)
    words = status["decisions"][0].split()
    assert words == [status["lastDecision"]["time"], decision.action, "2", *words[3:-1], words[-1]]
    assert (decision.replicas_after, decision.reason) == (2, words[-1])
    stored = learned_of(status)
    assert stored is not None
    assert set(stored) == {*learned(PlannerState(), 0.0), "target"}


async def test_what_a_former_version_stored_is_taken_up() -> None:
    """An upgrade keeps the law: the object of before is read, and replaced by the string."""
    operator = Operator()
    operator.apply(record_of())
    await operator.ticks(60)
    status = dict(operator.resources.status())
    status["learned"] = {
        "schemaVersion": 1,
        "savedAt": status["learned"]["savedAt"],
        "state": learned_of(status),
    }
    record = operator.resources.records[NAME]
    operator.resources.records[NAME] = replace(record, status=status)
    operator.start()
    await operator.ticks(2)
    assert operator.resources.condition("ModelTrusted")[0] == "True"
    await operator.ticks(30)
    written = operator.resources.status()["learned"]
    assert set(written) == {"savedAt", "data"}
