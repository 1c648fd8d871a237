"""`servingslo plan`: the operator's decisions again, from files and from a pipe."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from pydantic import TypeAdapter
from tests.unit.cli_calls import MANIFEST
from tests.unit.policy_world import World

from servingslo.api.convert import targets_from_spec
from servingslo.controller.recording import Header, Recorder, observation_line
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits
from servingslo.policy.planner import plan
from servingslo.policy.state import PlannerState

SPEC = {
    "targetRef": {"kind": "Deployment", "name": "llama"},
    "objectives": [
        {"metric": "ttft", "percentile": 99, "threshold": "1s"},
        {"metric": "tpot", "percentile": 95, "threshold": "50ms"},
    ],
    "replicas": {"max": 8},
}
TICK_COUNT = 50


@pytest.fixture(scope="module")
def seen():
    """Observations of two engines under a load that doubles, as nobody acts on them."""
    world = World(rate=lambda t: 4.0 if t < 450 else 8.0, replicas=2)
    return [world.observe(15.0 * (tick + 1)) for tick in range(TICK_COUNT)]


@pytest.fixture(scope="module")
def decided(seen):
    """The planner's own decisions on them."""
    targets, state, decisions = targets_from_spec(SPEC), PlannerState(), []
    for observation in seen:
        decision, state = plan(observation, targets, Limits(), state, observation.time_seconds)
        decisions.append(decision)
    return decisions


@pytest.fixture
def plain(seen, tmp_path):
    """A file of observations without a header."""
    path = tmp_path / "observations.jsonl"
    path.write_text("".join(observation_line(o) + "\n" for o in seen))
    return path


@pytest.fixture
def manifest(tmp_path):
    """A manifest with the spec."""
    path = tmp_path / "slo.yaml"
    path.write_text(MANIFEST)
    return path


def decisions_of(out):
    """The decisions in JSON output."""
    adapter = TypeAdapter(Decision)
    return [adapter.validate_json(line) for line in out.splitlines()]


def test_decisions_are_the_planners_own(cli, plain, manifest, decided):
    """Every field of every decision, state carried along."""
    called = cli("plan", "-f", manifest, "--observations", plain)
    assert called.exit_code == 0
    assert decisions_of(called.out) == decided
    assert {d.action.value for d in decided} == {"hold", "scale-up"}


def test_a_recording_needs_no_manifest(cli, seen, decided, tmp_path):
    """Its header has the spec and the limits."""
    path = tmp_path / "recording.jsonl"
    recorder = Recorder(path)
    recorder.header(
        Header(
            uid="u1", namespace="inference", name="llama", generation=1, spec=SPEC,
            limits=Limits(), time_seconds=0.0,
        )
    )  # fmt: skip
    for observation in seen:
        recorder.observation(replace(observation, uid="u1"))
    recorder.close()
    called = cli("plan", "--observations", path)
    assert decisions_of(called.out) == decided


@pytest.mark.parametrize("by", ["header", "manifest"])
def test_a_law_in_the_spec_is_planned_with_in_a_replay(cli, seen, tmp_path, by):
    """As live: from the first window on, until a fit is trusted."""
    law = {
        "stepFixedSeconds": 0.015,
        "stepPerSequenceSeconds": 0.0004,
        "prefillPerTokenSeconds": 0.00008,
    }
    stated, path = {**SPEC, "serviceLaw": law}, tmp_path / "recording.jsonl"
    recorder = Recorder(path)
    recorder.header(
        Header(
            uid="u1", namespace="inference", name="llama", generation=1,
            spec=stated if by == "header" else SPEC, limits=Limits(), time_seconds=0.0,
        )
    )  # fmt: skip
    for observation in seen:
        recorder.observation(replace(observation, uid="u1"))
    recorder.close()
    manifest = tmp_path / "stated.yaml"
    manifest.write_text(f"{MANIFEST}  serviceLaw: {json.dumps(law)}\n")
    flags = ("-f", manifest) if by == "manifest" else ()
    sources = [
        d.model.source for d in decisions_of(cli("plan", *flags, "--observations", path).out)
    ]
    taken = sources.index("fit")
    assert set(sources[1:taken]) == {"spec"}
    assert set(sources[taken:]) == {"fit"}


def test_a_manifest_wins_over_the_header(cli, seen, tmp_path, manifest):
    """What would have been decided by another spec."""
    path = tmp_path / "recording.jsonl"
    other = {**SPEC, "replicas": {"max": 2}}
    recorder = Recorder(path)
    recorder.header(
        Header(
            uid="u1", namespace="inference", name="llama", generation=1, spec=other,
            limits=Limits(), time_seconds=0.0,
        )
    )  # fmt: skip
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


def test_text_explains(cli, plain, manifest):
    """The last paragraph says what was decided and why."""
    out = cli("plan", "-f", manifest, "--observations", plain, "-o", "text").out
    last = out.strip().split("\n\n")[-1]
    assert last.startswith("inference/llama at ")
    assert "Decision: " in last


def test_an_objective_that_no_count_meets_is_a_no(cli, plain, manifest):
    """Exit code 1 once the law is known; the decision names the least feasible value."""
    manifest.write_text(MANIFEST.replace("threshold: 1s", "threshold: 5ms"))
    called = cli("plan", "-f", manifest, "--observations", plain)
    needs = decisions_of(called.out)[-1].needs
    assert called.exit_code == 1
    assert any(need.least_feasible is not None for need in needs)


def test_administrators_limits_hold(cli, plain, manifest):
    """A bound of the command line is as one of the operator."""
    out = cli("plan", "-f", manifest, "--observations", plain, "--max-replicas", "2").out
    assert max(d.replicas_after for d in decisions_of(out)) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(("50ms", "50parsecs"), ("spec.objectives[1].threshold", "50parsecs"), id="t"),
        pytest.param(("max: 8", "max: 0"), ("spec.replicas.max", "0", "1 to 10000"), id="max"),
        pytest.param(("kind: ServingSLO", "kind: Pod"), ("kind", "exactly one"), id="kind"),
        pytest.param(("/v1alpha1", "/v9"), ("apiVersion", "/v9", "v1alpha1"), id="version"),
        pytest.param(("spec:", "spec: ["), ("manifest in YAML",), id="no yaml"),
        pytest.param(("targetRef", "target"), ("spec.targetRef", "required"), id="no target"),
    ],
)
def test_a_bad_manifest_is_named_by_file_and_field(cli, plain, manifest, change, words):
    """Exit code 2 with file, field, value and what is allowed."""
    manifest.write_text(MANIFEST.replace(*change))
    called = cli("plan", "-f", manifest, "--observations", plain)
    assert called.refuses(str(manifest), *words), called.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("{", ("line 2", "one JSON object"), id="no json"),
        pytest.param("[1]", ("line 2", "one JSON object"), id="no object"),
        pytest.param("{}", ("line 2: time_seconds",), id="empty"),
        pytest.param(
            '{"time_seconds": "noon", "namespace": "a", "name": "b"}',
            ("line 2: time_seconds", "'noon'", "number"),
            id="no time",
        ),
        pytest.param(
            '{"time_seconds": 1, "namespace": "a", "name": "b", "pods": [{"name": "p", '
            '"ready": "maybe"}]}',
            ("line 2: pods.0.ready", "'maybe'"),
            id="deep",
        ),
        pytest.param(
            '{"time_seconds": 1, "namespace": "a", "name": "b", "pods": [{"name": "p", "engines": '
            '[{"engine": "0", "ttft_seconds": {"upper_bounds": [1, 2], "cumulative_counts": [1], '
            '"sum": 1, "count": 1}}]}]}',
            ("line 2: pods.0.engines.0.ttft_seconds", "as many cumulative_counts as upper_bounds"),
            id="edges without counts",
        ),
        pytest.param('{"header": {}}', ("line 2: uid",), id="header"),
        pytest.param(
            '{"outcome": {"uid": "x", "time_seconds": 1, "before": 1, "after": 2, "written": 1}}',
            ("line 2: uid", "'x'"),
            id="outcome of nobody",
        ),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(cli, seen, manifest, line, words):
    """Exit code 2; the lines before it were answered."""
    text = observation_line(seen[0]) + "\n" + line + "\n"
    called = cli("plan", "-f", manifest, "--observations", "-", stdin=text)
    assert called.refuses("standard input", *words), called.err
    assert len(called.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--observations", "none.jsonl"), ("--observations", "none.jsonl"), id="file"),
        pytest.param(("-f", "none.yaml", "--observations", "-"), ("-f", "none.yaml"), id="spec"),
    ],
)
def test_a_missing_file_is_named(cli, arguments, words):
    """Exit code 2."""
    assert cli("plan", *arguments).refuses(*words)


def test_observations_without_header_need_a_manifest(cli, plain):
    """The message says which flag."""
    assert cli("plan", "--observations", plain).refuses("line 1: uid", "-f")


def test_an_empty_file_is_refused(cli, manifest):
    """Nothing to decide on is no success."""
    called = cli("plan", "-f", manifest, "--observations", "-", stdin="\n")
    assert called.refuses("observations", "at least one line")
