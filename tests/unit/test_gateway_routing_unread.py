"""How a route is routed, where the API server does not say, and how often it is asked."""

import asyncio

from servingslo.adapters.kubernetes.gateways.routing import GatewayRouting
from servingslo.errors import ClusterUnavailableError, NotFoundError, PermissionDeniedError

GATE = {"name": "gate", "namespace": "infra"}
ROUTE = {
    "metadata": {"namespace": "team", "name": "chat"},
    "spec": {"parentRefs": [GATE], "rules": []},
    "status": {
        "parents": [{"parentRef": GATE, "conditions": [{"type": "Accepted", "status": "True"}]}]
    },
}


class _Client:
    """An API server with this route, in whose Gateway's namespace nothing may be read."""

    def __init__(self, *, policy=None, unavailable=False):
        self.policy = policy
        self.unavailable = unavailable
        self.paths = []

    async def get(self, path, query=None):
        self.paths.append(path)
        if self.unavailable:
            raise ClusterUnavailableError("GET: no answer in time")
        if "/namespaces/infra/" in path:
            raise PermissionDeniedError(f"GET {path}: 403 forbidden")
        if path.endswith("/namespaces/team/httproutes/chat"):
            return ROUTE
        if path.endswith("/namespaces/team/backendtrafficpolicies"):
            return {"metadata": {}, "items": [] if self.policy is None else [self.policy]}
        raise NotFoundError(path)


def _said(client, name="chat"):
    return asyncio.run(GatewayRouting(client).not_kept("team", name))


def test_what_may_not_be_read_is_not_taken_to_be_set():
    """An operator with rights in some namespaces alone may not see the Gateway."""
    said = _said(_Client())
    assert "cannot be read" in said
    assert "403 forbidden" in said
    assert "set routingType: Service in its BackendTrafficPolicy" in said
    assert "no answer in time" in _said(_Client(unavailable=True))


def test_a_policy_of_the_route_needs_nothing_of_the_gateway():
    """It comes before everything else; one that the gateway does not accept does not count."""
    ref = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "chat"}
    policy = {"metadata": {}, "spec": {"targetRefs": [ref], "routingType": "Service"}}
    client = _Client(policy=policy)
    assert _said(client) == ""
    assert not any("infra" in path for path in client.paths)
    refused = {"conditions": [{"type": "Accepted", "status": "False"}]}
    assert _said(_Client(policy={**policy, "status": {"ancestors": [refused]}}))


def test_the_answer_is_remembered_for_half_a_minute():
    """A tick asks nothing for most of its targets."""

    async def twice(client):
        routing = GatewayRouting(client)
        said = [await routing.not_kept("team", "chat") for _ in range(2)]
        return said[0] == said[1], len(client.paths)

    client = _Client()
    same, asked = asyncio.run(twice(client))
    assert same
    assert asked == len(set(client.paths))
