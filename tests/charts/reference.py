"""The chart's README and the descriptions of its schema, written from the comments of values.yaml.

    python -m tests.charts.reference

The form of both is helm-docs': a comment that begins with `# --` describes the value below it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from servingslo.features.catalogue import FEATURES

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "servingslo-operator"
_TYPES = {bool: "bool", int: "int", float: "float", str: "string", list: "list", dict: "object"}
_KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):")
_LONGEST_LINE = 120
# Without a default: what Helm passes to every chart, and laws of cards.
_NO_DEFAULT = {"global", "laws"}
_HEAD = """\
# {name}

{description}

Version {version}, for Kubernetes 1.30 and newer, Helm 3 and 4. No image is published: build one
from the repository's Dockerfile and push it to a registry of yours.

```sh
helm install servingslo charts/servingslo-operator \\
  --namespace servingslo-system --create-namespace \\
  --set image.repository=REGISTRY/servingslo \\
  --set prometheus.url=http://prometheus-operated.monitoring.svc:9090
```

Install, upgrade, rights and uninstall: [docs/how-to/install.md](../../docs/how-to/install.md).

This page is written from the comments of `values.yaml` by `make chart-docs`.

## Values

| Key | Type | Default | Description |
|-----|------|---------|-------------|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of the chart: its path, default and description."""

    path: str
    default: Any
    description: str


def values() -> list[Value]:
    """Every described value, sorted by path."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    found = [
        Value(path=path, default=_at(defaults, path), description=description)
        for path, description in _described(text)
    ]
    return sorted(found, key=lambda one: one.path)


def undescribed() -> list[str]:
    """Paths of values that no comment describes, nor one above them."""
    known = {one.path for one in values()}
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return [path for path in _leaves(defaults, "", known) if path not in known]


def readme() -> str:
    """The chart's README.md."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return _HEAD.format(**chart) + "".join(f"{_row(one)}\n" for one in values())


def schema() -> str:
    """values.schema.json with the descriptions of values.yaml; its others stay as they are."""
    found = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")).keys() | _NO_DEFAULT
    kept = {name: part for name, part in found["properties"].items() if name in known}
    found["properties"] = kept | _of_features()
    for one in values():
        part = found
        for name in one.path.split("."):
            part = part["properties"][name]
        part["description"] = one.description
    return f"{_compact(found, '')}\n"


def schema_properties(part: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and schema of every property below a part of a schema."""
    for name, child in part.get("properties", {}).items():
        yield f"{path}{name}", child
        yield from schema_properties(child, f"{path}{name}.")
    for name in ("items", "additionalProperties"):
        if isinstance(part.get(name), dict):
            yield from schema_properties(part[name], f"{path}*.")
    for child in (*part.get("anyOf", ()), *part.get("patternProperties", {}).values()):
        yield from schema_properties(child, path)


def _of_features() -> dict[str, Any]:
    """The schema of the values of each feature."""
    found: dict[str, Any] = {}
    for name in FEATURES:
        path = ROOT / "operator" / "servingslo" / "features" / name / "chart" / "schema.json"
        found |= json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _described(text: str) -> Iterator[tuple[str, str]]:
    """Path and description of each value below a `# --` comment."""
    above: list[tuple[int, str]] = []
    words: list[str] | None = None
    for line in text.splitlines():
        comment = re.match(r" *#\s?(.*)", line)
        if comment is not None:
            if comment[1].startswith("-- "):
                words = [comment[1][3:]]
            elif words is not None:
                words.append(comment[1].strip())
            continue
        key = _KEY.match(line)
        if key is not None:
            indent = len(key[1])
            above = [*(one for one in above if one[0] < indent), (indent, key[2])]
            if words is not None:
                yield ".".join(name for _, name in above), " ".join(words)
        words = None


def _leaves(part: Mapping[str, Any], path: str, known: set[str]) -> Iterator[str]:
    for name, child in part.items():
        here = f"{path}{name}"
        if isinstance(child, dict) and child and here not in known:
            yield from _leaves(child, f"{here}.", known)
        else:
            yield here


def _at(part: Any, path: str) -> Any:
    for name in path.split("."):
        part = part[name]
    return part


def _row(value: Value) -> str:
    default = json.dumps(value.default)
    description = value.description.replace("|", "\\|")
    return f"| {value.path} | {_TYPES[type(value.default)]} | `{default}` | {description} |"


def _compact(part: Any, indent: str) -> str:
    """JSON with each object on one line where it fits."""
    line = json.dumps(part, ensure_ascii=False)
    if not isinstance(part, dict) or len(indent) + len(line) <= _LONGEST_LINE:
        return line
    inner = f"{indent}  "
    rows = (f"{inner}{json.dumps(key)}: {_compact(child, inner)}" for key, child in part.items())
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def main() -> None:
    """Write both files."""
    (CHART / "README.md").write_text(readme(), encoding="utf-8")
    (CHART / "values.schema.json").write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
