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


def begun(path):
    """A recorder to this file that has written the header."""
    recorder = Recorder(path)
    recorder.header(
        Header(
            uid="u1", namespace="inference", name="llama", generation=1, spec=SPEC,
            limits=Limits(), time_seconds=0.0,
        )
    )  # fmt: skip
    return recorder


@pytest.fixture
def header(tmp_path):
    """The header of a recording, as its first line."""
    path = tmp_path / "header.jsonl"
    begun(path).close()
    return path.read_text()


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
    recorder = begun(path)
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
            ("line 2: pods[0].ready", "'maybe'"),
            id="deep",
        ),
        pytest.param(
            '{"time_seconds": 1, "namespace": "a", "name": "b", "pods": [{"name": "p", "engines": '
            '[{"engine": "0", "ttft_seconds": {"upper_bounds": [1, 2], "cumulative_counts": [1], '
            '"sum": 1, "count": 1}}]}]}',
            (
                "line 2: pods[0].engines[0].ttft_seconds",
                "as many cumulative_counts as upper_bounds",
            ),
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


def _set(document, path, value):
    """The document with the value at a path of keys and indexes."""
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


ENGINE = ("pods", 0, "engines", 0)
TTFT = (*ENGINE, "ttft_seconds")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        pytest.param(("schema_version",), 99, ("schema_version: 99", "allowed: 1"), id="version"),
        pytest.param(("time_seconds",), float("nan"), ("time_seconds: nan", "0 to"), id="nan time"),
        pytest.param(("time_seconds",), float("inf"), ("time_seconds: inf", "0 to"), id="inf time"),
        pytest.param(
            ("time_seconds",), 1e15, ("time_seconds: 1000000000000000.0", "0 to"), id="no date"
        ),
        pytest.param(("time_seconds",), 1.0, ("time_seconds: 1.0", "15.0 or later"), id="back"),
        pytest.param(
            ("desired_replicas",), -3, ("desired_replicas: -3", "0 to 1000000"), id="desired"
        ),
        pytest.param(
            ("desired_replicas",), 10**9, ("desired_replicas", "0 to 1000000"), id="a billion"
        ),
        pytest.param(("current_replicas",), -1, ("current_replicas: -1",), id="current"),
        pytest.param(
            ("pods", 0, "ready_for_seconds"), -1.0, ("pods[0].ready_for_seconds",), id="pod age"
        ),
        pytest.param(
            (*ENGINE, "max_num_seqs"),
            0,
            ("pods[0].engines[0].max_num_seqs: 0", "1 to 1000000"),
            id="no sequences",
        ),
        pytest.param((*ENGINE, "max_num_seqs"), -4, ("max_num_seqs: -4",), id="less than none"),
        pytest.param(
            (*ENGINE, "max_num_seqs"), 10**400, ("max_num_seqs", "..."), id="longer than a float"
        ),
        pytest.param(
            (*ENGINE, "max_num_batched_tokens"), 0, ("max_num_batched_tokens: 0",), id="no budget"
        ),
        pytest.param(
            (*ENGINE, "kv_capacity_tokens"), 0.0, ("kv_capacity_tokens: 0.0", "above 0"), id="no KV"
        ),
        pytest.param(
            (*ENGINE, "kv_usage_ratio"), 50.0, ("kv_usage_ratio: 50.0", "0 to 1.05"), id="percent"
        ),
        pytest.param((*ENGINE, "running"), -5.0, ("running: -5.0", "0 to"), id="running"),
        pytest.param((*ENGINE, "gauges_age_seconds"), -1.0, ("gauges_age_seconds",), id="age"),
        pytest.param(
            (*ENGINE, "generation_tokens_total"),
            1e308,
            ("generation_tokens_total: 1e+308", "0 to 1e+15"),
            id="counter",
        ),
        pytest.param(
            (*ENGINE, "finished_total"), {"stop": -1.0}, ("finished_total.stop: -1.0",), id="split"
        ),
        pytest.param(
            (*TTFT, "cumulative_counts", 0), -1.0, ("cumulative_counts[0]: -1.0",), id="bucket"
        ),
        pytest.param(
            (*TTFT, "cumulative_counts", 0), 1e9, ("cumulative_counts[1]", "or more"), id="falling"
        ),
        pytest.param(
            (*TTFT, "upper_bounds", 1), 0.0, ("upper_bounds[1]: 0.0", "above"), id="edges"
        ),
        pytest.param((*TTFT, "sum"), float("nan"), ("ttft_seconds.sum: nan",), id="sum"),
        pytest.param(
            ("gateway",), {"requests_total": -1.0}, ("gateway.requests_total: -1.0",), id="gateway"
        ),
        pytest.param(
            ("gateway",),
            {"instances": [{"queued": -1.0}]},
            ("gateway.instances[0].queued: -1.0",),
            id="gateway instance",
        ),
        pytest.param(
            ("history",),
            {"start_seconds": 0.0, "bin_seconds": 0.0, "rates_per_second": [1.0]},
            ("history.bin_seconds: 0.0", "1 to 86400"),
            id="bins",
        ),
        pytest.param(
            ("history",),
            {"start_seconds": 0.0, "bin_seconds": 300.0, "rates_per_second": [None, -1.0]},
            ("history.rates_per_second[1]: -1.0",),
            id="past rate",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "fit"])
def test_what_no_workload_can_have_is_named(cli, seen, manifest, command, path, value, words):
    """Exit code 2 with line, path, value and range, before anything is computed from it."""
    bad = json.dumps(_set(json.loads(observation_line(seen[1])), path, value))
    text = f"{observation_line(seen[0])}\n{bad}\n"
    flags = ("-f", manifest, "--observations", "-") if command == "plan" else ("--recording", "-")
    called = cli(command, *flags, stdin=text)
    assert called.refuses("standard input: line 2: ", *words), called.err


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        pytest.param(
            ("limits", "tick_seconds"), -1.0, ("limits.tick_seconds: -1.0", "0.5 or"), id="tick"
        ),
        pytest.param(("limits", "max_replicas"), 0, ("limits.max_replicas: 0", "1 or"), id="most"),
        pytest.param(("limits", "max_step"), -1, ("limits.max_step: -1", "1 or"), id="step"),
        pytest.param(("time_seconds",), float("nan"), ("time_seconds: nan",), id="time"),
    ],
)
def test_a_header_out_of_range_is_named(cli, header, path, value, words):
    """As the flags of the same names are."""
    bad = json.dumps(_set(json.loads(header), ("header", *path), value))
    called = cli("plan", "--observations", "-", stdin=bad)
    assert called.refuses("line 1: header.", *words), called.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"after": -1}, ("outcome.after: -1", "0 to 1000000"), id="after"),
        pytest.param({"before": 10**9}, ("outcome.before", "0 to 1000000"), id="before"),
        pytest.param({"time_seconds": float("inf")}, ("outcome.time_seconds: inf",), id="time"),
    ],
)
def test_an_outcome_out_of_range_is_named(cli, header, change, words):
    """What was written is a count."""
    outcome = {"uid": "u1", "time_seconds": 1.0, "before": 1, "after": 2, "written": True}
    text = f"{header}{json.dumps({'outcome': {**outcome, **change}})}\n"
    called = cli("plan", "--observations", "-", stdin=text)
    assert called.refuses("line 2: ", *words), called.err


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


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        pytest.param("--tick-seconds", "0", ("--tick-seconds: '0'", "0.5 or more"), id="tick"),
        pytest.param("--tick-seconds", "fast", ("--tick-seconds: 'fast'", "a number"), id="word"),
        pytest.param("--max-replicas", "0", ("--max-replicas: '0'", "1 or more"), id="most"),
        pytest.param("--max-step", "1.5", ("--max-step: '1.5'", "an integer"), id="step"),
    ],
)
def test_a_bad_flag_is_named_with_its_value_and_what_is_allowed(cli, flag, value, words):
    """Exit code 2 and one line."""
    called = cli("plan", "--observations", "-", flag, value)
    assert called.refuses(*words), called.err


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
