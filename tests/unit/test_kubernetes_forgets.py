"""What tenants can make the operator remember is of their own namespace, and is forgotten again."""

import re

import pytest

from servingslo.adapters.kubernetes.api import discovery as discovery_module
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.events import KubernetesEvents
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.pods.records import OwnerRecord, ScalerRecord
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.errors import NotFoundError
from servingslo.explain.events import Event, EventType
from servingslo.reasons import Reason


class _Nothing:
    """An API server that has none of what it is asked for, and takes whatever is made."""

    async def get(self, path, _query=None):
        raise NotFoundError(path)

    async def create(self, _path, body):
        self.made = body
        return body


def test_a_scaler_that_names_one_target_after_another_leaves_nothing_behind():
    """Its target is a field that may be written each second."""
    inventory = Inventory(_Nothing())
    changed, old = inventory._scaler_changed("HorizontalPodAutoscaler"), None
    for number in range(100):
        new = ScalerRecord(
            namespace="a",
            name="h",
            group="apps",
            target_kind="Deployment",
            target_name=f"t{number}",
        )
        changed(old, new)
        old = new
    assert inventory.scalers_of("a", "apps", "Deployment", "t99") == ("HorizontalPodAutoscaler/h",)
    changed(old, None)
    assert not inventory._scalers


async def test_api_versions_that_nobody_serves_are_forgotten(monkeypatch):
    """A ServingSLO may name another with each edit."""
    now = [0.0]
    monkeypatch.setattr(discovery_module.SystemClock, "elapsed_seconds", lambda: now[0])
    discovery = Discovery(_Nothing())
    for number in range(100):
        now[0] += 1.0
        with pytest.raises(NotFoundError):
            await discovery.resolve(f"g{number}.example/v1", "Thing")
    assert len(discovery._known) <= 16


async def test_events_that_the_server_has_forgotten_are_forgotten():
    """Each generation of a spec that is refused has one of its own."""
    events = KubernetesEvents(_Nothing())
    ref = ResourceRef(namespace="a", name="x", uid="u")
    for number in range(10_000):
        event = Event(
            type=EventType.WARNING, reason=Reason.INVALID_SPEC, message="no", key=f"spec/{number}"
        )
        await events.post(ref, event, 10.0 * number)
    assert len(events._posted) <= 1024


@pytest.mark.parametrize("name", ["x" * 253, "x" * 235 + ".y" + "z" * 16])
async def test_an_event_of_the_longest_name_has_a_name_that_is_allowed(name):
    """At most 253 characters, and each part between dots ends in a letter or digit."""
    server = _Nothing()
    ref = ResourceRef(namespace="a", name=name, uid="u")
    event = Event(type=EventType.WARNING, reason=Reason.INVALID_SPEC, message="no", key="spec")
    await KubernetesEvents(server).post(ref, event, 0.0)
    assert re.fullmatch(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", server.made["metadata"]["name"])
    assert ".." not in server.made["metadata"]["name"]


def test_a_replica_set_elsewhere_that_claims_an_owner_is_no_template_of_its():
    """Until it is collected a tenant's would hold a Deployment of another one's as rolling out."""
    inventory = Inventory(_Nothing())
    for namespace, uid in (("a", "1"), ("b", "2")):
        record = OwnerRecord(namespace=namespace, uid=uid, owner_uid="chat", replicas=1)
        inventory._owner_changed(None, record)
    assert not inventory.rolls_out("a", "chat")
