"""The CustomResourceDefinitions, generated from the pydantic models.

`python -m servingslo.api.crd` writes them to `crds/` and into the Helm chart of this checkout, and
writes the field reference of the documentation.
The API server accepts only structural schemas, so `$ref`, `anyOf` with null, `const`, titles and
`additionalProperties: false` are removed or flattened. Strict field validation refuses unknown
fields; otherwise they are pruned.
Source: Kubernetes, "Specifying a structural schema", apiextensions.k8s.io/v1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from servingslo.api.reference import render_reference
from servingslo.api.status_base import STATUS
from servingslo.api.v1alpha1 import (
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    VERSIONS,
    ServingSLOSpec,
    ServingSLOStatus,
)
from servingslo.plugins import Aspect

Column = tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class KindPart:
    """A kind with its models; that of a feature is the cluster's.

    columns: what `kubectl get` shows: name, type, path, description; wide: with `-o wide` only.
    """

    kind: str
    plural: str
    short: str
    description: str
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    wide: tuple[Column, ...] = ()
    scope: str = "Cluster"


KINDS: Aspect[KindPart] = Aspect("kind")
HEADER = "# Generated from operator/servingslo/api by `make crd`; do not edit.\n"
PRINTER_COLUMNS = (
    ("Target", "string", ".status.target", "Workload that is scaled; of pools, the first."),
    ("Replicas", "integer", ".status.replicas.current", "Replicas that the target reports."),
    ("Desired", "integer", ".status.replicas.desired", "Replicas that the last decision asks for."),
    ("SLO", "string", '.status.conditions[?(@.type=="SLOMet")].status', "Objectives met."),
    (
        "Ready",
        "string",
        '.status.conditions[?(@.type=="Ready")].status',
        "Target can be decided for, and its pods serve.",
    ),
    ("Reason", "string", ".status.reason", "What is wrong; why this count while nothing is."),
    ("Util", "number", ".status.predicted.utilization", "Predicted utilization, 0 to 1."),
    ("Age", "date", ".metadata.creationTimestamp", "Age of the resource."),
)
# Shown by `kubectl get -o wide` only.
WIDE_COLUMNS = (
    ("Mode", "string", ".spec.mode", "What the operator may do."),
    ("Binding", "string", ".status.bindingConstraint", "Constraint that asks for the most."),
    *(column for part in STATUS.parts() for column in part.columns),
    ("Pools", "string", ".status.poolsSummary", "Replicas of each pool."),
)

SERVING_SLO = KindPart(
    kind=KIND,
    plural=PLURAL,
    short="sslo",
    scope="Namespaced",
    description="ServingSLO keeps the latency objectives of one LLM serving workload at the least "
    "number of replicas.",
    spec=ServingSLOSpec,
    status=ServingSLOStatus,
    columns=PRINTER_COLUMNS,
    wide=WIDE_COLUMNS,
)


def _files(plural: str) -> tuple[Path, Path]:
    name = f"{GROUP}_{plural}.yaml"
    # Helm reads only what lies inside the chart.
    return Path("crds") / name, Path("charts") / "servingslo-operator" / "files" / name


CRD_FILES = _files(PLURAL)
REFERENCE_FILE = Path("docs") / "reference" / "servingslo.md"
# The status of a resource that nobody has read: by kstatus it is not Current. As Flux does.
_UNREAD = {"observedGeneration": -1}
# Keywords with the same meaning in both kinds of schema.
KEPT = frozenset(
    {
        "description",
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minItems",
        "type",
    }
)


def custom_resource_definition(part: KindPart = SERVING_SLO) -> dict[str, Any]:
    """The CRD of a kind as plain data, ready for YAML."""
    columns = [
        *(_column(*column) for column in part.columns),
        *({**_column(*column), "priority": 1} for column in part.wide),
    ]
    schema = _object_schema(part)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{part.plural}.{GROUP}",
            # The chart installs this file; uninstalling the chart must not delete every resource.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": part.kind,
                "listKind": f"{part.kind}List",
                "plural": part.plural,
                "singular": part.kind.lower(),
                "shortNames": [part.short],
                "categories": ["serving"],
            },
            "scope": part.scope,
            # One schema, so nothing is converted: only the name of the version differs.
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == VERSION,
                    **({} if version == VERSION else _deprecated(version)),
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
                for version in VERSIONS
            ],
        },
    }


def definitions() -> tuple[dict[str, Any], ...]:
    """The CRD of a ServingSLO and those of features."""
    return tuple(map(custom_resource_definition, (SERVING_SLO, *KINDS.parts())))


def _deprecated(version: str) -> dict[str, Any]:
    told = f"{GROUP}/{version} is deprecated: write {GROUP}/{VERSION} (servingslo migrate FILE)"
    return {"deprecated": True, "deprecationWarning": told}


def _column(name: str, kind: str, path: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description}


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural OpenAPI v3 schema of a model, by camelCase names."""
    schema = model.model_json_schema(by_alias=True)
    return _flatten(schema, schema.get("$defs", {}))


def render_crd() -> str:
    """The CRD of a ServingSLO as YAML, with a header that names its source."""
    return _rendered(custom_resource_definition())


def render_crds() -> tuple[str, ...]:
    """The CRD of a ServingSLO and those of features as YAML, with the same header."""
    return tuple(map(_rendered, definitions()))


def _rendered(definition: dict[str, Any]) -> str:
    text: str = yaml.dump(
        definition,
        Dumper=_PlainDumper,
        sort_keys=False,
        width=100,
        allow_unicode=True,
    )
    return HEADER + text


def write_crd(root: Path) -> tuple[Path, ...]:
    """Write the generated files of a checkout again: both copies of the CRDs, the reference.

    The CRD of a kind that is gone is removed.
    """
    texts: dict[Path, str] = {}
    for one in definitions():
        texts |= dict.fromkeys(_files(one["spec"]["names"]["plural"]), _rendered(one))
    texts[REFERENCE_FILE] = render_reference(_object_schema(SERVING_SLO))
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for folder in {path.parent for path in CRD_FILES}:
        for former in {*(root / folder).glob(f"{GROUP}_*.yaml")} - {root / path for path in texts}:
            former.unlink()
    return tuple(root / path for path in texts)


class _PlainDumper(yaml.SafeDumper):
    """YAML without anchors: a shared rule is written in full at each place."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _object_schema(part: KindPart) -> dict[str, Any]:
    described = {
        "apiVersion": f"Version of the form of this resource: {GROUP}/{VERSION}.",
        "kind": f"{part.kind}.",
    }
    return {
        "type": "object",
        "description": part.description,
        "required": ["spec"],
        "properties": {
            **{name: {"type": "string", "description": text} for name, text in described.items()},
            # The API server adds its own description and refuses another one.
            "metadata": {"type": "object"},
            "spec": structural_schema(part.spec),
            "status": {**structural_schema(part.status), "default": _UNREAD},
        },
    }


def _flatten(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with resolved references and unions with null; the outer keywords win."""
    schema = _resolve(schema, definitions)
    flat = {
        key: value
        for key, value in schema.items()
        if key in KEPT or key.startswith("x-kubernetes-")
    }
    if "const" in schema:
        flat["enum"] = [schema["const"]]
    if schema.get("default") is not None:
        # Written in full: the API server checks a default without filling in nested defaults.
        flat["default"] = _without_null(schema["default"])
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        flat["additionalProperties"] = _flatten(values, definitions)
    if "items" in schema:
        # One manager owns a list as a whole, unless its field names the keys of its items.
        flat.setdefault("x-kubernetes-list-type", "atomic")
        flat["items"] = _flatten(schema["items"], definitions)
    if "properties" in schema:
        flat["properties"] = {
            name: _flatten(part, definitions) for name, part in schema["properties"].items()
        }
    if schema.get("required"):
        flat["required"] = list(schema["required"])
    return flat


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(part) for key, part in value.items() if part is not None}
    return value


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema behind a reference or an optional union, with the keywords next to it."""
    resolved = dict(schema)
    while True:
        if "$ref" in resolved:
            target = definitions[resolved.pop("$ref").rpartition("/")[2]]
        elif "anyOf" in resolved:
            (target,) = (part for part in resolved.pop("anyOf") if part.get("type") != "null")
        else:
            return resolved
        resolved = {**target, **resolved}


if __name__ == "__main__":
    write_crd(Path.cwd())
