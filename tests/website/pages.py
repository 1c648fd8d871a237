"""The pages as MkDocs reads them: a copy of what links reach, and a sidebar by question.

    python -m tests.website.pages out/site

The folders stay as they are in the repository, so that links between pages hold. A link to a folder
leads to its README.md, or to a list of its files that is made here.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
INDEX = Path("docs") / "README.md"
ICON = Path("charts") / "servingslo-operator" / "icon.svg"
STARTS = (
    Path("README.md"),
    INDEX,
    Path("ROADMAP.md"),
    Path("GOVERNANCE.md"),
    Path("CODE_OF_CONDUCT.md"),
)
# Wide tables are read as a whole, and questions are longer than names of pages.
STYLE = """\
.md-grid { max-width: 84rem; }
.md-sidebar--primary { width: 15rem; }
.md-nav { font-size: .65rem; }
.md-typeset table:not([class]) { font-size: .65rem; }
.md-typeset table:not([class]) th { min-width: 0; }
"""
_ROW = re.compile(r"^\| ([^|]+\?[^|]*) \| (.+) \|$", re.MULTILINE)
_LINE = re.compile(r"^([A-Z][^|:\n]+): ([a-z ]*\[.+(?:\n(?![A-Z][^|:\n]+: ).+)*)", re.MULTILINE)
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")
_NAMED = re.compile(r"\[([^]]+)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
_BARE_LIST = re.compile(r"^(?![-*|] |\d+\. |\s|$)(.+)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_INDENT = re.compile(r"^(?: {2,3})(?=\S)", re.MULTILINE)

Nav = list[dict[str, Any]]


def reached(root: Path = ROOT) -> dict[Path, str | None]:
    """The text of each page that links reach, and None for each other file."""
    found: dict[Path, str | None] = {ICON: None}
    waiting = [*STARTS]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        if path.suffix != ".md":
            found[path] = None
            continue
        text = _listing(root, path) if not (root / path).exists() else _text(root, path)
        found[path] = text
        waiting += _targets(root, path, text)
    return found


def sidebar(index: str) -> Nav:
    """Each question of the index with its pages, then the lists of pages below the table.

    A page stands once: where it answers its first question.
    """
    seen: set[str] = set()
    questions: Nav = []
    for question, cell in _ROW.findall(index):
        questions += _entry(question, [*_pages(cell, seen)])
    nav: Nav = [{"Overview": "README.md"}, {"All pages": INDEX.as_posix()}, *questions]
    for title, line in _LINE.findall(index):
        nav += _entry(title, [*_pages(line, seen)])
    return nav


def _entry(title: str, pages: Nav) -> Nav:
    if len(pages) == 1:
        return [{title: next(iter(pages[0].values()))}]
    return [{title: pages}] if pages else []


def _pages(text: str, seen: set[str]) -> Iterator[dict[str, str]]:
    for name, link in _NAMED.findall(text):
        path = _normal(INDEX.parent / link)
        page = (path if path.suffix == ".md" else path / "README.md").as_posix()
        if page not in seen | {"README.md"}:
            seen.add(page)
            yield {name[0].upper() + name[1:]: page}


def _text(root: Path, path: Path) -> str:
    """A page with links to files alone, and with lists as Python-Markdown reads them."""

    def led(found: re.Match[str]) -> str:
        target = _normal(path.parent / found[1])
        folder = (root / target).is_dir()
        return f"]({found[1].rstrip('/')}{'/README.md' if folder else ''}{found[2] or ''})"

    def outside(part: str) -> str:
        return _INDENT.sub("    ", _BARE_LIST.sub(r"\1\n\n", _LINK.sub(led, part)))

    text = (root / path).read_text(encoding="utf-8")
    parts = []
    end = 0
    for block in _FENCE.finditer(text):
        parts += [outside(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, outside(text[end:])])


def _targets(root: Path, path: Path, text: str) -> Iterator[Path]:
    for link, _ in _LINK.findall(_FENCE.sub("", text)):
        target = _normal(path.parent / link)
        if not (root / target).exists() and target.name != "README.md":
            raise SystemExit(f"{path}: {link} is not there")
        yield target


def _listing(root: Path, path: Path) -> str:
    """A page for a folder that has none, which a link leads to."""
    folder = root / path.parent
    files = sorted(one.name for one in folder.iterdir() if one.is_file())
    return f"# {path.parent}\n\n" + "".join(f"- [{name}]({name})\n" for name in files)


def _normal(path: Path) -> Path:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return Path(*parts)


def write(folder: Path) -> None:
    """Write the pages, and the configuration with the sidebar."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for path, text in reached().items():
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            shutil.copyfile(ROOT / path, pages / path)
        else:
            (pages / path).write_text(text, encoding="utf-8")
    (pages / "site.css").write_text(STYLE, encoding="utf-8")
    configuration = {
        "INHERIT": (ROOT / "mkdocs.yml").as_posix(),
        "docs_dir": pages.resolve().as_posix(),
        "site_dir": (folder / "html").resolve().as_posix(),
        "nav": sidebar((ROOT / INDEX).read_text(encoding="utf-8")),
    }
    text = yaml.safe_dump(configuration, sort_keys=False, allow_unicode=True)
    (folder / "mkdocs.yml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
