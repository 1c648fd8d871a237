"""Each feature can be deleted: its folder, tests, pages and row. What is left has no word of it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.features.join import FOLDER, ROOT, joined, shared

from servingslo.features.catalogue import FEATURES

# As `make crd join`, and the entry points of the operator loaded after it, in one process.
GENERATE = """
from pathlib import Path
from servingslo.api import crd
from tests.charts import metadata, reference
from tests.dashboards import servingslo as board
from tests.features import join
crd.write_crd(Path.cwd())
for one in (join, reference, metadata, board):
    one.main()
import servingslo.cli.main, servingslo.cli.running.operate
print(crd.__file__)
"""
# Where no word of a feature is left: what an installation and the reference say, and the kernel.
SILENT = ("crds", "charts", "docs/reference", "operator")
# Programs of the environment, so that those of the copy's own sources are checked.
PROGRAMS = Path(sys.executable).parent
FLOORS = (
    (str(PROGRAMS / "ruff"), "check", "operator", "lab", "tests"),
    (str(PROGRAMS / "mypy"), "--no-incremental"),
    (str(PROGRAMS / "lint-imports"), "--no-cache"),
)
# The end of Chart.yaml: what the changelog said.
HISTORY = "\n  artifacthub.io/changes:"
TESTS = ("tests/unit", "tests/golden/test_replayed_decisions.py", "tests/features")
# This module; panels of the demo as it was recorded, which `make demo` records again; and what the
# changelog said of it.
LEFT_OUT = (
    "tests/features/test_deletion.py",
    "tests/unit/test_cli_demo_dashboard.py::test_the_recording_is_of_the_chart_s_dashboard",
    "tests/unit/test_docs_map.py::test_links_and_anchors_resolve[CHANGELOG.md]",
)
GENERATE_SECONDS, FLOOR_SECONDS, TESTS_SECONDS = 120, 900, 3600


def _run(copy: Path, words: Sequence[str], seconds: float) -> str:
    """What a program prints in the copy. Raises: AssertionError with its end where it fails."""
    paths = os.pathsep.join(str(copy / one) for one in ("operator", "lab", "."))
    done = subprocess.run(
        words, cwd=copy, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def _python(copy: Path, *words: str, seconds: float = GENERATE_SECONDS) -> str:
    return _run(copy, (sys.executable, *words), seconds)


def deleted(name: str, folder: Path) -> Path:
    """A copy of the tree without a feature, with everything generated anew."""
    listed = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    files = subprocess.run(
        ("git", *listed), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    said = shared(name)
    own = (f"{FOLDER}/{name}/", f"tests/features/{name}/", *said.get("files", ()))
    pages = {f"docs/{page}" for page in said["pages"]}
    for file in files:
        if file and not file.startswith(own) and file not in pages and (ROOT / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
    catalogue = folder / FOLDER / "catalogue.py"
    text = catalogue.read_text(encoding="utf-8")
    row = f'    "{name}",\n'
    assert row in text
    catalogue.write_text(text.replace(row, ""), encoding="utf-8")
    history = folder / "CHANGELOG.md"
    text = history.read_text(encoding="utf-8")
    for page in pages:
        # What was is still said, without the page.
        text = re.sub(rf"\[([^]]*)\]\({re.escape(page)}[^)]*\)", r"\1", text)
    history.write_text(text, encoding="utf-8")
    loaded = _python(folder, "-c", GENERATE)
    assert loaded.startswith(str(folder))
    return folder


@pytest.fixture(scope="module", params=FEATURES)
def without(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree without one feature; the name of the folder is the feature's."""
    return deleted(request.param, tmp_path_factory.mktemp("without") / request.param)


def test_what_features_say_in_shared_files_is_written_there() -> None:
    """Rows of pages and groups of alerts, by `python -m tests.features.join`."""
    assert [path for path, text in joined() if path.read_text(encoding="utf-8") != text] == []


def test_no_word_of_it_is_left(without: Path) -> None:
    """Not in CRD, chart, rights, dashboard, reference nor in the kernel, which loads without it."""
    words = re.compile("|".join(map(re.escape, shared(without.name)["words"])), re.IGNORECASE)
    left = [
        f"{path.relative_to(without)}: {found[0]}"
        for place in SILENT
        for path in (without / place).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
        for text in [path.read_text(encoding="utf-8", errors="replace").partition(HISTORY)[0]]
        if (found := words.search(text))
    ]
    assert left == []


def test_its_words_are_in_its_folder() -> None:
    """A word that nothing says any more would let the search find nothing."""
    for name in FEATURES:
        text = "".join(
            path.read_text(encoding="utf-8")
            for kind in ("*.py", "dashboard.yaml", "rules.yaml")
            for path in (ROOT / FOLDER / name).rglob(kind)
        ) + "".join((ROOT / "docs" / page).read_text() for page in shared(name)["pages"])
        assert [w for w in shared(name)["words"] if w.lower() not in text.lower()] == [], name


@pytest.mark.slow("servingslo.features", "servingslo.plugins")
@pytest.mark.timeout(2 * TESTS_SECONDS)
def test_the_rest_builds_and_passes_its_tests(without: Path) -> None:
    """Linters, types and layers of what is left, and its tests without the rig."""
    for words in FLOORS:
        _run(without, words, FLOOR_SECONDS)
    # With its history, which tests of pages ask for.
    clone = without.parent / "history"
    clones = ("git", "clone", "-q", "--no-checkout", str(ROOT), str(clone))
    _run(without, clones, GENERATE_SECONDS)
    (clone / ".git").rename(without / ".git")
    _run(without, ("git", "add", "-A"), GENERATE_SECONDS)
    asked = ("-q", "--maxfail=20", "-p", "no:randomly", "-m", "not rig")
    left_out = (word for one in LEFT_OUT for word in ("--deselect", one))
    _python(without, "-m", "pytest", *asked, *left_out, *TESTS, seconds=TESTS_SECONDS)
