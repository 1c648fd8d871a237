"""The pages lead to each other, and what they say of the tree is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = ROOT / "operator" / "servingslo"
LAB = ROOT / "lab" / "servingslo_lab"
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"`([^`]+)`")
# A longer sentence is read twice.
LONGEST_SENTENCE = 300
# A note of what holds today is read in one sitting.
LONGEST_NOTE = 150
# All pages together: what is longer is not read.
MOST_WORDS = 60_000
_MADE = re.compile("<!-- made by .*?<!-- end -->", re.DOTALL)
# A change is reported in one breath.
LONGEST_ENTRY_WORDS = 25
# Written by programs, or held to a limit of its own.
NOT_OURS = {"benchmarks.md", "servingslo.md", "acceptance.md", "CHANGELOG.md"}
OURS = [page for page in PAGES if page.name not in NOT_OURS]
NOTES = sorted((DOCS / "designs").glob("*.md"))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What a page's headings are linked by, as GitHub derives it."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    words = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", word.lower()).replace(" ", "-") for word in words}


def sentences(text: str) -> Iterator[str]:
    """Sentences of paragraphs, of points of a list and of cells of a table."""
    for block in re.split(r"\n\s*\n", text):
        parts = [""]
        for line in map(str.strip, block.splitlines()):
            if line.startswith("|"):
                parts += line.strip("|").split("|")
            elif re.match(r"[-*] |\d+\. |#", line):
                parts.append(line)
            else:
                parts[-1] += f" {line}"
        for part in parts:
            yield from re.split(r"(?<=[.!?])\s+", re.sub(r"\]\([^)]*\)", "]", part).strip())


def row_cells(page: Path, title: str) -> list[list[str]]:
    """Cells of the rows of the table under a heading, without its head."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_resolve(page: Path) -> None:
    """Each relative link is a file or folder, and each anchor a heading of it."""
    wrong = []
    for link, anchor in LINK.findall(prose(page)):
        target = (page.parent / link).resolve() if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{link}#{anchor}")
    assert wrong == []


def test_every_page_is_in_the_index() -> None:
    """Once at least; runbooks are in an index of their own."""
    index = {(DOCS / link).resolve() for link, _ in LINK.findall(prose(DOCS / "README.md")) if link}
    runbooks = DOCS / "runbooks"
    listed = {
        (runbooks / link).resolve() for link, _ in LINK.findall(prose(runbooks / "README.md"))
    }
    pages = {*DOCS.rglob("*.md"), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"}
    missing = pages - index - listed - {DOCS / "README.md"}
    assert sorted(page.name for page in missing) == []


def test_every_folder_of_the_map_exists_and_every_package_is_in_it() -> None:
    """Of the page about the architecture."""
    cells = [row[0] for row in row_cells(DOCS / "architecture.md", "The map")]
    named = [path for cell in cells for path in CODE.findall(cell)]
    assert [path for path in named if not (ROOT / path).is_dir()] == []
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for sources in (SOURCES, LAB)
        for path in sources.glob("*/__init__.py")
    }
    assert packages - set(named) == set()
    tests = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/test_*.py")}
    assert tests - set(named) == set()


@pytest.mark.parametrize(("title", "rows"), [("The tick", 15), ("Where to look", 10)])
def test_every_name_is_where_the_page_says(title: str, rows: int) -> None:
    """Each name stands in the file before it, as a function, class or constant."""
    cells = [row[1] for row in row_cells(DOCS / "architecture.md", title)]
    assert len(cells) >= rows
    wrong = []
    for where in cells:
        text = ""
        for word in CODE.findall(where):
            if word.endswith(".py"):
                path = (ROOT if word.startswith("lab/") else SOURCES) / word
                text = path.read_text(encoding="utf-8") if path.exists() else ""
                if not text:
                    wrong.append(word)
            elif not re.search(rf"^\s*(?:async )?(?:def |class )?{word}\b", text, re.MULTILINE):
                wrong.append(f"{where}: {word}")
    assert wrong == []


@pytest.mark.parametrize(
    "entry", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n- ")[1:]
)
def test_an_entry_of_the_changelog_is_one_short_sentence(entry: str) -> None:
    """Of at most 25 words, ended by the entry's only full stop."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", entry.partition("\n\n")[0]).strip()
    assert len(shown.split()) <= LONGEST_ENTRY_WORDS
    assert shown.endswith(".")
    assert not re.search(r"[.!?] +[A-Z]", shown)


def test_the_changelog_has_the_headings_of_keep_a_changelog() -> None:
    """Added, Changed and so on, under each version."""
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", page, re.MULTILINE)) <= known


def test_the_changelog_says_nothing_twice() -> None:
    """Entries of several branches come together there."""
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = [line for line in page.splitlines() if line.startswith("- ")]
    assert sorted(set(entries)) == sorted(entries)


def test_every_value_of_the_chart_is_told() -> None:
    """By its first name at least, on a page of how to do something."""
    chart = ROOT / "charts" / "servingslo-operator" / "values.yaml"
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "how-to").glob("*.md"))
    values = yaml.safe_load(chart.read_text(encoding="utf-8"))
    assert [name for name in values if not re.search(rf"`[^`]*\b{name}\b", pages)] == []


def test_every_law_of_the_note_has_its_module() -> None:
    """And `tests/textbook` is where the note says that the textbook is."""
    note = DOCS / "designs" / "0002-models.md"
    modules = [word for row in row_cells(note, "The laws") for word in CODE.findall(row[1])]
    assert len(modules) > 15
    models = SOURCES / "models"
    known = {path.relative_to(models).with_suffix("").as_posix() for path in models.rglob("*.py")}
    assert [one for one in modules if one not in known] == []
    assert (ROOT / "tests" / "textbook").is_dir()


def test_every_word_of_the_glossary_is_in_code() -> None:
    """The last column names what is there."""
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in (*SOURCES.rglob("*.py"), *LAB.rglob("*.py"), ROOT / "Makefile")
    )
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", page, re.MULTILINE)
    words = [
        w
        for t in titles
        for row in row_cells(DOCS / "glossary.md", t)
        for w in CODE.findall(row[2])
    ]
    assert len(words) > 30
    assert [word for word in words if not re.search(rf"\b{word}\b", code)] == []


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_are_short(page: Path) -> None:
    """Those that are read by users and contributors."""
    long = [one for one in sentences(prose(page)) if len(one) > LONGEST_SENTENCE]
    assert long == []


def test_the_pages_are_short_enough_to_be_read() -> None:
    """README, changelog and all of docs; history is in git, tables that a program made are data."""
    pages = (ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"))
    texts = (_MADE.sub("", page.read_text(encoding="utf-8")) for page in pages)
    assert sum(len(text.split()) for text in texts) <= MOST_WORDS


def test_notes_are_numbered_once() -> None:
    """With a gap where a note went into the page of its feature."""
    assert len({note.name[:4] for note in NOTES}) == len(NOTES)


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_a_note_says_what_holds_since_when_and_how_to_check_it(note: Path) -> None:
    """Number, date, non-goals and properties, in a page that can be read at once."""
    text = note.read_text(encoding="utf-8")
    assert text.startswith(f"# {int(note.name[:4])}. ")
    assert re.search(r"^(?:Status: \w+\. )?Date: \d{4}-\d\d-\d\d", text, re.MULTILINE)
    assert re.search(r"^## Non-goals", text, re.MULTILINE)
    assert re.search(r"^## Properties", text, re.MULTILINE)
    assert len(text.splitlines()) <= LONGEST_NOTE
