"""What CONTRIBUTING.md says of new parts holds."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.benchmarks.guard import GUARD_SEEDS
from tests.benchmarks.guard_row import KINDS
from tests.benchmarks.guard_verdict import MEAN_PRICE_RATIO, ROW_DEVIATIONS, TARGET_PERCENT

from servingslo.api.v1alpha1.spec import ServingSLOSpec
from servingslo.controller.actuators import catalogue
from servingslo.controller.actuators.means import ACTUATOR
from servingslo.estimation.requests.observed import LATENCIES
from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.explain.summary import CONSTRAINTS
from servingslo.models.fleet.objective_metrics import ROW_OF, ROW_OF_CONSTRAINT, ROWS
from servingslo.models.objectives import LatencyMetric
from servingslo.reasons import BOUND_REASON
from servingslo.runtimes.catalogue import AUTO_RUNTIME, CATALOGUE

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "operator" / "servingslo"
ACTUATORS = "operator/servingslo/controller/actuators"
# What every actuator shares, and no actuator itself.
SHARED = {"__init__", "protocol", "catalogue", "endings", "means"}
# Where a runtime may be named: its own files, and what old recordings are of.
NAMED_IN = ("runtimes/", "controller/recordings/recording.py")


def section(title: str) -> str:
    """The text of one section of the page."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


@pytest.mark.parametrize(
    "title", ["An actuator", "A further runtime", "A further metric of objectives"]
)
def test_the_files_that_are_listed_exist(title):
    """Every path that the section names is there, NAME standing for a runtime that there is."""
    paths = re.findall(r"`((?:operator|tests)/[^`]+)`", section(title))
    assert len(paths) >= 2
    missing = [path for path in paths if not (ROOT / path.replace("NAME", "vllm")).exists()]
    assert missing == []


def test_an_actuator_is_one_file_and_one_row():
    """Each file of the folder is one row of the catalogue; the kernel names none elsewhere."""
    files = {path.stem for path in (ROOT / ACTUATORS).glob("*.py")} - SHARED
    assert len(catalogue.ACTUATORS) == len(files) + len(ACTUATOR.parts())
    named = re.compile(r"actuators\.(\w+) import")
    for path in (ROOT / "operator" / "servingslo").rglob("*.py"):
        if path.parent.name != "actuators" and "features" not in path.parts:
            found = set(named.findall(path.read_text(encoding="utf-8")))
            assert not found & files, f"{path} names an actuator"
    rows = (ROOT / ACTUATORS / "catalogue.py").read_text(encoding="utf-8")
    assert set(named.findall(rows)) - SHARED == files


def test_each_runtime_is_one_file_and_one_row():
    """No module but a runtime's own and old recordings names it; the lab plays some."""
    imported = re.compile(rf"runtimes\.({'|'.join(one.name for one in CATALOGUE)})\b")
    named = re.compile(rf"[\"']({'|'.join(one.name for one in CATALOGUE)})[\"']")
    found = [
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if imported.search(text := path.read_text(encoding="utf-8")) or named.search(text)
    ]
    assert [path for path in found if not path.startswith(NAMED_IN)] == []


def test_the_api_takes_the_catalogue():
    """The field of the spec names each runtime; Auto is what is meant without it."""
    schema = ServingSLOSpec.model_json_schema()["properties"]["runtime"]
    assert f"export), {', '.join(one.name for one in CATALOGUE)}, or" in schema["description"]
    assert schema["default"] == AUTO_RUNTIME


def test_targets_and_figures_of_the_page_are_those_of_the_code():
    """Every make target exists, and the guard is as long and as strict as the page says."""
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z-]+)", page))
    assert {"setup", "check", "test", "guard", "golden", "crd"} <= targets
    assert [one for one in targets if not re.search(rf"^{one}:", makefile, re.MULTILINE)] == []
    words = {4: "four", 9: "nine", 11: "eleven"}
    assert f"are of {words[len(KINDS)]} kinds ({', '.join(KINDS)})" in page
    assert f"played with {words[len(GUARD_SEEDS)]} seeds" in page
    assert f"below {TARGET_PERCENT:g} % is lost" in page
    assert f"the mean price over kept rows by {100 * MEAN_PRICE_RATIO:g} %" in page
    assert ROW_DEVIATIONS == 3.0
    recordings = list((ROOT / "tests/golden/data/replays").glob("*.decisions.jsonl.gz"))
    assert f"{words[len(recordings)].capitalize()} short recordings" in page


def test_no_other_file_knows_a_metric_of_objectives():
    """Where the wait before the first step is named is on the page, or not the planner's."""
    listed = set(re.findall(r"`(operator/[^`]+)`", section("A further metric of objectives")))
    named = re.compile(r"QUEUE_TIME|queue_time\b|queueTime|\bqueue_seconds\b")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES.rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }
    beside = (
        "runtimes/",
        "features/",
        "models/fleet/batch_model.py",
        "estimation/law/batch_rows.py",
    )
    others = [
        path
        for path in found - listed
        if not path.startswith(tuple(f"operator/servingslo/{one}" for one in beside))
    ]
    assert others == []


def test_each_objective_metric_is_one_row():
    """What is observed, predicted, told and explained of a metric all follows from its row."""
    assert set(ROW_OF) == set(LatencyMetric)
    assert tuple(row.metric.value for row in ROWS) == LATENCIES
    histograms = {f.name for f in fields(EngineSample) if f.type == HistogramSample | None}
    for row in ROWS:
        assert row.histogram in histograms
        assert row.constraint in BOUND_REASON
        assert CONSTRAINTS[row.constraint] == row.about
        assert ROW_OF_CONSTRAINT[row.constraint] is row
