"""The CRD at a real API server: what it accepts, refuses, prunes, fills in and shows."""

import random
from typing import Any

import pytest
from tests.integration.crd_server import (
    CRD_NAME,
    CRDS,
    MINIMAL,
    STATUS,
    Server,
    resources,
)
from tests.unit import api_cases
from tests.unit.api_cases import BadSpec, GoodSpec

from servingslo.api.convert import parse_spec
from servingslo.api.crd import custom_resource_definition
from servingslo.api.status_base import STATUS as OF_STATUS
from servingslo.api.v1alpha1 import API_VERSION, KIND, PLURAL
from servingslo.errors import InvalidSpecError
from servingslo_lab.rig.cluster import Rig

REFUSED = [
    *api_cases.bad_values(),
    *api_cases.mistyped_values(),
    *api_cases.missing_fields(),
    *api_cases.broken_rules(),
]


def test_the_crd_is_established_structural_and_stored_whole(server: Server) -> None:
    """The API server takes the schema as it is: nothing dropped, no structural complaint."""
    stored = server.call("GET", f"{CRDS}/{CRD_NAME}").json()
    conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions
    ours = custom_resource_definition()["spec"]["versions"][0]["schema"]
    assert stored["spec"]["versions"][0]["schema"] == ours


@pytest.mark.parametrize("good", [pytest.param(c, id=c.id) for c in api_cases.good_specs()])
def test_a_good_value_is_accepted(server: Server, good: GoodSpec) -> None:
    """Each good twin is accepted under strict field validation."""
    answer = server.create("default", good.spec)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("bad", [pytest.param(c, id=c.id) for c in REFUSED])
def test_a_bad_value_is_refused_with_path_value_and_range(server: Server, bad: BadSpec) -> None:
    """Each bad value is refused by schema or CEL, for clients that ask for no strictness, too."""
    answer = server.create("default", bad.spec, validation="Warn")
    assert answer.status_code == 422, answer.text
    message = answer.json()["message"]
    assert "rule evaluation error" not in message
    assert "messageExpression" not in message
    assert [word for word in (f"spec.{bad.path}", *bad.words) if word not in message] == []


def test_only_a_minimum_of_zero_asks_for_an_idle_time(server: Server) -> None:
    """One below it is answered with the range of the minimum alone."""
    spec = api_cases.changed({"replicas.min": -2, "replicas.idleAfter": None})
    message = server.create("default", spec).json()["message"]
    assert "from 0 to 10000" in message
    assert "idleAfter" not in message


DURATION_PARTS = [
    "0",
    "1",
    "5",
    "30",
    "999999",
    "1.5",
    ".",
    "ms",
    "s",
    "m",
    "h",
    "d",
    "us",
    "-",
    " ",
]
QUANTITY_PARTS = [
    "0",
    "1",
    "16",
    "1.5",
    ".",
    "e3",
    "E",
    "e-3",
    "Ki",
    "Gi",
    "G",
    "m",
    "n",
    "K",
    "-",
    "+",
]
NAME_PARTS = ["a", "b", "0", "-", ".", "A", "_", "/", " ", "é"]
NUMBERS = [0, 1, 50, 99.9, 99.91, 0.1, 0.95, 0.96, 1e30, 1e-9, -1]
COUNTS = [-1, 0, 1, 2, 8, 9, 1024, 10000, 10001, 65536, 2**31, 2**53, 3.0]
ODD_VALUES = {
    "objectives[1].threshold": DURATION_PARTS,
    "coldStart": DURATION_PARTS,
    "transfer": DURATION_PARTS,
    "pools[0].coldStart": DURATION_PARTS,
    "pools[0].name": NAME_PARTS,
    "gpus": COUNTS,
    "gpusPerReplica": COUNTS,
    "pools[1].replicas.min": COUNTS,
    "fallback.staleAfter": DURATION_PARTS,
    "kvCache.model.weights": QUANTITY_PARTS,
    "kvCache.model.workspace": QUANTITY_PARTS,
    "targetRef.apiVersion": NAME_PARTS,
    "targetRef.name": NAME_PARTS,
    "batching.container": NAME_PARTS,
    "objectives[1].percentile": NUMBERS,
    "utilization.target": NUMBERS,
    "kvCache.target": NUMBERS,
    "replicas.min": COUNTS,
    "replicas.toleratedFailures": COUNTS,
    "batching.maxSequences": COUNTS,
    "fallback.replicas": COUNTS,
}


@pytest.mark.parametrize("path", ODD_VALUES)
def test_models_and_api_server_agree_on_odd_values(server: Server, path: str) -> None:
    """Whatever is written, the operator accepts a spec exactly when the API server does."""
    rng = random.Random(path)  # noqa: S311 - made-up manifests, not a secret
    parts = ODD_VALUES[path]
    for _ in range(40):
        words = rng.choices(parts, k=rng.randint(1, 4))
        value = "".join(words) if isinstance(parts[0], str) else words[0]
        spec = api_cases.changed({path: value})
        assert (server.create("default", spec).status_code == 201) == accepted(spec), value


def accepted(spec: dict[str, Any]) -> bool:
    """Whether the operator's own models take the spec."""
    try:
        parse_spec(spec)
    except InvalidSpecError:
        return False
    return True


UNKNOWN = [
    pytest.param("behavior.scaleUp.tolerance", "0.1", id="tolerance-not-honoured-yet"),
    pytest.param("role", "prefill", id="field-of-a-later-version"),
    pytest.param("objectives[0].treshold", "1s", id="misspelt"),
]


@pytest.mark.parametrize(("path", "value"), UNKNOWN)
def test_unknown_fields_are_refused_by_strict_validation(
    server: Server, path: str, value: object
) -> None:
    """What kubectl asks for: an unknown field is an error that names it."""
    answer = server.create("default", api_cases.changed({path: value}))
    assert answer.status_code == 400
    assert f'unknown field "spec.{path}"' in answer.json()["message"]


@pytest.mark.parametrize(("path", "value"), UNKNOWN)
def test_unknown_fields_are_pruned_with_a_warning_without_strict_validation(
    server: Server, path: str, value: object
) -> None:
    """A client that asks for nothing gets the warning, and the field is gone."""
    answer = server.create("default", api_cases.changed({path: value}), validation="Warn")
    assert answer.status_code == 201
    assert f'unknown field \\"spec.{path}\\"' in answer.headers["Warning"]
    assert answer.json()["spec"] == api_cases.changed({})


def test_the_api_server_fills_in_the_defaults_of_the_models(server: Server) -> None:
    """A minimal resource is stored with exactly the defaults that the operator assumes."""
    answer = server.create("default", MINIMAL)
    assert answer.status_code == 201, answer.text
    expected = parse_spec(MINIMAL).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert answer.json()["spec"] == expected


def test_pools_get_the_defaults_of_the_models(server: Server) -> None:
    """A pool that states nothing more than its bounds is stored as the operator reads it."""
    spec = {"objectives": MINIMAL["objectives"], "pools": pools("h100", "l4")}
    answer = server.create("default", spec)
    assert answer.status_code == 201, answer.text
    expected = parse_spec(spec).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert answer.json()["spec"] == expected


def test_a_stored_resource_moves_from_its_target_to_pools_and_back(
    server: Server, namespace: str
) -> None:
    """Defaults that the API server stored before do not count as stated."""
    server.create(namespace, MINIMAL, dry_run=False)
    path = f"{resources(namespace)}/llama-chat"
    apart = {"targetRef": None, "replicas": {"max": None}, "pools": pools("h100", "l4")}
    merge = {"Content-Type": "application/merge-patch+json"}
    moved = server.call("PATCH", path, json={"spec": apart}, headers=merge)
    assert moved.status_code == 200, moved.text
    assert moved.json()["spec"]["coldStart"] == "Measured"
    together = {"targetRef": MINIMAL["targetRef"], "replicas": {"max": 8}, "pools": None}
    back = server.call("PATCH", path, json={"spec": together}, headers=merge)
    assert back.status_code == 200, back.text


def pools(*names: str) -> list[dict[str, Any]]:
    """Combined pools of these names."""
    return [
        {
            "name": name,
            "targetRef": {"kind": "Deployment", "name": f"llama-{name}"},
            "replicas": {"max": 8},
            "cost": {"gpuHourly": 2.5},
        }
        for name in names
    ]


def test_a_resource_without_spec_is_refused(server: Server, namespace: str) -> None:
    """Nothing is scaled by a resource that says nothing."""
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "empty"}}
    answer = server.call("POST", resources(namespace), json=body)
    assert answer.status_code == 422
    assert "spec: Required value" in answer.json()["message"]


def test_status_keeps_every_field_and_spec_is_out_of_its_reach(
    server: Server, namespace: str
) -> None:
    """A full status comes back as written; writing it changes neither spec nor generation."""
    created = server.create(namespace, MINIMAL, dry_run=False).json()
    path = f"{resources(namespace)}/llama-chat"
    changed = created | {"status": STATUS, "spec": created["spec"] | {"mode": "Paused"}}
    answer = server.call(
        "PUT", f"{path}/status", json=changed, params={"fieldValidation": "Strict"}
    )
    assert answer.status_code == 200, answer.text
    stored = server.call("GET", path).json()
    assert stored["status"] == STATUS
    assert stored["spec"] == created["spec"]
    assert stored["metadata"]["generation"] == 1


def test_there_is_no_scale_subresource(server: Server, namespace: str) -> None:
    """Nothing can scale a ServingSLO itself: no autoscaler is put on top of another."""
    server.create(namespace, MINIMAL, dry_run=False)
    path = f"{resources(namespace)}/llama-chat/scale"
    assert server.call("GET", path).status_code == 404


def test_get_shows_the_printer_columns(server: Server, namespace: str) -> None:
    """`kubectl get sslo` shows target, counts, SLO, READY, the reason and utilization.

    `-o wide` also shows mode, binding constraint, pools, and columns of features.
    """
    created = server.create(namespace, MINIMAL, dry_run=False).json()
    path = resources(namespace)
    server.call("PUT", f"{path}/llama-chat/status", json=created | {"status": STATUS})
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    table = server.call("GET", path, headers={"Accept": accept}).json()
    columns = table["columnDefinitions"]
    names = [column["name"].upper() for column in columns]
    of_features = [name.upper() for part in OF_STATUS.parts() for name, *_ in part.columns]
    wide = ["MODE", "BINDING", *of_features, "POOLS"]
    assert [name for name, c in zip(names, columns, strict=True) if c["priority"]] == wide
    (row,) = table["rows"]
    shown = dict(zip(names, row["cells"], strict=True))
    assert list(shown) == [
        "NAME",
        "TARGET",
        "REPLICAS",
        "DESIRED",
        "SLO",
        "READY",
        "REASON",
        "UTIL",
        "AGE",
        *wide,
    ]
    for name in ("AGE", *of_features):
        del shown[name]
    cells = ("llama-chat", "llama-prefill + 1 more", 3, 5, "True", "True", "KVCacheBound", 0.71)
    assert tuple(shown.values()) == (*cells, "Auto", "kv-cache", "prefill 2/decode 1")


def test_short_name_and_category_are_served(server: Server) -> None:
    """`kubectl get sslo` and `kubectl get serving` find the resource."""
    served = server.call("GET", f"/apis/{API_VERSION}").json()["resources"]
    (entry,) = [resource for resource in served if resource["name"] == PLURAL]
    assert entry["shortNames"] == ["sslo"]
    assert entry["categories"] == ["serving"]
    assert entry["namespaced"] is True


def test_explain_has_a_description_for_every_field(server: Server, rig: Rig) -> None:
    """The published OpenAPI document, which `kubectl explain` reads, describes every field."""

    def published() -> dict[str, Any]:
        document = server.call("GET", f"/openapi/v3/apis/{API_VERSION}")
        schemas = document.json().get("components", {}).get("schemas", {}) if document.ok else {}
        found = [schema for name, schema in schemas.items() if name.endswith(f".{KIND}")]
        return found[0] if found else {}

    rig.wait_for(lambda: bool(published()), what="the OpenAPI document of the CRD")
    ours = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert described(published(), "") == described(ours, "") != {}


def described(schema: dict[str, Any], path: str) -> dict[str, str]:
    """The description of every field of spec and status by its path."""
    found = {}
    for name, part in schema.get("properties", {}).items():
        below = f"{path}.{name}"
        if below.startswith((".spec", ".status")):
            found[below] = part["description"]
            found |= described(part, below)
    return found | (described(schema["items"], f"{path}[]") if "items" in schema else {})
