"""The registry of resources: who is awake, who is gone, and who owns a target."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.controller.registry import Registry, target_conflicts
from servingslo.reasons import Reason


def _record(
    name: str = "chat",
    *,
    uid: str = "",
    generation: int = 1,
    created_seconds: float = 0.0,
    target: str = "chat",
    kind: str = "Deployment",
    api_version: str = "apps/v1",
    namespace: str = "team",
    **spec: Any,
) -> ResourceRecord:
    return ResourceRecord(
        ref=ResourceRef(namespace=namespace, name=name, uid=uid or name),
        generation=generation,
        created_seconds=created_seconds,
        deleting=False,
        spec={
            "targetRef": {"apiVersion": api_version, "kind": kind, "name": target},
            "objectives": [{"metric": "ttft", "percentile": 99, "threshold": "1s"}],
            "replicas": {"max": 4},
            **spec,
        },
        status={},
    )


def _conflicts(*records: ResourceRecord) -> dict:
    registry = Registry()
    for record in records:
        registry.upsert(record)
    return target_conflicts(registry.resources.values())


def test_a_new_or_changed_resource_wakes_the_loop() -> None:
    """Creation and a new generation are looked at at once."""
    registry = Registry()
    registry.upsert(_record())
    assert registry.take_woken() == {("team", "chat")}
    registry.upsert(_record(generation=2))
    assert registry.take_woken() == {("team", "chat")}


def test_a_change_of_status_wakes_nobody() -> None:
    """The loop's own status writes come back as events of the same generation."""
    registry = Registry()
    registry.upsert(_record())
    registry.take_woken()
    registry.upsert(_record())
    assert registry.take_woken() == frozenset()


def test_an_authoritative_list_removes_ghosts() -> None:
    """What a list does not hold is gone, even if no deletion was seen."""
    registry = Registry()
    registry.upsert(_record("ghost"))
    registry.upsert(_record("alive"))
    registry.replace_all([_record("alive"), _record("new")])
    assert set(registry.resources) == {("team", "alive"), ("team", "new")}


def test_a_deleted_resource_that_a_finalizer_keeps_in_a_list_is_gone() -> None:
    """The watch removed it at its deletion; a list does not bring it back to own its target."""
    registry = Registry()
    deleted = replace(_record("old", created_seconds=1.0), deleting=True, generation=2)
    registry.replace_all([deleted, _record("young", created_seconds=9.0)])
    assert set(registry.resources) == {("team", "young")}
    assert registry.conflicts() == {}


async def test_waiting_ends_when_something_wakes() -> None:
    """The loop sleeps until something changes."""
    registry = Registry()
    waiting = asyncio.create_task(registry.woken())
    await asyncio.sleep(0)
    assert not waiting.done()
    registry.wake(("team", "chat"))
    async with asyncio.timeout(5.0):
        await waiting


def test_an_invalid_spec_is_kept_with_its_reasons() -> None:
    """A resource that cannot be decided for is there all the same, to be told so."""
    registry = Registry()
    resource = registry.upsert(_record(replicas={"min": 5, "max": 4}))
    assert resource.targets is None
    assert resource.invalid is not None
    assert "replicas" in str(resource.invalid)


def test_the_older_resource_owns_the_target() -> None:
    """The younger one is told which resource is older."""
    conflicts = _conflicts(
        _record("young", created_seconds=20.0), _record("old", created_seconds=10.0)
    )
    assert set(conflicts) == {"young"}
    assert conflicts["young"].reason is Reason.TARGET_CONFLICT
    assert "old" in conflicts["young"].detail


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_record("b", target="other"), id="another-name"),
        pytest.param(_record("b", kind="StatefulSet"), id="another-kind"),
        pytest.param(_record("b", api_version="argoproj.io/v1alpha1"), id="another-group"),
        pytest.param(_record("b", namespace="other"), id="another-namespace"),
        pytest.param(_record("b", replicas={"min": 5, "max": 4}), id="an-invalid-one"),
    ],
)
def test_different_targets_do_not_conflict(other: ResourceRecord) -> None:
    """Only the same object of the same namespace is one target."""
    assert _conflicts(_record("a"), other) == {}


def test_the_version_of_a_group_makes_no_other_target() -> None:
    """apps/v1 and apps/v1beta1 name the same Deployment."""
    assert set(_conflicts(_record("a"), _record("b", api_version="apps/v1beta1"))) == {"b"}


def test_a_resource_that_was_looked_up_anew_is_no_rival_of_itself() -> None:
    """In the middle of a tick the registry holds another object of it; an older one owns still."""
    registry = Registry()
    planned = registry.upsert(_record(created_seconds=5.0))
    registry.upsert(_record(created_seconds=5.0))
    assert registry.resources["team", "chat"] is not planned
    assert registry.owner_conflict(planned) is None
    registry.upsert(_record("elder", created_seconds=1.0))
    conflict = registry.owner_conflict(planned)
    assert conflict is not None
    assert "elder" in conflict.detail
