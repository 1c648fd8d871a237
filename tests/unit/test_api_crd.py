"""The generated CRD: structural, described, and equal to the committed files."""

import json
import re
from pathlib import Path

import pytest
import yaml

from servingslo.api.crd import (
    CRD_FILES,
    REFERENCE_FILE,
    custom_resource_definition,
    definitions,
    render_crd,
    write_crd,
)
from servingslo.api.reference import render_reference, repeats
from servingslo.api.spec_base import SPEC
from servingslo.api.status_base import STATUS

ROOT = Path(__file__).parents[2]
# Keywords that the API server refuses or ignores in a structural schema of apiextensions.k8s.io/v1.
NOT_STRUCTURAL = {
    "$ref",
    "$defs",
    "additionalProperties",
    "anyOf",
    "const",
    "definitions",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "title",
}


def version():
    """The version of the CRD that is stored."""
    return custom_resource_definition()["spec"]["versions"][0]


def nodes(schema, path=""):
    """(path, schema) of every node, the root first."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


NODES = [
    pytest.param(p, s, id=p or "root") for p, s in nodes(version()["schema"]["openAPIV3Schema"])
]


def test_committed_files_equal_the_generated_ones(tmp_path: Path) -> None:
    """Neither crds/ nor the chart's copies nor the reference is older than the models."""
    written = [path.relative_to(tmp_path) for path in write_crd(tmp_path)]
    assert {*CRD_FILES, REFERENCE_FILE} <= set(written)
    old = [one for one in written if (ROOT / one).read_bytes() != (tmp_path / one).read_bytes()]
    assert old == [], "run `make crd`"


def test_the_charts_copy_equals_the_crd(tmp_path: Path) -> None:
    """Both copies are the CRD, byte by byte."""
    write_crd(tmp_path)
    assert {(tmp_path / path).read_text(encoding="utf-8") for path in CRD_FILES} == {render_crd()}


@pytest.mark.parametrize("definition", definitions())
def test_the_former_version_is_served_with_the_same_schema_and_told(definition: dict) -> None:
    """Objects in it are read as the present one; and `kubectl apply` can note the whole CRD."""
    new, old = definition["spec"]["versions"]
    assert (new["name"], new["storage"], new["served"]) == ("v1beta1", True, True)
    assert (old["name"], old["storage"], old["served"]) == ("v1alpha1", False, True)
    assert "servingslo.dev/v1beta1" in old["deprecationWarning"]
    assert new["schema"] == old["schema"]
    assert "conversion" not in definition["spec"]
    # Of all annotations of an object: k8s.io/apimachinery, TotalAnnotationSizeLimitB.
    assert len(json.dumps(definition, separators=(",", ":"))) < 256 * 1024


def test_the_reference_names_every_field() -> None:
    """The page of the documentation leaves no field of spec or status out."""
    schema = version()["schema"]["openAPIV3Schema"]
    page = render_reference(schema)
    elsewhere = re.findall(r"^\| `(\S+)` \|.* Parts: as of `\S+`\.", page, re.MULTILINE)
    for path, node in nodes(schema):
        if path.startswith((".spec.", ".status.")) and not path.endswith("[]"):
            field = path.removeprefix(".spec.").removeprefix(".status.")
            if repeats(field, schema["properties"][path.split(".")[1]]):
                assert node["description"] in page
                continue
            suffix = "[]" if node["type"] == "array" else ""
            assert f"| `{field}{suffix}` |" in page or field.startswith(
                tuple(f"{one}." for one in elsewhere)
            )
            assert node["description"] in page


def test_yaml_reads_back_as_generated() -> None:
    """Nothing is lost or anchored on the way through YAML."""
    text = render_crd()
    assert yaml.safe_load(text) == custom_resource_definition()
    assert "&id" not in text


@pytest.mark.parametrize(("path", "schema"), NODES)
def test_every_node_is_structural_and_described(path: str, schema: dict) -> None:
    """`kubectl explain` has a sentence for every field, and the API server takes every node."""
    assert not NOT_STRUCTURAL & set(schema)
    assert schema["type"] in {"object", "array", "string", "integer", "number", "boolean"}
    if path == ".metadata" or (path.endswith("[]") and schema["type"] != "object"):
        return  # the API server describes metadata; the list describes its plain items
    assert len(schema["description"]) > 5
    assert schema["description"][-1] == "."


def test_lists_with_several_owners_are_maps_and_all_others_atomic() -> None:
    """A field manager owns an item of the former and leaves the others; of the latter, the list."""
    by_metric = ["metric", "percentile"]
    keys = {
        "ServingSLO.spec.objectives": by_metric,
        "ServingSLO.spec.pools": ["name"],
        "ServingSLO.status.conditions": ["type"],
        "ServingSLO.status.pools": ["name"],
    }
    found = {}
    for definition in definitions():
        for each in definition["spec"]["versions"]:
            schema = each["schema"]["openAPIV3Schema"]
            for path, node in nodes(schema, definition["spec"]["names"]["kind"]):
                if node["type"] == "array" and node["x-kubernetes-list-type"] != "atomic":
                    assert node["x-kubernetes-list-type"] == "map"
                    found[path] = node["x-kubernetes-list-map-keys"]
                    assert set(found[path]) <= set(node["items"]["required"])
    of_features = (
        *(f"ServingSLO.spec.{part.field_name}" for part in SPEC.parts()),
        *(f"ServingSLO.status.{part.field}" for part in STATUS.parts()),
    )
    kernel = {path: key for path, key in found.items() if not path.startswith(of_features)}
    assert {path: key for path, key in kernel.items() if path.startswith("ServingSLO.")} == keys


@pytest.mark.parametrize(("path", "schema"), NODES)
def test_strings_and_lists_of_the_spec_are_bounded(path: str, schema: dict) -> None:
    """Rules over unbounded strings and lists cost more than the API server allows."""
    if path.startswith(".spec") and schema["type"] == "array":
        assert schema["maxItems"] <= 10
    if path.startswith(".spec") and schema["type"] == "string":
        assert "enum" in schema or schema["maxLength"] <= 253


@pytest.mark.parametrize(("path", "schema"), NODES)
def test_every_rule_tells_what_is_allowed(path: str, schema: dict) -> None:
    """Each CEL rule answers with the allowed range and what it got."""
    for rule in schema.get("x-kubernetes-validations", ()):
        assert "allowed: " in rule["messageExpression"], path
        assert "; got" in rule["messageExpression"], path


def test_names_columns_and_subresources() -> None:
    """What `kubectl get sslo` needs: names, columns in their order, status and no scale."""
    names = custom_resource_definition()["spec"]["names"]
    assert names["shortNames"] == ["sslo"]
    assert names["categories"] == ["serving"]
    columns = version()["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if not column.get("priority")]
    assert shown == [
        "TARGET",
        "REPLICAS",
        "DESIRED",
        "SLO",
        "READY",
        "REASON",
        "UTIL",
        "AGE",
    ]
    wide = [column["name"].upper() for column in columns if column.get("priority")]
    of_features = [name.upper() for part in STATUS.parts() for name, *_ in part.columns]
    assert wide == ["MODE", "BINDING", *of_features, "POOLS"]
    assert version()["subresources"] == {"status": {}}


def test_uninstalling_the_chart_keeps_the_resources() -> None:
    """The chart installs this file: Helm must not delete the CRD and with it every resource."""
    metadata = custom_resource_definition()["metadata"]
    assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}
