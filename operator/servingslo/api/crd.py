"""The CustomResourceDefinitions, generated from the pydantic models.

`python -m servingslo.api.crd` writes them to `crds/` and into the Helm chart of this checkout, and
writes the field reference of the documentation.
The API server accepts only structural schemas, so `$ref`, `anyOf` with null, `const`, titles and
`additionalProperties: false` are removed or flattened. Strict field validation refuses unknown
fields; otherwise they are pruned.
Source: Kubernetes, "Specifying a structural schema", apiextensions.k8s.io/v1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from servingslo.api.reference import render_reference
from servingslo.api.status_base import STATUS
from servingslo.api.v1alpha1 import (
    BUDGET_KIND,
    BUDGET_PLURAL,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    VERSIONS,
    ServingBudgetSpec,
    ServingBudgetStatus,
    ServingSLOSpec,
    ServingSLOStatus,
)

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
BUDGET_COLUMNS = (
    ("GPUs", "integer", ".spec.gpus", "GPUs of the budget."),
    ("Granted", "integer", ".status.granted", "GPUs that may be ordered."),
    ("Wanted", "integer", ".status.wanted", "GPUs that all plans want."),
    ("Short", "integer", ".status.short", "GPUs that are wanted and not granted."),
    (
        "Sufficient",
        "string",
        '.status.conditions[?(@.type=="Sufficient")].status',
        "All that is wanted is granted.",
    ),
    ("Age", "date", ".metadata.creationTimestamp", "Age of the resource."),
)


def _files(plural: str) -> tuple[Path, Path]:
    name = f"{GROUP}_{plural}.yaml"
    # Helm reads only what lies inside the chart.
    return Path("crds") / name, Path("charts") / "servingslo-operator" / "files" / name


CRD_FILES = _files(PLURAL)
BUDGET_CRD_FILES = _files(BUDGET_PLURAL)
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


def custom_resource_definition() -> dict[str, Any]:
    """The CRD of a ServingSLO as plain data, ready for YAML."""
    names = _names(KIND, PLURAL, "sslo")
    columns = [
        *(_column(*column) for column in PRINTER_COLUMNS),
        *({**_column(*column), "priority": 1} for column in WIDE_COLUMNS),
    ]
    return _definition(names, "Namespaced", columns, _resource_schema())


def budget_definition() -> dict[str, Any]:
    """The CRD of a ServingBudget as plain data."""
    names = _names(BUDGET_KIND, BUDGET_PLURAL, "sbudget")
    schema = _object_schema(
        BUDGET_KIND,
        "ServingBudget shares one number of GPUs among ServingSLOs, by minimum, priority and the "
        "requests that a GPU keeps within their objectives.",
        (ServingBudgetSpec, ServingBudgetStatus),
    )
    return _definition(names, "Cluster", [_column(*column) for column in BUDGET_COLUMNS], schema)


def _names(kind: str, plural: str, short: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": [short],
        "categories": ["serving"],
    }


def _definition(
    names: dict[str, Any], scope: str, columns: list[dict[str, Any]], schema: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{GROUP}",
            # The chart installs this file; uninstalling the chart must not delete every resource.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": scope,
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


def render_budget_crd() -> str:
    """The CRD of a ServingBudget as YAML, with the same header."""
    return _rendered(budget_definition())


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
    """Write the generated files of a checkout again: both copies of the CRDs, the reference."""
    texts = dict.fromkeys(CRD_FILES, render_crd())
    texts |= dict.fromkeys(BUDGET_CRD_FILES, render_budget_crd())
    texts[REFERENCE_FILE] = render_reference(_resource_schema())
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return tuple(root / path for path in texts)


class _PlainDumper(yaml.SafeDumper):
    """YAML without anchors: a shared rule is written in full at each place."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _resource_schema() -> dict[str, Any]:
    return _object_schema(
        KIND,
        "ServingSLO keeps the latency objectives of one LLM serving workload at the least number "
        "of replicas.",
        (ServingSLOSpec, ServingSLOStatus),
    )


def _object_schema(
    kind: str, description: str, models: tuple[type[BaseModel], type[BaseModel]]
) -> dict[str, Any]:
    """The schema of a resource. models: of its spec and its status."""
    described = {
        "apiVersion": f"Version of the form of this resource: {GROUP}/{VERSION}.",
        "kind": f"{kind}.",
    }
    spec, status = models
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            **{name: {"type": "string", "description": text} for name, text in described.items()},
            # The API server adds its own description and refuses another one.
            "metadata": {"type": "object"},
            "spec": structural_schema(spec),
            "status": {**structural_schema(status), "default": _UNREAD},
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
