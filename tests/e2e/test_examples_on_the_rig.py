"""Every example at a real API server: what `kubectl apply --dry-run=server` would answer.

So the CRDs' schemas and rules (CEL) are asked, of ours and of the projects' that the examples use.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.dynamic import DynamicClient
from tests.unit.test_examples import FOLDERS, documents

from servingslo.api.crd import definitions
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import (
    CAPACITY_BUFFER,
    ENVOY_GATEWAY,
    GATEWAY_API,
    ISTIO,
    KEDA,
    install_crds,
    manifests,
)

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "servingslo-operator"
# Argo CD's own CRD is not on the rig: its Application is parsed, and no server is asked.
UNASKED_GROUPS = ("argoproj.io/",)
UPSTREAM = (ISTIO, KEDA, CAPACITY_BUFFER)
OURS = {one["metadata"]["name"]: one for one in definitions()}
ALREADY_THERE = 409


@pytest.fixture(scope="module")
def client(rig: Rig) -> Iterator[DynamicClient]:
    """A client of an API server that knows every kind of the examples.

    Afterwards it knows none that it did not know before, Gateway API and Envoy Gateway apart.
    """
    api = rig.api_client()
    extensions = kubernetes.client.ApiextensionsV1Api(api)
    names = [*OURS, *(m["metadata"]["name"] for one in UPSTREAM for m in manifests(one))]
    there = {one.metadata.name for one in extensions.list_custom_resource_definition().items}
    install_crds(api, GATEWAY_API, ENVOY_GATEWAY, *UPSTREAM)
    for name in OURS.keys() - there:
        extensions.create_custom_resource_definition(OURS[name])
    rig.wait_for(lambda: all(_is_established(extensions, name) for name in OURS), what="CRDs")
    yield DynamicClient(api)
    for name in names:
        if name not in there:
            extensions.delete_custom_resource_definition(name)


def _is_established(extensions: kubernetes.client.ApiextensionsV1Api, name: str) -> bool:
    conditions = extensions.read_custom_resource_definition(name).status.conditions or []
    return any(c.type == "Established" and c.status == "True" for c in conditions)


def dry_run(client: DynamicClient, document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """What the server would store. Unknown fields are refused, as by kubectl."""
    resource = client.resources.get(api_version=document["apiVersion"], kind=document["kind"])
    if resource.namespaced:
        document["metadata"]["namespace"] = namespace
    stored: dict[str, Any] = client.server_side_apply(
        resource,
        body=document,
        name=document["metadata"]["name"],
        namespace=namespace if resource.namespaced else None,
        field_manager="example",
        dry_run="All",
        query_params=[("fieldValidation", "Strict")],
    ).to_dict()
    return stored


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_api_server_accepts_it(client: DynamicClient, namespace: str, folder: Path) -> None:
    """Every object is accepted as it is, with no field that the server does not know."""
    asked = [one for one in documents(folder) if not one["apiVersion"].startswith(UNASKED_GROUPS)]
    for document in asked:
        stored = dry_run(client, document, namespace)
        assert stored["metadata"]["uid"], document["kind"]
    assert any(one["kind"] == "ServingSLO" for one in asked)


def test_an_api_server_refuses_a_broken_one(client: DynamicClient, namespace: str) -> None:
    """The control: a field of another name, and a value out of range, are refused."""
    every = documents(ROOT / "examples" / "01-minimal")
    document = next(one for one in every if one["kind"] == "ServingSLO")
    document["spec"]["replicas"]["goal"] = 3
    with pytest.raises(kubernetes.client.ApiException, match="goal"):
        dry_run(client, document, namespace)
    document["spec"]["replicas"] = {"min": 3, "max": 2}
    with pytest.raises(kubernetes.client.ApiException, match="max"):
        dry_run(client, document, namespace)


@pytest.mark.parametrize(
    "values", sorted(ROOT.glob("examples/*/values.yaml")), ids=lambda path: path.parent.name
)
def test_the_chart_takes_its_values(rig: Rig, values: Path) -> None:
    """Helm renders the chart with them; its schema refuses what it does not know."""
    rendered = rig.helm("template", "servingslo", str(CHART), f"--values={values}").stdout
    assert "kind: Deployment" in rendered
