"""`servingslo plan`: the operator's decisions again, from files and from a pipe."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from tests.planned_decisions import decisions_of
from tests.unit.cli_calls import MANIFEST
from tests.unit.cli_recordings import SPEC, begun

from servingslo.api.convert import targets_from_spec
from servingslo.controller.recordings.recording import observation_line
from servingslo.policy.inputs import Limits
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState


@pytest.fixture(scope="module")
def decided(seen):
    """The planner's own decisions on them."""
    targets, state, decisions = targets_from_spec(SPEC), PlannerState(), []
    for observation in seen:
        decision, state = plan(observation, targets, Limits(), state, observation.time_seconds)
        decisions.append(decision)
    return decisions


def test_decisions_are_the_planners_own(cli, plain, manifest, decided):
    """Every field of every decision, state carried along."""
    called = cli("plan", "-f", manifest, "--observations", plain)
    assert called.exit_code == 0
    assert decisions_of(called.out) == decided
    assert {d.action.value for d in decided} == {"hold", "scale-up"}


def test_a_list_of_one_is_read_as_that_one(cli, plain, manifest, decided):
    """As `kubectl get servingslos -o yaml` prints it."""
    one = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    listed = {"apiVersion": "v1", "kind": "List", "items": [one]}
    manifest.write_text(yaml.safe_dump(listed), encoding="utf-8")
    called = cli("plan", "-f", manifest, "--observations", plain)
    assert decisions_of(called.out) == decided


def test_a_recording_needs_no_manifest(cli, seen, decided, tmp_path):
    """Its header has the spec and the limits."""
    path = tmp_path / "recording.jsonl"
    recorder = begun(path)
    for observation in seen:
        recorder.observation(replace(observation, uid="u1"))
    recorder.close()
    called = cli("plan", "--observations", path)
    assert decisions_of(called.out) == decided


def test_a_manifest_wins_over_the_header(cli, seen, tmp_path, manifest):
    """What would have been decided by another spec."""
    path = tmp_path / "recording.jsonl"
    other = {**SPEC, "replicas": {"max": 2}}
    recorder = begun(path, other)
    for observation in seen:
        recorder.observation(replace(observation, uid="u1"))
    recorder.close()
    by_header = decisions_of(cli("plan", "--observations", path).out)
    by_manifest = decisions_of(cli("plan", "-f", manifest, "--observations", path).out)
    assert max(d.replicas_after for d in by_header) == 2
    assert max(d.replicas_after for d in by_manifest) > 2


def test_a_line_is_answered_before_the_next_one_is_sent(plain, manifest):
    """A simulator at both ends of the pipe waits for each decision."""
    lines = plain.read_text().splitlines(keepends=True)[:3]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "servingslo.cli",
            "plan",
            "-f",
            str(manifest),
            "--observations",
            "-",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        for number, line in enumerate(lines, start=1):
            process.stdin.write(line)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["time_seconds"] == 15.0 * number
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.slow("servingslo.cli", "servingslo.explain")
def test_an_objective_that_no_count_meets_is_a_no(cli, plain, manifest):
    """Exit code 1 once the law is known; the decision names the least feasible value."""
    manifest.write_text(MANIFEST.replace("threshold: 1s", "threshold: 5ms"))
    called = cli("plan", "-f", manifest, "--observations", plain)
    needs = decisions_of(called.out)[-1].needs
    assert called.exit_code == 1
    assert any(need.least_feasible is not None for need in needs)


def test_recordings_of_one_workload_can_be_put_together(cli, header, seen):
    """With a header of its own time begins anew; without a version it is the first."""
    lines = [json.loads(observation_line(replace(o, uid="u1"))) for o in seen[:2]]
    for line in lines:
        del line["schema_version"]
    text = header + "".join(json.dumps(line) + "\n" for line in lines)
    called = cli("plan", "--observations", "-", stdin=text + text)
    assert called.exit_code == 0, called.err
    assert len(called.out.splitlines()) == 4


@pytest.mark.parametrize("source", ["file", "standard input"])
def test_a_byte_order_mark_is_read_over(cli, plain, manifest, source):
    """Editors on Windows begin files with it."""
    text = "".join(plain.read_text().splitlines(keepends=True)[:2])
    plain.write_text(text, encoding="utf-8-sig")
    marked, stdin = (plain, "") if source == "file" else ("-", f"\ufeff{text}")
    called = cli("plan", "-f", manifest, "--observations", marked, stdin=stdin)
    assert called.exit_code == 0, called.err
    assert len(called.out.splitlines()) == 2
