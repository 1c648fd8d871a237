"""What people read is in plain English, as far as a word list can tell."""

from pathlib import Path

import pytest
from tests.prose.check import ROOT, files, findings
from tests.prose.words import FORBIDDEN


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_text_has_no_forbidden_phrase(path: Path) -> None:
    """`python -m tests.prose.check FILE` names each, with what to write in its place."""
    assert findings(path) == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        pytest.param("The reason is told in status.", "told", id="told"),
        pytest.param("Grant it to nobody who may not scale.", "nobody", id="nobody"),
        pytest.param("What comes is counted.", "What comes", id="what-comes"),
        pytest.param("A tenant can scale what he owns.", "he", id="he"),
        pytest.param("Replicas are given back.", "given back", id="given-back"),
        pytest.param("It waits for ever.", "for ever", id="archaic, by proselint itself"),
    ],
)
def test_a_forbidden_phrase_is_found(tmp_path: Path, text: str, phrase: str) -> None:
    """With its line, whether the phrase is of our list or of proselint's."""
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{text}\n", encoding="utf-8")
    found = findings(page)
    assert any(f"page.md:3: '{phrase}'" in line for line in found), found


def test_every_phrase_has_its_replacement() -> None:
    """A list that only forbids helps nobody."""
    assert len(FORBIDDEN) >= 25
    assert all(FORBIDDEN.values())
