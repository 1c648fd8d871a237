"""The site has every page, and a sidebar that asks the questions of the index."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.website.pages import INDEX, ROOT, reached, sidebar

LIST = re.compile(r"\A# \w+\n\n(- \[[\w.-]+\]\([\w.-]+\)\n)+\Z")


@pytest.fixture(scope="module")
def pages() -> dict[Path, str | None]:
    """What the site holds."""
    return reached()


def leaves(nav: object) -> Iterator[str]:
    """Paths of the pages of a sidebar."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for child in nav.values():
            yield from leaves(child)
    elif isinstance(nav, list):
        for child in nav:
            yield from leaves(child)


def test_every_page_of_the_repository_is_in_it(pages: dict[Path, str | None]) -> None:
    """Also those that a person who reviews a project looks for."""
    here = {path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))}
    assert here - set(pages) == set()


def test_the_sidebar_has_each_question_and_each_page_once(pages: dict[Path, str | None]) -> None:
    """Unless all pages of a question answered one before it."""
    nav = sidebar((ROOT / INDEX).read_text(encoding="utf-8"))
    found = [*leaves(nav)]
    assert sorted(set(found)) == sorted(found)
    assert {Path(page) for page in found} <= set(pages)
    titles = [title for entry in nav for title in entry]
    assert len([title for title in titles if title.endswith("?")]) > 35
    assert {"To look up", "To work on it", "Why it is so", "Findings"} <= set(titles)


def test_a_link_to_a_folder_leads_to_a_page(pages: dict[Path, str | None]) -> None:
    """Its own, or a list of its files."""
    text = pages[Path("examples/README.md")]
    assert text is not None
    assert "](01-minimal/README.md)" in text
    made = pages[Path("crds/README.md")]
    assert made is not None
    assert LIST.match(made)


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    """With the page that has it."""
    for start in ("README.md", "docs/README.md"):
        (tmp_path / start).parent.mkdir(exist_ok=True)
        (tmp_path / start).write_text("# A page\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("[gone](docs/gone.txt)\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"README\.md: docs/gone\.txt is not there"):
        reached(tmp_path)


def test_lists_are_read_as_on_github(tmp_path: Path) -> None:
    """After a line of text, and below another point; a block of code stays as it is."""
    for start in ("README.md", "docs/README.md"):
        (tmp_path / start).parent.mkdir(exist_ok=True)
        (tmp_path / start).write_text("# A page\n", encoding="utf-8")
    text = "text:\n- one\n  - below\n\n```yaml\na:\n- b\n  c\n```\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    assert reached(tmp_path)[Path("README.md")] == (
        "text:\n\n- one\n    - below\n\n```yaml\na:\n- b\n  c\n```\n"
    )
