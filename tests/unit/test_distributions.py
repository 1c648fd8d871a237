"""Two wheels of one repository: what each holds, and the operator without its lab."""

import ast
import gzip
import itertools
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from importlib.metadata import EntryPoint, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from servingslo.cli import lab
from servingslo.cli.lazy import COMMANDS

ROOT = Path(__file__).parents[2]
SWEEP = ("explain", "inference/chat", "--sweep", "--prometheus-url", "http://localhost:9090")
OF_THE_LAB = sorted(name for name, entry in COMMANDS.items() if entry.module is None)
# Nothing but the operator's own modules and the mark of its types.
WORKSHOP = ("*/rig/*", "*/sim/*", "*/demo/*", "*backtest*", "*fitting*", "*/cli/sizing/*",
            "*go.mod", "*go.sum", "*.html", "*.lock", "*.yaml", "tests/*")  # fmt: skip


def _built(name: str, folder: Path) -> Path:
    """The wheel of a distribution, of a copy of its sources: a build writes beside them."""
    source = folder / "source" / name
    leftout = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    if name == "lab":
        shutil.copytree(ROOT / "lab", source, ignore=leftout)
    else:
        shutil.copytree(ROOT / name, source / name, ignore=leftout)
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, source / file)
    built = folder / name
    command = (
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-build-isolation", "--wheel-dir", str(built), str(source),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of both wheels."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def operator_wheel(folder: Path) -> Path:
    """As the image's step builds it."""
    return _built("operator", folder)


@pytest.fixture(scope="module")
def lab_wheel(folder: Path) -> Path:
    """As `pip install ./lab` builds it."""
    return _built("lab", folder)


def _files(wheel: Path) -> dict[str, int]:
    """Bytes of each file of a wheel, its metadata left out."""
    with zipfile.ZipFile(wheel) as content:
        return {
            item.filename: item.file_size
            for item in content.infolist()
            if ".dist-info/" not in item.filename
        }


def _metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as content:
        (found,) = (item for item in content.namelist() if item.endswith(f".dist-info/{name}"))
        return content.read(found).decode()


def _sources(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path.relative_to(folder.parent).as_posix()


def _required(wheel: Path) -> set[str]:
    lines = _metadata(wheel, "METADATA").splitlines()
    found = (line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: "))
    return {canonicalize_name(Requirement(line).name) for line in found}


def test_the_operator_s_wheel_is_the_product_and_nothing_of_its_workshop(operator_wheel):
    """No rig, simulator, demo, report or pins of other programs: modules and laws of cards."""
    files = _files(operator_wheel)
    assert [name for name in files for found in WORKSHOP if fnmatch(name, found)] == []
    others = {name for name in files if not name.endswith((".py", "py.typed"))}
    assert others == {"servingslo/models/known_engines.json"}
    # What features say in chart and pages is written there, and no part of the program.
    sources = _sources(ROOT / "operator" / "servingslo")
    assert set(files) == {
        name for name in sources if "/features/" not in name or name.endswith(".py")
    }


def test_the_lab_s_wheel_has_all_that_the_operator_s_leaves_out(lab_wheel):
    """Every file of its folder, data included, so that a rig can be built from an installed one."""
    files = set(_files(lab_wheel))
    assert files == set(_sources(ROOT / "lab" / "servingslo_lab"))
    for part in ("rig/cluster.py", "rig/kubernetes/stages.yaml", "rig/tools/etcd/go.mod",
                 "sim/replicas/kernel.py", "sim/baselines/tuned.yaml", "cli/demo/view.py",
                 "cli/fitting/law.py"):  # fmt: skip
        assert f"servingslo_lab/{part}" in files


def test_the_operator_asks_for_nothing_that_draws_or_compiles(operator_wheel, lab_wheel):
    """In no extra either; the lab's pictures and compiler are extras of its own."""
    assert _required(operator_wheel) & {"matplotlib", "numba", "servingslo-lab"} == set()
    assert _required(lab_wheel) >= {"matplotlib", "numba", "servingslo"}


def test_what_the_lab_imports_it_asks_for(lab_wheel):
    """Itself, not only by something that it asks for."""
    names = {
        name.partition(".")[0]
        for path in (ROOT / "lab" / "servingslo_lab").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
    }
    by_module = packages_distributions()
    asked = _required(lab_wheel)
    foreign = names - sys.stdlib_module_names - {"servingslo_lab"}
    assert foreign >= {"numpy", "servingslo"}
    missing = {
        name
        for name in foreign
        if not asked & {canonicalize_name(one) for one in by_module.get(name, [name])}
    }
    assert missing == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        return [node.module]
    return []


def test_the_lab_s_commands_are_those_that_the_operator_leaves_to_it(lab_wheel):
    """By entry points, whose functions are there."""
    text = _metadata(lab_wheel, "entry_points.txt")
    entries = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    assert sorted(entries["servingslo.commands"]) == OF_THE_LAB
    for group, named in entries.items():
        assert f"[{group}]" in text
        for value in named.values():
            assert value in text
            module, _, attribute = value.partition(":")
            path = ROOT / "lab" / f"{module.replace('.', '/')}.py"
            assert attribute in path.read_text(encoding="utf-8")


# The unpacked wheel comes first; what only the lab brings cannot be imported, as in an image.
_ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"servingslo_lab", "matplotlib", "numba"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[1])
sys.argv[:] = ["servingslo", *sys.argv[2:]]
import servingslo.cli.main as command
assert command.__file__.startswith(sys.path[0]), command.__file__
command.main()
"""


@pytest.fixture(scope="module")
def alone(operator_wheel: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls the command of the operator's wheel where there is no lab."""
    installed = operator_wheel.parent / "installed"
    with zipfile.ZipFile(operator_wheel) as content:
        content.extractall(installed)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _ALONE, str(installed), *arguments],
            capture_output=True, text=True, check=False, env=environment, cwd=installed.parent,
        )  # fmt: skip

    return call


def test_the_operator_alone_plans_and_explains(alone, tmp_path):
    """What a user of the image has: it makes recorded decisions again."""
    recording = tmp_path / "recording.jsonl"
    with gzip.open(ROOT / "tests/golden/data/replays/bursts.jsonl.gz", "rt") as file:
        recording.write_text("".join(itertools.islice(file, 4)), encoding="utf-8")
    planned = alone("plan", "--observations", str(recording))
    assert planned.returncode == 0, planned.stderr
    assert "replicas" in planned.stdout
    explained = alone("explain", "--help")
    assert explained.returncode == 0, explained.stderr
    assert "servingslo explain" in explained.stdout


@pytest.mark.parametrize(
    "typed", [*((name,) for name in OF_THE_LAB), ("schema", "fleet"), SWEEP], ids=" ".join
)
def test_the_operator_alone_says_what_a_command_of_the_lab_needs(alone, typed):
    """In one line, with another exit code than 0."""
    done = alone(*typed)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    named = ("explain", "--sweep") if typed == SWEEP else typed
    assert f"servingslo {' '.join(named)}" in line
    assert "pip install . ./lab" in line
    assert done.stdout == ""


def test_commands_that_are_not_installed_are_listed_as_such(cli, monkeypatch):
    """With the distribution that has them, and the same in the answer to a call."""
    monkeypatch.setattr(lab, "entry_points", lambda **_: ())
    lines = cli("--help").out.splitlines()
    absent = {line.split()[0] for line in lines if "Not installed: servingslo-lab" in line}
    assert sorted(absent) == OF_THE_LAB
    called = cli("backtest", "--help")
    assert called.exit_code == 1
    assert "servingslo backtest is part of servingslo-lab" in called.err


def test_another_module_that_is_missing_is_not_taken_for_the_lab(monkeypatch):
    """A defect is told as one: only a lab that is gone has an answer of its own."""
    entry = EntryPoint(name="fit", group=lab.COMMANDS, value="tests.unit.none_such:fit")
    monkeypatch.setattr(lab, "entry_points", lambda **_: (entry,))
    with pytest.raises(ModuleNotFoundError):
        lab.loaded(lab.COMMANDS, "fit", "fit")
