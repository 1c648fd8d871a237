"""`servingslo plan` and `fit` on what they refuse: named by place, value and what is allowed."""

import json

import pytest
from tests.unit.cli_calls import MANIFEST

from servingslo.controller.recordings.recording import observation_line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(("50ms", "50parsecs"), ("spec.objectives[1].threshold", "50parsecs"), id="t"),
        pytest.param(("max: 8", "max: 0"), ("spec.replicas.max", "0", "1 to 10000"), id="max"),
        pytest.param(("kind: ServingSLO", "kind: Pod"), ("kind", "exactly one"), id="kind"),
        pytest.param(("/v1beta1", "/v9"), ("apiVersion", "/v9", "v1beta1"), id="version"),
        pytest.param(("spec:", "spec: ["), ("manifest in YAML (line ",), id="no yaml"),
        pytest.param(("spec:", "spec: " + "[" * 9_000), ("manifest in YAML",), id="deep"),
        pytest.param(("max: 8", "max: !!int ''"), ("manifest in YAML",), id="no number"),
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
        pytest.param("[" * 50_000, ("line 2", "one JSON object"), id="deep"),
        pytest.param('{"header": {}}', ("line 2: header.uid",), id="header"),
        pytest.param(
            '{"outcome": {"uid": "x", "time_seconds": 1, "before": 1, "after": 2, '
            '"written": true}}',
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
    ("stated", "words"),
    [
        pytest.param({"desired_replicas": "3"}, ("'3'", "a number"), id="text for a count"),
        pytest.param({"desired_replicas": True}, ("true", "a number"), id="truth for a count"),
        pytest.param({"generation": "1" * 400}, ("'111", "a number"), id="more than a float"),
        pytest.param({"time_seconds": "9"}, ("'9'", "a number"), id="text for a time"),
        pytest.param({"rollout_in_progress": 1}, ("1", "true or false"), id="count for truth"),
        pytest.param({"rollout_in_progress": "yes"}, ("'yes'", "true or false"), id="text for it"),
        pytest.param(
            {"pods": [{"name": "p", "engines": [{"engine": "0", "running": "3"}]}]},
            ("pods[0].engines[0].running", "'3'", "a number"),
            id="deep",
        ),
        pytest.param(
            {"labels": {}, "in_force": {"batching": {"values": {"max_num_seqs": "64"}}}},
            ("in_force.batching.values.max_num_seqs", "'64'", "a number"),
            id="in a mapping",
        ),
    ],
)
def test_a_value_of_another_kind_is_refused_and_not_converted(cli, manifest, stated, words):
    """Pydantic would read the text "3" as a number, and true as 1."""
    line = {"time_seconds": 1, "namespace": "a", "name": "b", **stated}
    text = json.dumps(line) + "\n"
    called = cli("plan", "-f", manifest, "--observations", "-", stdin=text)
    assert called.refuses("standard input: line 1", *words), called.err
    assert not called.out


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
        pytest.param(("podz",), [], ("podz: []", "no such field"), id="misspelt"),
        pytest.param(
            (*ENGINE, "run"), 3, ("pods[0].engines[0].run: 3", "no such field"), id="misspelt deep"
        ),
        pytest.param(("time_seconds",), float("nan"), ("time_seconds: nan", "0 to"), id="nan time"),
        pytest.param(("time_seconds",), 1.0, ("time_seconds: 1.0", "15.0 or later"), id="back"),
        pytest.param(
            ("desired_replicas",), -3, ("desired_replicas: -3", "0 to 1000000"), id="desired"
        ),
        pytest.param(
            (*ENGINE, "max_num_seqs"),
            0,
            ("pods[0].engines[0].max_num_seqs: 0", "1 to 1000000"),
            id="no sequences",
        ),
        pytest.param(
            (*ENGINE, "max_num_seqs"), 10**400, ("max_num_seqs", "..."), id="longer than a float"
        ),
        pytest.param(
            (*ENGINE, "kv_capacity_tokens"), 0.0, ("kv_capacity_tokens: 0.0", "above 0"), id="no KV"
        ),
        pytest.param(
            (*ENGINE, "kv_usage_ratio"), 50.0, ("kv_usage_ratio: 50.0", "0 to 1.05"), id="percent"
        ),
        pytest.param(
            (*TTFT, "cumulative_counts", 0), -1.0, ("cumulative_counts[0]: -1.0",), id="bucket"
        ),
        pytest.param(
            (*TTFT, "cumulative_counts", 0), 1e9, ("cumulative_counts[1]", "or more"), id="falling"
        ),
        pytest.param(
            ("gateway",), {"requests_total": -1.0}, ("gateway.requests_total: -1.0",), id="gateway"
        ),
        pytest.param(
            ("history",),
            {"start_seconds": 0.0, "bin_seconds": 0.0, "rates_per_second": [1.0]},
            ("history.bin_seconds: 0.0", "1 to 86400"),
            id="bins",
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
            ("limits", "tick_seconds"), -1.0, ("limits.tick_seconds: -1.0", "0.5 to 300"), id="tick"
        ),
        pytest.param(("limits", "max_replicas"), 0, ("limits.max_replicas: 0", "1 or"), id="most"),
        pytest.param(("limits", "max_step"), -1, ("limits.max_step: -1", "1 or"), id="step"),
        pytest.param(("time_seconds",), float("nan"), ("time_seconds: nan",), id="time"),
        pytest.param(("limit",), {}, ("limit: {}", "no such field"), id="misspelt"),
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


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        pytest.param("--tick-seconds", "0", ("--tick-seconds: 0.0", "0.5 to 300"), id="tick"),
        pytest.param("--tick-seconds", "inf", ("--tick-seconds: inf", "0.5 to 300"), id="never"),
        pytest.param("--tick-seconds", "nan", ("--tick-seconds: nan", "0.5 to 300"), id="nan"),
        pytest.param("--tick-seconds", "fast", ("--tick-seconds: 'fast'", "a number"), id="word"),
        pytest.param("--max-replicas", "0", ("--max-replicas: '0'", "1 or more"), id="most"),
        pytest.param("--max-step", "1.5", ("--max-step: '1.5'", "an integer"), id="step"),
    ],
)
def test_a_bad_flag_is_named_with_its_value_and_what_is_allowed(cli, flag, value, words):
    """Exit code 2 and one line."""
    called = cli("plan", "--observations", "-", flag, value)
    assert called.refuses(*words), called.err


def test_observations_without_header_need_a_manifest(cli, plain):
    """The message says which flag."""
    assert cli("plan", "--observations", plain).refuses("line 1: uid", "-f")


def test_an_empty_file_is_refused(cli, manifest):
    """Nothing to decide on is no success."""
    called = cli("plan", "-f", manifest, "--observations", "-", stdin="\n")
    assert called.refuses("observations", "at least one line")
