"""What features say in pages, rules and dashboard that all share, written from their folders.

    python -m tests.features.join

`operator/servingslo/features/NAME/shared.yaml` has it: `rows` of tables, each by the page below
`docs` and the row that it comes after; `words` that nothing else may use; the `pages` that are of
this feature alone. Its gauges are rows of the page of metrics. `rules.yaml` has its groups of
alerts; `chart` its values, their schema and its templates. Of a feature that is gone nothing stays:
a row ends with `<!--NAME-->`, groups and values come last.
"""

import re
from collections.abc import Iterable, Iterator
from os.path import relpath
from pathlib import Path
from typing import Any

import yaml

from servingslo.api.status_base import STATUS, told_gauges
from servingslo.features.catalogue import FEATURES

ROOT = Path(__file__).parents[2]
FOLDER = Path("operator") / "servingslo" / "features"
RULES = Path("charts") / "servingslo-operator" / "files" / "rules.yaml"
VALUES = Path("charts") / "servingslo-operator" / "values.yaml"
TEMPLATES = Path("charts") / "servingslo-operator" / "templates" / "_features.tpl"
# Where templates of the kernel ask features: how many pods decide, and further Leases of theirs;
# arguments, ports, mounts and volumes of the container, rights, roles beside them, who may connect
# to it, whom it connects to, what has no effect, what of given arguments writes and has to be
# released before they go, and further objects.
HOOKS = (
    "deciders", "leases", "args", "ports", "mounts", "volumes", "rights", "roles", "ingress",
    "egress", "warnings", "writes", "release", "objects",
)  # fmt: skip
METRICS = "reference/metrics.md"
# Pages, as patterns below `docs`.
PLACES = ("**/*.md", "../*.md", "../examples/*.md")
# The last gauge of the kernel before those of features.
_AFTER = "| `servingslo_within_objective_greatest_ratio` |"
_JOINED = "  # Of features, from their folders.\n"
_OF_VALUES = "# Of features, from their folders.\n"
_MARK = re.compile(r"^\|.*<!--\w+--> \|\n", re.MULTILINE)
_NUMBER = re.compile(r"\| \[(\d+)-")


def shared(name: str, root: Path = ROOT) -> dict[str, Any]:
    """What a feature says in shared places."""
    found: dict[str, Any] = yaml.safe_load(
        (root / FOLDER / name / "shared.yaml").read_text(encoding="utf-8")
    )
    return found


def joined(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Each shared file, and its text with what the features in force say there."""
    pages = {page: [*_marked(page, root)] for page in _pages(root)}
    for page, rows in pages.items():
        path = root / "docs" / page
        text = _MARK.sub("", path.read_text(encoding="utf-8"))
        for after, row in rows:
            begin = text.index(f"\n{after}") + 1
            end = text.index("\n", begin + len(after)) + 1
            text = f"{text[:end]}{row}\n{text[end:]}"
        yield path, text
    kernel, mark, _ = (root / RULES).read_text(encoding="utf-8").partition(_JOINED)
    files = (root / FOLDER / name / "rules.yaml" for name in FEATURES)
    groups = "".join(path.read_text(encoding="utf-8") for path in files if path.exists())
    yield root / RULES, f"{kernel}{mark}{groups}"
    yield from _chart(root)


def _chart(root: Path) -> Iterator[tuple[Path, str]]:
    """The values and the templates of the chart; its schema has tests.charts.reference."""
    kernel, mark, _ = (root / VALUES).read_text(encoding="utf-8").partition(_OF_VALUES)
    values = _of_chart("values.yaml", root).values()
    yield root / VALUES, f"{kernel}{mark}{''.join(f'{chr(10)}{one}' for one in values)}"
    templates = _of_chart("templates.tpl", root)
    hooks = (
        "\n".join(
            (
                f'{{{{- define "servingslo.features.{hook}" }}}}',
                *(
                    f'{{{{- include "servingslo.{name}.{hook}" . }}}}'
                    for name, text in templates.items()
                    if f'define "servingslo.{name}.{hook}"' in text
                ),
                "{{- end }}",
            )
        )
        for hook in HOOKS
    )
    head = "{{- /* Of features, from their folders: made by `make join`, not edited. */}}"
    text = "\n\n".join((head, *hooks, *(one.rstrip("\n") for one in templates.values())))
    yield root / TEMPLATES, f"{text}\n"


def _of_chart(file: str, root: Path) -> dict[str, str]:
    """The text of a file of the chart of each feature that has one."""
    paths = {name: root / FOLDER / name / "chart" / file for name in FEATURES}
    return {n: path.read_text(encoding="utf-8") for n, path in paths.items() if path.exists()}


def _pages(root: Path) -> set[str]:
    """The pages with rows of features, also of one that is gone."""
    pages = (path for top in PLACES for path in (root / "docs").glob(top))
    marked = {path for path in pages if _MARK.search(path.read_text(encoding="utf-8"))}
    named = {page for name in FEATURES for page in shared(name, root).get("rows", {})}
    return {Path(relpath(path, root / "docs")).as_posix() for path in marked} | named | {METRICS}


def _marked(page: str, root: Path) -> Iterable[tuple[str, str]]:
    """The rows of a page, each with the row that it comes after; the last one comes first there."""
    rows = [
        (entry["after"], f"{entry['row'].removesuffix(' |')}<!--{name}--> |")
        for name in FEATURES
        for entry in shared(name, root).get("rows", {}).get(page, ())
    ]
    if page == METRICS:
        rows += [
            (_AFTER, f"{row}<!--{part.key.name}--> |")
            for part in STATUS.parts()
            for model in (part.model, part.of_class)
            for row in _gauges(model)
        ]
    # Numbered examples in their order, the others in that of the features.
    rows.sort(key=lambda one: int(found[1]) if (found := _NUMBER.match(one[1])) else 0)
    return rows[::-1]


def _gauges(model: Any) -> Iterator[str]:
    for name, text, labels in told_gauges(model):
        told = ", ".join(f"`{label}`" for label in labels)
        yield f"| `{name}` | {told}{' ' if told else ''}| {text.removesuffix('.')}"


def main() -> None:
    """Write them."""
    for path, text in joined():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
