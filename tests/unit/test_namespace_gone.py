"""A watched namespace is deleted with its Role: the operator serves the others as before."""

from dataclasses import replace
from itertools import islice
from typing import Any

import kopf
import pytest
from tests.unit.controller_fakes import NAME, NAMESPACE, Operator, record_of

from servingslo.adapters.kubernetes.gateways.limits import BACKEND_TRAFFIC_POLICY, limit_holders
from servingslo.adapters.kubernetes.resources import (
    KubernetesResources,
    PartlyListedError,
    ResourceRef,
)
from servingslo.errors import PermissionDeniedError
from servingslo.handlers.lifecycle import configure

WATCHED = (NAMESPACE, "deleted")
LIMIT = '{"name": "chat", "uid": "u", "limit": 40, "former": null, "hadParent": false}'


class _Server:
    """One object of each kind in each namespace that still has its Role."""

    def __init__(self, *refusing: str) -> None:
        self.refusing = refusing

    async def get(self, path: str, _query: object = None) -> dict[str, Any]:
        """The list of a namespace."""
        namespace = path.split("/")[-2]
        if namespace in self.refusing:
            raise PermissionDeniedError(f"GET {path}: 403 forbidden")
        metadata = {
            "namespace": namespace,
            "name": "chat",
            "uid": "u",
            "annotations": {"servingslo.dev/limit": LIMIT},
        }
        return {"items": [{"metadata": metadata, "spec": {}}], "metadata": {}}


async def test_the_resources_of_the_others_are_listed() -> None:
    """The namespace is told with the server's words; if all refuse, that is an error."""
    client: Any = _Server("deleted")
    with pytest.raises(PartlyListedError, match="namespaces/deleted/servingslos: 403") as told:
        await KubernetesResources(client, namespaces=WATCHED).read_all()
    assert told.value.refused == {"deleted"}
    assert [one.ref.namespace for one in told.value.found] == [NAMESPACE]
    client = _Server(*WATCHED)
    for namespaces in (WATCHED, WATCHED[:1]):
        with pytest.raises(PermissionDeniedError):
            await KubernetesResources(client, namespaces=namespaces).read_all()


async def test_what_was_written_in_the_others_is_found(caplog: pytest.LogCaptureFixture) -> None:
    """So it is put back when nobody wants it any more, also by `servingslo release`."""
    client: Any = _Server("deleted")
    found = await limit_holders(client, BACKEND_TRAFFIC_POLICY, namespaces=WATCHED).owned()
    assert [one.namespace for one in found] == [NAMESPACE]
    assert "namespaces/deleted/backendtrafficpolicies: 403" in caplog.text
    client = _Server(*WATCHED)
    for namespaces in (WATCHED, WATCHED[:1]):
        with pytest.raises(PermissionDeniedError):
            await limit_holders(client, BACKEND_TRAFFIC_POLICY, namespaces=namespaces).owned()


async def test_the_loop_goes_on_with_what_it_knows(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is put back for resources of which it is not known whether they exist."""
    operator = Operator()
    own, other = operator.apply(record_of()), record_of(name="other", uid="uid-other")
    operator.registry.upsert(
        replace(other, ref=ResourceRef(namespace="deleted", name="other", uid="uid-other"))
    )
    operator.apply(record_of(name="gone", uid="uid-gone"))
    refused = {"deleted": PermissionDeniedError("GET servingslos of deleted: 403")}

    async def read_all() -> None:
        raise PartlyListedError(refused, [own.record])

    monkeypatch.setattr(operator.resources, "read_all", read_all)
    operator.controller._listed = False
    await operator.controller._relist_when_due(0.0)
    assert operator.controller._listed
    assert operator.registry.resources.keys() == {(NAMESPACE, NAME), ("deleted", "other")}
    assert "servingslos of deleted: 403" in caplog.text
    wanted = operator.controller.undoing.wanted
    assert wanted(ResourceRef(namespace=NAMESPACE, name="gone", uid="uid-gone")) == ()
    assert wanted(ResourceRef(namespace="deleted", name="gone", uid="u")) is None
    assert wanted(ResourceRef(namespace="deleted", name="other", uid="uid-other"))


def test_a_watch_that_is_refused_is_tried_without_end() -> None:
    """Kopf ends the process once its attempts are used up; each request has all of them."""
    settings = kopf.OperatorSettings()
    configure(settings)
    backoffs: Any = settings.networking.error_backoffs
    for _ in range(2):
        delays = list(islice(backoffs, 10_000))
        assert delays[0] < 1.0
        assert len(delays) == 10_000
        assert max(delays) == 10.0
