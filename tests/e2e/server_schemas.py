"""JSON schemas for kubeconform, out of an API server's own OpenAPI: its version, its CRDs."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kubernetes.dynamic import DynamicClient

# What kubeconform looks a kind up by; to it the core's group is called as its version is.
TEMPLATE = "{{ .Group }}_{{ .ResourceAPIVersion }}_{{ .ResourceKind }}.json"
_KINDS = "x-kubernetes-group-version-kind"


def write_schemas(client: DynamicClient, kinds: Iterable[tuple[str, str]], folder: Path) -> None:
    """Write a schema for each (apiVersion, kind), in which no field is allowed that is not named.

    Raises: StopIteration for a kind that the server does not know.
    """
    wanted = set(kinds)
    for api_version in {one for one, _ in wanted}:
        group, _, version = api_version.rpartition("/")
        base = f"apis/{api_version}" if group else f"api/{version}"
        answer = client.request("GET", f"/openapi/v3/{base}", serialize=False)
        schemas = json.loads(answer.data)["components"]["schemas"]
        for schema in schemas.values():
            _forbid_others(schema)
        for kind in {kind for one, kind in wanted if one == api_version}:
            found = {"group": group, "version": version, "kind": kind}
            name = next(name for name, one in schemas.items() if found in one.get(_KINDS, ()))
            document = {
                "$ref": f"#/components/schemas/{name}",
                "components": {"schemas": schemas},
            }
            path = folder / f"{group or version}_{version}_{kind.lower()}.json"
            path.write_text(json.dumps(document), encoding="utf-8")


def _forbid_others(schema: Any) -> None:
    """Named fields alone, everywhere below."""
    if isinstance(schema, list):
        for one in schema:
            _forbid_others(one)
    elif isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
            schema.setdefault("additionalProperties", bool(open_ended))
        for one in schema.values():
            _forbid_others(one)
