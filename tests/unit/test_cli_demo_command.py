"""The demo's command: what each scenario builds, and how it ends by a signal."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import servingslo_lab
from servingslo_lab.cli.demo.scenarios import NEEDS, DemoEngine, Scenario
from servingslo_lab.rig.programs.versions import DEFAULT_TOOLS, ENVOY, LLM_D_SIM

LAB = Path(servingslo_lab.__file__).parent
RUNS = {
    Scenario.SURGE: "system",
    Scenario.FLASH_CROWD: "flash_crowd",
    Scenario.BATCH_LIMITS: "batch_limits",
    Scenario.TRITON: "triton",
    Scenario.DISAGGREGATED: "disaggregated/run",
    Scenario.CLASSES: "classes/run",
    DemoEngine.LLM_D_SIM: "llm_d_sim",
}


def imported(path: Path, known: set[Path]) -> set[Path]:
    """The lab's modules that this one imports, directly or not."""
    if path in known or not path.exists():
        return known
    known.add(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("servingslo_lab."):
            module = LAB.joinpath(*node.module.split(".")[1:])
            for found in (
                module.with_suffix(".py"),
                *(module / f"{n.name}.py" for n in node.names),
            ):
                imported(found, known)
    return known


@pytest.mark.parametrize("scenario", RUNS)
def test_a_scenario_builds_what_its_code_runs(scenario: Scenario | DemoEngine) -> None:
    """Envoy and its CRDs only behind a gateway, an engine's program only with this engine."""
    tools, *more = NEEDS.get(scenario, (DEFAULT_TOOLS,))
    labels = {one.label for found in more for one in found}
    modules = {str(p) for p in imported(LAB / f"cli/demo/{RUNS[scenario]}.py", set())}
    behind_envoy = str(LAB / "rig/gateways/envoy_front.py") in modules
    assert (ENVOY in tools) is behind_envoy
    assert (LLM_D_SIM in tools) is (scenario is DemoEngine.LLM_D_SIM)
    assert set(DEFAULT_TOOLS) <= set(tools)
    assert any("Triton" in one or "triton" in one for one in labels) is (
        scenario is Scenario.TRITON
    )
    assert bool(labels) is (behind_envoy or scenario is Scenario.TRITON)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_demo_that_was_started_in_the_background(sent: int) -> None:
    """Shells start background jobs with SIGINT ignored, which a process inherits."""
    code = (
        "import time\n"
        "from servingslo_lab.cli.demo.command import _ending_on_termination\n"
        "with _ending_on_termination():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(sent)
        _, error = process.communicate(timeout=20)
    assert "Exit: 130" in error
