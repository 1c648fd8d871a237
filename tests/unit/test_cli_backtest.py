"""`servingslo backtest`: the same runs as table, JSON and page, and bad input by name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.unit.cli_backtests import OBJECTIVES, backtest_of, chat_trace
from tests.unit.cli_calls import MANIFEST

from servingslo.controller.recordings.recording import observation_line
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.fleets.fleet import FleetSpec, read_fleet
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths


@pytest.fixture
def trace(tmp_path):
    """Six minutes of chat on the small card, then seven times as much."""
    return chat_trace(tmp_path / "requests.csv", slow_count=360, fast_count=2400)


@pytest.fixture
def call(cli, trace, tmp_path):
    """A backtest of the trace on the small card."""
    return backtest_of(cli, trace, "l4-small", tmp_path)


def test_the_table_has_a_row_for_each_policy(call):
    """What was replayed, the objectives, and each policy with its marks."""
    called = call(*OBJECTIVES, "--policy", "servingslo", "--policy", "hpa-kv", "--policy", "static")

    assert called.exit_code == 0
    assert "2762 requests in 6m" in called.out
    assert "TTFT ≤ 1 s, TPOT ≤ 50 ms; the target is 99 %" in called.out
    rows = [line.split() for line in called.out.splitlines()]
    assert [row[1] for row in rows if row and row[0] in {"*", "~"}].count("static") == 1
    assert any("servingslo" in row for row in rows)
    assert any("hpa-kv" in row for row in rows)


def test_a_manifest_gives_objectives_and_bounds(call, tmp_path):
    """The largest count of the resource bounds every policy."""
    manifest = tmp_path / "slo.yaml"
    manifest.write_text(MANIFEST.replace("{max: 8}", "{max: 2}"))
    told = json.loads(call("-f", manifest, "--policy", "hpa-busy", "-o", "json").out)

    assert told["tpot_seconds"] == 0.05
    assert told["policies"][0]["replica_hours"]["mean"] <= 2 * 0.1 * 1.01


def test_a_second_call_takes_the_runs_that_are_kept(call, tmp_path):
    """Another seed is run, the first one is not."""
    first = json.loads(call(*OBJECTIVES, "--policy", "hpa-kv", "-o", "json").out)
    kept = next((tmp_path / "kept").glob("*.json"))
    outcome = json.loads(kept.read_text())
    outcome["score"]["replica_hours"] = 77.0
    kept.write_text(json.dumps(outcome))
    second = json.loads(call(*OBJECTIVES, "--policy", "hpa-kv", "--seeds", "2", "-o", "json").out)

    hours = [run["score"]["replica_hours"] for run in second["runs"]]
    assert hours[0] == 77.0
    assert hours[1] == pytest.approx(first["runs"][0]["score"]["replica_hours"], rel=0.5)


def test_a_step_against_the_cold_start_is_named_with_the_count_that_holds(cli, tmp_path):
    """The headline judges ours, and the floor that it names keeps the target when it is set."""
    rng = np.random.default_rng(1)
    slow, fast = rng.uniform(0.0, 360.0, 2_900), rng.uniform(360.0, 600.0, 9_600)
    times = np.sort(np.concatenate([slow, fast]))
    rows = (f"{at:.3f},{rng.integers(200, 1500)},{rng.integers(50, 400)}" for at in times)
    trace = tmp_path / "steps.csv"
    trace.write_text("arrival_seconds,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    call = backtest_of(cli, trace, "h100-8b", tmp_path)
    page = tmp_path / "report.html"
    called = call(*OBJECTIVES, "--policy", "servingslo", "--policy", "static", "--html", page)
    missed, where, remedy = called.out.split("\n\n")[2].splitlines()[:3]

    assert missed.startswith("servingslo missed the target: ")
    assert re.match(
        r"\d+ % of the misses are in minutes [56] to [78]: arrivals rose from 8\S*/s to \S+/s, "
        r"with 1 ready of \d ordered, and a new replica takes 1m30s to start\.$",
        where,
    ), where
    count = re.match(r"`replicas.min: (\d)` would have kept it: a fixed count of \1 has ", remedy)
    assert count, remedy
    assert f'<p class="head">{missed}</p>' in page.read_text()
    manifest = tmp_path / "slo.yaml"
    manifest.write_text(MANIFEST.replace("{max: 8}", f"{{min: {count[1]}, max: 8}}"))
    assert "servingslo kept the target: " in call("-f", manifest, "--policy", "servingslo").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param((), ("-f", "--objective"), id="no objectives"),
        pytest.param(("--objective", "ttft:1s"), ("--objective", "'ttft:1s'"), id="objective form"),
        pytest.param(
            ("--objective", "queueTime:p99:1s"), ("queueTime", "ttft"), id="not in a trace"
        ),
        pytest.param(
            (*OBJECTIVES, "--policy", "hpa"), ("--policy", "'hpa'", "hpa-kv"), id="policy"
        ),
        pytest.param(
            (*OBJECTIVES, "--policy", "hpa-kv:kv=1"), ("--policy", "'kv'", "kv_usage"), id="setting"
        ),
        pytest.param(
            (*OBJECTIVES, "--policy", "hpa-kv:kv_usage=0"), ("kv_usage", "> 0"), id="setting of 0"
        ),
        pytest.param((*OBJECTIVES, "--seeds", "0"), ("--seeds", "0", "1 to 100"), id="seeds"),
        pytest.param((*OBJECTIVES, "--scale", "0"), ("--scale", "0.0", "0.001"), id="scale"),
        pytest.param((*OBJECTIVES, "--processes", "0"), ("--processes", "0"), id="processes"),
        pytest.param(
            (*OBJECTIVES, "--html", "/no/where/r.html"), ("--html", "/no/where"), id="page"
        ),
        pytest.param(
            (*OBJECTIVES, "--fleet", "a100"), ("--fleet", "'a100'", "l4-small"), id="fleet"
        ),
    ],
)
def test_bad_input_is_named_before_anything_runs(call, tmp_path, arguments, words):
    """Exit code 2, one line, and nothing is kept."""
    called = call(*arguments)

    assert called.refuses(*words), called.err
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("engine: a100\n", ("engine", "'a100'", "h100-8b"), id="engine"),
        pytest.param("max_replica: 3\n", ("max_replica: 3", "no such field"), id="unknown"),
        pytest.param("max_replicas: 0\n", ("max_replicas", "0", "1 or more"), id="no replicas"),
        pytest.param(
            "cold_start: {mean_seconds: -1}\n", ("cold_start.mean_seconds", "-1"), id="cold start"
        ),
        pytest.param("scrape_lag_seconds: 15\n", ("scrape_lag_seconds", "15"), id="scrape lag"),
        pytest.param("cached_ratio: 1.5\n", ("cached_ratio", "1.5"), id="more than all cached"),
        pytest.param("price_per_hour: -4\n", ("price_per_hour", "-4"), id="price"),
        pytest.param("mean_seconds_to_failure: 0\n", ("mean_seconds_to_failure",), id="failures"),
        pytest.param("drain_seconds: .nan\n", ("drain_seconds", "nan"), id="no number"),
        pytest.param(
            "limits: {max_num_seqs: 0, max_num_batched_tokens: 9, kv_capacity_tokens: 99}\n",
            ("limits.max_num_seqs", "1 to 9"),
            id="no sequences",
        ),
        pytest.param(
            "law: {step_fixed_seconds: 0, step_per_sequence_seconds: 1, "
            "prefill_per_token_seconds: 0}\n",
            ("law.step_fixed_seconds", "> 0"),
            id="steps without time",
        ),
        pytest.param("- 3\n", ("fleet.yaml",), id="no mapping"),
    ],
)
def test_a_bad_fleet_is_named_with_its_field(cli, trace, tmp_path, text, words):
    """File, field, value and what is allowed."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(text)
    called = cli("backtest", "--trace", trace, *OBJECTIVES, "--fleet", fleet)

    assert called.refuses(*words), called.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("time,tokens\n1,2\n", ("header", "arrival_seconds"), id="header"),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens\n1,many,2\n",
            (":2: prompt_tokens", "'many'"),
            id="tokens",
        ),
        pytest.param(
            "arrival_seconds,prompt_tokens,output_tokens\n1,2,3\n",
            ("last arrival", "60 s or longer"),
            id="too short",
        ),
        # Seconds since the epoch in the column of arrivals: they would be played for ever.
        *(
            pytest.param(
                f"arrival_seconds,prompt_tokens,output_tokens\n0,1,2\n{seconds},1,2\n",
                ("last arrival", "31622400 s, a year"),
                id=seconds,
            )
            for seconds in ("1e300", "1700000000")
        ),
    ],
)
def test_a_bad_trace_is_named_with_its_line(cli, tmp_path, text, words):
    """File, line, column, value and what is allowed."""
    path = tmp_path / "bad.csv"
    path.write_text(text)
    called = cli("backtest", "--trace", path, *OBJECTIVES)

    assert called.refuses("bad.csv", *words), called.err


@pytest.fixture
def recording(tmp_path):
    """Five minutes of a fleet of two, as `servingslo record` writes it."""
    lines = []

    class Recorder:
        def decide(self, observation):
            lines.append(observation_line(observation))
            return Wanted()

    course = constant(4.0, 300.0)
    trace = generated(course, uniform_lengths((100, 900), (20, 200)), np.random.default_rng(2))
    simulate(FleetSpec(engine="l4-small", initial_replicas=2), trace, Recorder(), seed=1)
    path = tmp_path / "recording.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_recording_is_replayed(cli, recording, tmp_path):
    """Its requests are rebuilt, kept as CSV, and replayed as any others."""
    saved = tmp_path / "rebuilt.csv"
    common = (*OBJECTIVES, "--fleet", "l4-small", "--policy", "hpa-kv", "-o", "json", "--processes",
              "1", "--cache", tmp_path / "kept")  # fmt: skip
    told = json.loads(cli("backtest", "--recording", recording, "--save-trace", saved, *common).out)
    again = json.loads(cli("backtest", "--trace", saved, *common).out)

    assert told["request_count"] == pytest.approx(4.0 * 285, rel=0.1)
    assert told["policies"][0]["share_ratio"] == again["policies"][0]["share_ratio"]


def test_a_recording_has_its_own_past(cli, recording, tmp_path):
    """What the operator was told at its first tick, up to the first sample."""
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    for line in lines:
        line["time_seconds"] += 9000.0
    lines[1]["history"] = {
        "start_seconds": 0.0, "bin_seconds": 300.0, "rates_per_second": [1.0] * 40, "detail": "",
    }  # fmt: skip
    recording.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = json.loads(
        cli(
            "backtest", "--recording", recording, *OBJECTIVES, "--fleet", "l4-small", "--policy",
            "servingslo", "-o", "json", "--processes", "1", "--cache", tmp_path / "kept",
        ).out
    )  # fmt: skip

    assert told["past_seconds"] == 9000.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--recording", "no.jsonl"), ("--recording", "no.jsonl"), id="no recording"),
        pytest.param(("--prometheus", "http://p"), ("--namespace is missing",), id="no namespace"),
        pytest.param(
            ("--prometheus", "http://p", "--namespace", "a"), ("--target", "KIND/NAME"), id="target"
        ),
        pytest.param(
            ("--trace", "a.csv", "--recording", "b"), ("--trace", "exactly one"), id="two sources"
        ),
    ],
)  # fmt: skip
def test_a_source_that_says_too_little_is_named(cli, arguments, words):
    """Before a cluster is asked."""
    called = cli("backtest", *arguments, *OBJECTIVES)
    assert called.refuses(*words), called.err


def test_the_fleet_in_the_how_to_is_one(tmp_path):
    """What the page tells users to write is read, and says what its comments say."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "backtest.md"
    block = re.search(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL).group(1)
    path = tmp_path / "fleet.yaml"
    path.write_text(block)
    fleet = read_fleet(path)

    assert fleet.engine_law == engine_kind("h100-8b").law
    assert fleet.engine_limits == engine_kind("h100-8b").limits
    assert fleet.dollars_per_hour == 4.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--html", "{folder}"), ("--html", "not a folder"), id="html-folder"),
        pytest.param(("--html", "/proc/x.html"), ("--html", "written"), id="html-unwritable"),
        pytest.param(("--save-history", "{folder}"), ("--save-history", "folder"), id="history"),
        pytest.param(("--save-trace", "x.csv"), ("--save-trace", "not with --trace"), id="save"),
        pytest.param(("--window", "6h"), ("--window", "only with --prometheus"), id="window"),
        pytest.param(("--step", "15s"), ("--step", "only with --prometheus"), id="step"),
        pytest.param(("--policy", "nope"), ("error: --policy: 'nope'",), id="policy-told-once"),
        pytest.param(
            ("--policy", "hpa-kv:kv_usage=0.4,kv_usage=0.5"), ("kv_usage=0.5", "once"),
            id="setting-twice",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_told_before_anything_runs(cli, trace, tmp_path, arguments, words):
    """Outputs that cannot be written, and flags that would have no effect; nothing is left."""
    folder = tmp_path / "folder"
    folder.mkdir()
    typed = [one.format(folder=folder) for one in arguments]
    kept = tmp_path / "kept"
    called = cli("backtest", "--trace", trace, *OBJECTIVES, "--cache", kept, *typed)
    assert called.refuses(*words), called.err
    assert not kept.exists()
    assert not list(folder.iterdir())


def test_a_fleet_of_bytes_and_one_of_bad_yaml_are_told_in_plain_words(cli, trace, tmp_path):
    """Neither Python's codec nor its name of a string."""
    for content, word in ((b"\xff\xfe\x00", "UTF-8"), (b"a: [1", "line 1")):
        path = tmp_path / "fleet.yaml"
        path.write_bytes(content)
        called = cli("backtest", "--trace", trace, *OBJECTIVES, "--fleet", path)
        assert called.refuses("--fleet", word), called.err
        assert "codec" not in called.err
        assert "unicode" not in called.err


def test_a_trace_of_which_nothing_is_left_is_refused(cli, tmp_path):
    """All of none were in SLO."""
    rows = "".join(f"{second},100,10\n" for second in range(40, 70))
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_seconds,prompt_tokens,output_tokens\n{rows}")
    called = cli("backtest", "--trace", path, *OBJECTIVES, "--scale", "0.3")
    assert called.refuses("--scale: 0.3", "10 of the 30 requests"), called.err


def test_a_key_that_is_there_twice_is_refused(cli, trace, tmp_path):
    """The last one won without a word, in fleets and in manifests."""
    path = tmp_path / "twice.yaml"
    path.write_text("engine: h100-8b\nengine: l4-small\n")
    called = cli("backtest", "--trace", trace, *OBJECTIVES, "--fleet", path)
    assert called.refuses("--fleet", "engine is there twice", "line 2"), called.err
    path.write_text(MANIFEST.replace("  replicas: {max: 8}", "  replicas: {max: 8, max: 9}"))
    called = cli("backtest", "--trace", trace, "-f", path)
    assert called.refuses("twice.yaml", "max is there twice"), called.err
