"""The field reference of the documentation, rendered from the generated CRD."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from servingslo.api.constraints import RULES

Field = tuple[str, Mapping[str, Any]]
_WORD = re.compile(r"[\w.%]*\w")
_FILLING = frozenset(
    {"a", "from", "to", "0", "duration", "days", "share", "items", "quantity", "bytes"}
)
_ALLOWED = re.compile(r"allowed: (.*); got")
# Said once, at the head of the page.
_EXAMPLES = re.compile(r" \((?:such as|lower case) [^)]*\)")
_HEAD = """<!-- Generated from operator/servingslo/api by `make crd`; do not edit. -->
# ServingSLO (servingslo.dev/v1beta1)

A namespaced resource, short name `sslo`, category `serving`. The same text is in the cluster:
`kubectl explain sslo.spec --recursive`.

Needed are `targetRef` (or `pools`), the objectives and, in mode Auto, `replicas.max`:

```yaml
apiVersion: servingslo.dev/v1beta1
kind: ServingSLO
metadata: {name: llama-chat, namespace: inference}
spec:
  targetRef: {kind: Deployment, name: llama-chat}
  objectives:
    - {metric: ttft, percentile: 99, threshold: 500ms}
    - {metric: tpot, percentile: 95, threshold: 50ms}
  replicas: {max: 8}
```

A value outside its range is refused by the API server with its path, the value and what is
allowed; so is an unknown field from `kubectl` and every client that asks for strict field
validation. For other clients it is dropped with a warning.

Durations are written as 500ms, 2s, 1m30s or 1h, sizes as 16Gi or 80G. A DNS label has lower case
letters, digits and -, a DNS name dots too. `[]` is a list; other types
are in `kubectl explain`. Fields that a pool and the resource share are listed once, without
`pools[]`.
"""


def render_reference(schema: Mapping[str, Any]) -> str:
    """The reference page in Markdown. schema: the openAPIV3Schema of the CRD."""
    parts = [_HEAD]
    for section in ("spec", "status"):
        part = schema["properties"][section]
        fields = _once([one for one in _fields(part) if not repeats(one[0], part)])
        parts.extend(("", f"## {section}", "", part["description"], ""))
        if section == "spec":
            parts.extend(("| field | default | meaning |", "|---|---|---|"))
            parts.extend(_spec_row(path, field) for path, field in fields)
            parts.extend(("", "Rules between fields:", ""))
            parts.extend(_rules_in_words(part))
        else:
            parts.extend(("| field | meaning |", "|---|---|"))
            parts.extend(_row(f"`{path}`", field["description"]) for path, field in fields)
    return "\n".join(parts) + "\n"


def repeats(path: str, section: Mapping[str, Any]) -> bool:
    """Whether a field of a pool, or a part of it, is also one of the section, as described."""
    above, _, rest = path.partition("pools[].")
    name, _, below = rest.partition(".")
    if above or name not in section["properties"]:
        return False
    own = section["properties"]["pools"]["items"]["properties"][name]
    return bool(below) or own["description"] == section["properties"][name]["description"]


def _once(fields: list[Field]) -> Iterator[Field]:
    """Fields without the parts of an object that an earlier one has too: it is named instead."""
    seen: dict[str, str] = {}
    same: set[str] = set()
    for path, field in fields:
        if any(path.startswith(f"{one}.") for one in same):
            continue
        parts = json.dumps(field.get("items", field).get("properties"), sort_keys=True)
        if parts in seen:
            same.add(path)
            words = f"{field['description']} Parts: as of `{seen[parts]}`."
            yield path, {**field, "description": words}
            continue
        if parts != "null" and not path.startswith("pools[]."):
            seen[parts] = path
        yield path, field


def _rules_in_words(spec: Mapping[str, Any]) -> Iterator[str]:
    """A point for each rule; fields with the same words share one."""
    paths: dict[str, list[str]] = {}
    for path, words in _cross_field_rules(spec, "spec"):
        # A rule of a pool's field has the words of the same field of the spec.
        if not path.startswith("spec.pools[]."):
            paths.setdefault(words, []).append(f"`{path}`")
    return (f"- {', '.join(which)}: {words}" for words, which in paths.items())


def _fields(schema: Mapping[str, Any], above: str = "") -> Iterator[Field]:
    """Path and schema of every field, parents first."""
    for name, field in schema.get("properties", {}).items():
        path = f"{above}{name}{'[]' if field['type'] == 'array' else ''}"
        yield path, {**field, "needed": name in schema.get("required", ())}
        yield from _fields(field.get("items", field), f"{path}.")


def _spec_row(path: str, field: Mapping[str, Any]) -> str:
    default = "required" if field["needed"] else ""
    if field.get("default") is not None and field["type"] != "object":
        default = f"`{json.dumps(field['default']).strip(chr(34))}`"
    meaning, allowed = field["description"], _allowed(field)
    said = set(_WORD.findall(meaning))
    # What the words or the example of the field say already is not said again.
    if "such as" not in allowed and set(_WORD.findall(allowed)) - _FILLING - said:
        meaning = f"{meaning} Allowed: {allowed}."
    return _row(f"`{path}`", default, meaning)


def _allowed(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(field["enum"])
    if field["type"] == "object":
        return ""
    if "maxItems" in field:
        return f"{field.get('minItems', 0)} to {field['maxItems']} items"
    return "; ".join(_told(rule) for rule in field.get(RULES, ()))


def _cross_field_rules(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Path and words of every rule that looks at more than one field."""
    if schema["type"] in {"object", "array"}:
        for rule in schema.get(RULES, ()):
            yield f"{path}{rule.get('fieldPath', '')}", _told(rule)
    for name, part in schema.get("properties", {}).items():
        yield from _cross_field_rules(part, f"{path}.{name}")
    if "items" in schema:
        yield from _cross_field_rules(schema["items"], f"{path}[]")


def _told(rule: Mapping[str, Any]) -> str:
    """The allowed values of a rule in words: its message without a resource's numbers."""
    match = _ALLOWED.search(rule["messageExpression"])
    words = rule["rule"] if match is None else match.group(1)
    return _EXAMPLES.sub("", re.sub(r", %s.*", "", words)).replace("%%", "%")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
