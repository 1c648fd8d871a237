"""Names that a tenant writes, through each reader: nothing of another namespace is asked for.

The server answers as one behind a real HTTP client: dots are folded, and a query ends the path. In
`good` is everything that the names ask for; the tenant's namespace is `team`.
"""

import pytest
from yarl import URL

from servingslo.adapters.kubernetes.gateways.destination_rules import DestinationHosts
from servingslo.adapters.kubernetes.gateways.limits import (
    BACKEND_TRAFFIC_POLICY,
    DESTINATION_RULE,
    limit_holders,
)
from servingslo.adapters.kubernetes.gateways.routes import GatewayRoutes
from servingslo.adapters.kubernetes.gateways.routing import GatewayRouting
from servingslo.adapters.kubernetes.gateways.services import GatewayServices
from servingslo.adapters.kubernetes.pods.config_maps import ConfigMaps, started_with
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.errors import ClusterError, InvalidNameError, NotFoundError

GROUP = "gateway.networking.k8s.io"
SECRET = "served-by-the-other-team"


class _Server:
    """Objects by their path; it records where it was asked, as the client sends it."""

    def __init__(self, **own):
        self.own = own
        self.asked = []

    async def get(self, path, query=None):
        sent = URL(f"https://api.example{path}")
        self.asked.append(sent.path_qs)
        if "/namespaces/good/" in sent.path or sent.query_string:
            return {
                "metadata": {"namespace": "good", "name": SECRET},
                "data": {"run.yaml": "max-num-seqs: 96", "SEQS": "96"},
                "spec": {
                    "selector": {"app": SECRET},
                    "rules": [{"backendRefs": [{"name": SECRET}, {"name": SECRET}]}] * 2,
                    "parentRefs": [],
                },
                "items": [],
            }
        name = sent.path.rsplit("/", 1)[1]
        if name in self.own:
            return self.own[name]
        if query is not None:
            return {"metadata": {}, "items": []}
        raise NotFoundError(f"GET {path}: 404")


NAMES = [
    pytest.param("../../good/{plural}/x", id="dots"),
    pytest.param("..%2f..%2fgood%2f{plural}%2fx", id="quoted-dots"),
    pytest.param("x?watch=true", id="query"),
    pytest.param("x/status", id="subresource"),
    pytest.param("..", id="collection"),
    pytest.param("", id="empty"),
]


async def _refused(server, reading, name):
    with pytest.raises(InvalidNameError) as refused:
        await reading
    assert repr(name) in str(refused.value)
    assert SECRET not in str(refused.value)
    assert not any("good" in path or "?" in path for path in server.asked)


def _fields(way, name):
    """A container's words, and its fields, of a pod that refers to a ConfigMap."""
    from_key = {"name": "SEQS", "valueFrom": {"configMapKeyRef": {"name": name, "key": "SEQS"}}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/etc/vllm"}]}
    return {
        "volume": (["--config", "/etc/vllm/run.yaml"], mount),
        "projected": (["--config", "/etc/vllm/run.yaml"], mount),
        "variable": (["--max-num-seqs=$(SEQS)"], {"env": [from_key]}),
        "all-variables": (
            ["--max-num-seqs=$(SEQS)"],
            {"envFrom": [{"configMapRef": {"name": name}}]},
        ),
    }[way]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["volume", "projected", "variable", "all-variables"])
async def test_a_config_map_of_a_pod_template(way, name):
    """Each way to refer to one: its content is not read, and that is said with its name."""
    name = name.format(plural="configmaps")
    args, fields = _fields(way, name)
    source = {"configMap": {"name": name}}
    volume = {"projected": {"sources": [source]}} if way == "projected" else source
    item = {
        "metadata": {"namespace": "team", "name": "chat-1", "uid": "1"},
        "spec": {
            "volumes": [{"name": "v", **volume}],
            "containers": [{"name": "vllm", "args": ["serve", "m", *args], **fields}],
        },
    }
    (container,) = pod_record(item, None).containers
    server = _Server()
    found = await started_with(container, "team", ConfigMaps(server), None, has_file=True)
    assert "name of configmaps" in found.unread
    assert "is not allowed" in found.unread
    assert server.asked == []
    assert "96" not in (*found.args, *found.config)


def _holder(form, spec):
    metadata = {"namespace": "team", "name": "p", "uid": "1", "resourceVersion": "1"}
    return limit_holders(None, form).seen({"metadata": metadata, "spec": spec})


@pytest.mark.parametrize("name", NAMES)
async def test_the_route_of_a_policy(name):
    """Its targetRef has a length, and no pattern."""
    name = name.format(plural="httproutes")
    ref = {"group": GROUP, "kind": "HTTPRoute", "name": name}
    server = _Server()
    policy = _holder(BACKEND_TRAFFIC_POLICY, {"targetRefs": [ref]})
    await _refused(server, GatewayRoutes(server).check(policy, [policy], ["chat-1"]), name)


@pytest.mark.parametrize("name", NAMES)
async def test_the_service_of_a_route(name):
    """Its backendRef has a length, and no pattern; also of a fallback."""
    name = name.format(plural="services")
    rules = [{"backendRefs": [{"name": name}]}]
    route = {"metadata": {"namespace": "team", "name": "r"}, "spec": {"rules": rules}}
    ref = {"group": GROUP, "kind": "HTTPRoute", "name": "r"}
    policy = _holder(BACKEND_TRAFFIC_POLICY, {"targetRefs": [ref]})
    server = _Server(r=route)
    await _refused(server, GatewayRoutes(server).check(policy, [policy], ["chat-1"]), name)
    await _refused(server, GatewayServices(server).check_serves("team", name), name)


@pytest.mark.parametrize("name", ["x?watch=true", "x/status", "x%2fstatus"])
async def test_the_host_of_a_rule(name):
    """A host without dots is a Service of the namespace."""
    server, rule = _Server(), _holder(DESTINATION_RULE, {"host": name})
    await _refused(server, DestinationHosts(server).check(rule, [rule], ["chat-1"]), name)


@pytest.mark.parametrize("name", NAMES)
async def test_the_gateway_of_a_route(name):
    """A parentRef of the route's own namespace, by name."""
    name = name.format(plural="gateways")
    route = {
        "metadata": {"namespace": "team", "name": "r"},
        "spec": {"parentRefs": [{"name": name}], "rules": []},
    }
    server = _Server(r=route)
    said = await GatewayRouting(server).not_kept("team", "r")
    assert f"name of gateways: {name!r} is not allowed" in said
    assert not any("good" in path or "?" in path for path in server.asked)


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        pytest.param({}, False, id="nothing-said"),
        pytest.param({"type": "Accepted", "status": "False"}, False, id="refused"),
        pytest.param({"type": "ResolvedRefs", "status": "True"}, False, id="not-accepted"),
        pytest.param({"type": "Accepted", "status": "True"}, True, id="accepted"),
    ],
)
async def test_a_gateway_of_another_namespace_is_read_only_if_it_accepts_the_route(status, asked):
    """Its listeners say whose routes they take; to all others it does not exist."""
    parent = {"name": "x", "namespace": "good"}
    other = {"parentRef": {"name": "x"}, "conditions": [{"type": "Accepted", "status": "True"}]}
    route = {
        "metadata": {"namespace": "team", "name": "r"},
        "spec": {"parentRefs": [parent], "rules": []},
        "status": {"parents": [other, {"parentRef": parent, "conditions": [status]}]},
    }
    server = _Server(r=route)
    try:
        said = await GatewayRouting(server).not_kept("team", "r")
    except KeyError:
        said = ""
    assert any("/good/" in path for path in server.asked) == asked
    assert asked or "routed to pods' addresses" in said


async def test_a_refusal_is_an_error_of_the_cluster():
    """So every reader reports it, and goes on."""
    with pytest.raises(ClusterError):
        await GatewayServices(_Server()).check_serves("team", "../x")
