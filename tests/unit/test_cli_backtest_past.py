"""`servingslo backtest` with a past: files of earlier requests, and warm-up days."""

import json

import numpy as np
import pytest
from tests.unit.cli_backtests import OBJECTIVES

from servingslo_lab.cli.backtesting.pasts import read_past, write_past
from servingslo_lab.sim.past import Past

DAY, NINE, LEAD = 86400.0, 9 * 3600.0, 600.0
BEGIN = 4 * DAY + NINE - LEAD
SLOW_FLEET = """\
law: {step_fixed_seconds: 0.02, step_per_sequence_seconds: 0.02, prefill_per_token_seconds: 0.00001}
limits: {max_num_seqs: 64, max_num_batched_tokens: 2048, kv_capacity_tokens: 60000}
"""


def offices(begin: float, end: float) -> np.ndarray:
    """Arrivals of days on which much comes from nine to ten, and little at other times."""
    rng = np.random.default_rng(3)
    times = np.arange(begin, end, 0.25)
    busy = (times % DAY >= NINE) & (times % DAY < NINE + 3600)
    return times[rng.random(len(times)) < 0.25 * np.where(busy, 1.5, 0.1)]


@pytest.fixture
def written(tmp_path):
    """A CSV of these arrivals, with time stamps of 2024 or from its own second 0."""

    def write(name, arrivals, *, dated):
        path = tmp_path / name
        first, *names = (
            ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
            if dated
            else ("arrival_seconds", "prompt_tokens", "output_tokens")
        )
        epoch = np.datetime64("2024-01-01T00:00:00", "ms")
        times = [str(epoch + np.timedelta64(round(1000 * at), "ms")) for at in arrivals]
        times = times if dated else [f"{at - arrivals[0]:.2f}" for at in arrivals]
        rows = (f"{at},100,100" for at in times)
        path.write_text(f"{first},{','.join(names)}\n" + "\n".join(rows) + "\n")
        return path

    return write


@pytest.fixture
def morning(cli, tmp_path):
    """What a call tells, and the largest rate that the planner planned for before nine."""
    fleet = tmp_path / "slow.yaml"
    fleet.write_text(SLOW_FLEET)

    def called(*arguments):
        kept = tmp_path / f"kept-{len(list(tmp_path.iterdir()))}"
        done = cli(
            "backtest", *arguments, "--objective", "tpot:p99:100ms", "--fleet", fleet, "--policy",
            "servingslo", "-o", "json", "--processes", "1", "--cache", kept,
        )  # fmt: skip
        (outcome,) = (json.loads(path.read_text()) for path in kept.glob("*.json"))
        planned = [
            line["planned_rate_per_second"] or 0.0
            for line in outcome["timeline"]["decisions"]
            if line["time_seconds"] < LEAD
        ]
        return json.loads(done.out), max(planned)

    return called


@pytest.mark.parametrize("dated", [pytest.param(True, id="stamps"), pytest.param(False, id="own")])
def test_a_history_is_told_to_the_planner(morning, written, dated):
    """Before nine it plans for what comes at nine, because of the mornings before."""
    before = written("before.csv", offices(0.0, BEGIN), dated=dated)
    trace = written("today.csv", offices(BEGIN, BEGIN + LEAD), dated=dated)
    told, planned = morning("--trace", trace, "--history", before)
    untold, planned_without = morning("--trace", trace)

    assert told["past_seconds"] == pytest.approx(BEGIN, abs=600)
    assert untold["past_seconds"] == 0.0
    assert planned_without < 0.4
    assert planned > 0.7


def test_a_warm_up_is_history_and_is_not_scored(morning, written):
    """The days before are told and left out, as two files would be."""
    arrivals = offices(0.0, BEGIN + LEAD)
    whole = written("whole.csv", np.append(0.0, arrivals), dated=True)
    told, planned = morning("--trace", whole, "--warm-up", f"{BEGIN:.0f}s")

    assert told["past_seconds"] == BEGIN
    assert told["request_count"] == np.sum(arrivals >= BEGIN)
    assert told["duration_seconds"] == pytest.approx(LEAD, abs=60)
    assert planned > 0.7


@pytest.fixture
def call(cli, written, tmp_path):
    """A backtest of six minutes, with whatever comes before them."""
    trace = written("requests.csv", np.arange(0.0, 360.0, 2.0), dated=False)

    def called(*arguments):
        source = () if "--trace" in arguments else ("--trace", trace)
        return cli(
            "backtest", *source, "--fleet", "l4-small", "--processes", "1",
            "--cache", tmp_path / "kept", *arguments, *OBJECTIVES,
        )  # fmt: skip

    return called


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--warm-up", "week"), ("--warm-up", "'week'"), id="no duration"),
        pytest.param(("--warm-up", "6m"), ("--warm-up", "'6m'", "up to 4m58s"), id="nothing left"),
        pytest.param(("--history", "none.csv"), ("none.csv", "readable"), id="no file"),
        pytest.param(
            ("--history", "{short}"),
            ("--history", "short.csv (1m59s before it)", "10m"),
            id="short",
        ),
        pytest.param(
            ("--history", "{short}", "--no-history"), ("--history", "--no-history"), id="both"
        ),
        pytest.param(
            ("--save-history", "p.csv", "--no-history"), ("--save-history",), id="none to keep"
        ),
        pytest.param(
            ("--save-history", "p.csv"), ("--save-history", "none is known"), id="none is known"
        ),
    ],
)
def test_a_past_that_cannot_be_told_is_named(call, written, tmp_path, arguments, words):
    """Exit code 2, one line, and nothing is kept."""
    short = written("short.csv", np.arange(0.0, 120.0), dated=False)
    called = call(*(text.format(short=short) for text in arguments))

    assert called.refuses(*words), called.err
    assert not (tmp_path / "kept").exists()


def test_the_earlier_half_of_a_long_trace_is_told_and_not_played(call, written):
    """Ours is shown with it and cold, all play the later half; a short trace says why not."""
    trace = written("long.csv", np.arange(0.0, 7220.0, 20.0), dated=False)
    told = json.loads(call("--trace", trace, "-o", "json").out)
    text = call("--trace", trace).out
    short = call("--policy", "servingslo").out

    assert [one["policy"] for one in told["policies"]][:3] == [
        "servingslo",
        "servingslo+cold",
        "simple",
    ]
    assert told["earlier_seconds"] == 3600.0
    assert told["request_count"] == 181
    assert told["past_seconds"] == 3600.0
    assert "The first 1h of the trace are not played" in text
    assert "past: servingslo is told none, as the trace is shorter than 2h; --past FILE" in short


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param("-600,1\n-300,x\n", (":3: requests_per_second", "'x'"), id="no rate"),
        pytest.param("-600,-1\n", (":2: requests_per_second", "≥ 0"), id="a negative rate"),
        pytest.param("-900,1\n-300,1\n", (":3: start_seconds", "-600"), id="a hole"),
        pytest.param("-900,1\n-600,1\n", ("last start_seconds", "-600"), id="ends too early"),
        pytest.param("0,1\n", ("last start_seconds",), id="in the trace"),
        pytest.param("", ("last start_seconds",), id="nothing"),
        pytest.param("-300\n", (":2", "start_seconds,requests_per_second"), id="columns"),
    ],
)
def test_bad_rates_are_named_with_their_line(call, tmp_path, rows, words):
    """File, line, column, value and what is allowed."""
    path = tmp_path / "past.csv"
    path.write_text("start_seconds,requests_per_second\n" + rows)
    called = call("--history", path)

    assert called.refuses("past.csv", *words), called.err


def test_a_past_is_written_and_read_whole(tmp_path):
    """Unknown rates stay unknown, and bins lie as they did."""
    path = tmp_path / "past.csv"
    past = Past(begin_seconds=1_000_100.0, rates_per_second=(1.25, None, 0.0))
    write_past(past, path)

    assert read_past(path) == Past(begin_seconds=200.0, rates_per_second=past.rates_per_second)
