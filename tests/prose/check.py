"""Run as `python -m tests.prose.check [files]`: each phrase, where it is, and what to write.

Looks at the pages, the changelog, the chart's texts, the summaries of alerts and the descriptions
of the CRD; at prose alone, not at code. Ends with 1 if something is found.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import yaml
from proselint.checks import __register__ as stock
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, types
from tests.prose.words import FORBIDDEN, OFF

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "servingslo-operator"
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)|<!--.*?-->|<[^>\n]*>", re.DOTALL)
OURS = "servingslo"


def files() -> list[Path]:
    """Everything that is checked."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
        *sorted(CHART.glob("*.md")),
        CHART / "values.yaml",
        CHART / "values.schema.json",
        CHART / "templates" / "NOTES.txt",
        CHART / "files" / "rules.yaml",
        CHART / "files" / "dashboard.json",
        *sorted((ROOT / "crds").glob("*.yaml")),
    ]


def blank(found: re.Match[str]) -> str:
    """As many lines, without words."""
    return "." + "\n" * found[0].count("\n")


def descriptions(node: object) -> Iterator[str]:
    """Every text of a schema that is for readers."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in {"description", "title"} and isinstance(value, str):
                yield value
            else:
                yield from descriptions(value)
    elif isinstance(node, list):
        for one in node:
            yield from descriptions(one)


def prose(path: Path) -> str:
    """What people read of a file; its lines stay where they are, except in a schema."""
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "crds" or path.suffix == ".json":
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        text = "\n".join(descriptions(document))
    elif path.suffix == ".yaml":
        shown = (re.search(r"(?:# |summary: )(.*)", line) for line in text.splitlines())
        text = "\n".join(found[1] if found else "" for found in shown)
    return QUOTED.sub(blank, FENCE.sub(blank, text))


@cache
def _registered() -> dict[str, bool]:
    """Registers the checks, once; which of them are on."""
    ours = tuple(
        Check(
            check_type=types.Existence(items=(pattern,)),
            path=OURS,
            message=f"Say it in plain English: {instead}.",
        )
        for pattern, instead in FORBIDDEN.items()
    )
    CheckRegistry().register_many((*stock, *ours))
    theirs = {k: on for k, on in DEFAULT["checks"].items() if k.partition(".")[0] not in OFF}
    return {OURS: True, **theirs}


def findings(path: Path, text: str | None = None) -> list[str]:
    """`file:line: phrase: what to write`, for each phrase of a file, or of a text in its place."""
    checks = CheckRegistry().get_all_enabled(_registered())
    content = prose(path) if text is None else text
    lines = []
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    for check in checks:
        for found in check.check_with_flags(content):
            start, end = found.span
            # RE2's wrapper for Python 1.1.20251105 finds 'he' inside 'the' in long texts.
            if re.match(r"\w", content[start - 1 : start]) and re.match(r"\w", content[start]):
                continue
            line = content.count("\n", 0, start + 1) + 1
            lines.append(f"{name}:{line}: {content[start:end].strip()!r}: {found.message}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print what is found in these files, or in all."""
    chosen = [Path(one).resolve() for one in arguments] or files()
    found = [line for path in chosen for line in findings(path)]
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
