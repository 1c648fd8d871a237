"""Tests of the rig run beside those that compute, and each where it belongs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.scheduling import NICENESS, RIG_WORKERS

ROOT = Path(__file__).parents[2]
# Each test says where it ran; it takes long enough for another worker to come by.
TEST_FILE = """
import os, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    time.sleep(0.02)
    with Path("ran").open("a") as file:
        file.write(f"{Path(__file__).parent.name}/{Path(__file__).name} {worker} {os.nice(0)}\\n")
"""
CONFTEST = """
from tests.scheduling import RigBesideTheRest, yields_to_rigs

def pytest_configure(config):
    yields_to_rigs(config)

def pytest_xdist_make_scheduler(config, log):
    return RigBesideTheRest(config, log)
"""


def ran(folder: Path, workers: int, modules: list[str]) -> tuple[list[list[str]], str]:
    """[module, worker, niceness] of each test of some modules, and the last line printed."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for module in modules:
        path = folder / "tests" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEST_FILE)
    command = (sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-n", str(workers))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "ran").read_text().splitlines()
    return [line.split() for line in lines], done.stdout.splitlines()[-1]


RIG = [f"integration/test_{letter}.py" for letter in "abcd"] + ["e2e/test_e.py"]
REST = [f"unit/test_{letter}.py" for letter in "fghijklm"]


@pytest.mark.parametrize(
    ("workers", "modules"),
    [
        pytest.param(3, RIG + REST, id="all"),
        pytest.param(4, REST, id="none of the rig"),
        pytest.param(4, [*RIG, REST[0]], id="workers that have nothing left"),
    ],
)
def test_every_test_runs_once_and_a_module_on_one_worker(
    tmp_path: Path, workers: int, modules: list[str]
) -> None:
    """All are run, whatever there is to run on how many workers, and the last line counts them."""
    tests, closing = ran(tmp_path, workers, modules)
    assert sorted(module for module, *_ in tests) == sorted(modules * 3)
    assert len({(module, worker) for module, worker, _ in tests}) == len(modules)
    assert re.search(rf"\b{3 * len(modules)} passed in ", closing)


def test_tests_of_the_rig_stay_with_its_workers_and_go_first(tmp_path: Path) -> None:
    """The others never start a control plane, compute alone, and yield to those that have one."""
    tests, _ = ran(tmp_path, 3, RIG + REST)
    of_rig = {worker for module, worker, _ in tests if not module.startswith("unit/")}
    assert of_rig == {f"gw{number}" for number in range(RIG_WORKERS)}
    niceness = {worker: int(value) for _, worker, value in tests}
    lowest = max(os.nice(0), niceness["gw0"])
    assert niceness["gw2"] == min(lowest + NICENESS, 19)
    for name in of_rig:
        kinds = [module.startswith("unit/") for module, worker, _ in tests if worker == name]
        assert kinds == sorted(kinds)
