"""What features bring is found by their rows, and read by its own type."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servingslo import features, plugins
from servingslo.plugins import Aspect, Key

WORDS: Aspect[str] = Aspect("words")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the features of a test are: three rows in this order."""
    for name in ("toy_b", "toy_a", "toy_none"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(features, "__path__", [*features.__path__, str(tmp_path)])
    monkeypatch.setattr(plugins, "FEATURES", ("toy_b", "toy_a", "toy_none"))
    plugins._parts.cache_clear()
    yield tmp_path
    plugins._parts.cache_clear()
    for name in [one for one in sys.modules if one.startswith(f"{features.__name__}.toy_")]:
        del sys.modules[name]


def test_parts_come_in_the_order_of_the_rows(folder: Path) -> None:
    """Of those that have such a module, and no other."""
    for name in ("toy_a", "toy_b"):
        (folder / name / "words.py").write_text(f"PART = '{name}'\n")
    assert WORDS.parts() == ("toy_b", "toy_a")


def test_a_module_that_does_not_load_is_no_missing_one(folder: Path) -> None:
    """A feature that is broken is not left out in silence."""
    (folder / "toy_a" / "words.py").write_text("import servingslo.no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        WORDS.parts()


def test_a_value_of_another_type_is_none() -> None:
    """As one of a feature that was another thing in a former version."""
    key = Key("toy", int)
    assert [key.of(values) for values in ({"toy": 3}, {"toy": "3"}, {})] == [3, None, None]
