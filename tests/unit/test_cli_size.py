"""`servingslo size`: bad input is named, and the answer is that of the models."""

import json
import math

import pytest
from tests.unit.cli_calls import with_flag

from servingslo.models.fleet.latency import Routing, latency_model
from servingslo.models.known_engines import known_engine
from servingslo.policy.replicas.sizing import KV_PERCENTILE
from servingslo_lab.cli.sizing.inputs import spread_lengths
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

GOOD = [
    "size",
    "--fleet", "l4-small",
    "--arrival-rate", "12",
    "--prompt-tokens", "1155",
    "--output-tokens", "211",
    "--objective", "ttft:p99:1s",
    "--utilization-target", "0.85",
]  # fmt: skip
STATED = [
    "size",
    "--service-law", "a=15ms,b=0.15ms,c=0.08ms,d=0.4us",
    "--max-num-seqs", "64",
    "--max-num-batched-tokens", "2048",
    "--kv-tokens", "60000",
    "--arrival-rate", "12",
    "--prompt-tokens", "1155",
    "--output-tokens", "211",
    "--objective", "ttft:p99:1s",
]  # fmt: skip


def answer_of(called):
    """The answer in JSON output."""
    return json.loads(called.out)["answer"]


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        pytest.param(
            "--objective", None, ("--objective is missing", "at least one"), id="no objective"
        ),
        pytest.param(
            "--objective", "ttft", ("--objective", "'ttft'", "METRIC:pPERCENTILE"), id="form"
        ),
        pytest.param(
            "--objective", "itl:p99:1s", ("metric", "'itl'", "ttft, tpot"), id="unknown metric"
        ),
        pytest.param(
            "--objective", "ttft:p30:1s", ("percentile", "'p30'", "p50 to p99.9"), id="percentile"
        ),
        pytest.param(
            "--objective", "ttft:p99:2h", ("threshold", "'2h'", "1ms to 1h"), id="threshold"
        ),
        pytest.param("--fleet", "tpu", ("--fleet: 'tpu'", "h100-8b, l4-small"), id="fleet"),
        pytest.param("--fleet", None, ("--service-law", "--fleet"), id="no engine"),
        pytest.param("--arrival-rate", "0", ("--arrival-rate", "0.0", "above 0"), id="rate 0"),
        pytest.param(
            "--service-law", "a=1ms,b=-1ms,c=1ms", ("b: '-1ms'", "0 or more"), id="negative"
        ),
        pytest.param("--arrival-rate", "abc", ("--arrival-rate: 'abc'", "a number"), id="word"),
        pytest.param("--routing", "least", ("--routing: 'least'", "'pooled', 'random'"), id="way"),
        pytest.param("--arrival-rate", None, ("--arrival-rate", "--trace"), id="no rate"),
        pytest.param(
            "--burst-length", "long", ("--burst-length", "'long'", "duration"), id="burst length"
        ),
        pytest.param(
            "--burst-length", "2s", ("--burst-length: '2s'", "--arrival-dispersion"), id="no bursts"
        ),
        pytest.param(
            "--utilization-target", "1", ("--utilization-target", "1.0", "0.1 to 0.95"), id="target"
        ),
        pytest.param("--kv-tokens", "100", ("--kv-tokens", "at least", "request"), id="tiny cache"),
        pytest.param("--max-num-seqs", "65537", ("--max-num-seqs", "1 to 65536"), id="slots"),
        pytest.param("--max-replicas", "0", ("--max-replicas", "--min-replicas"), id="max"),
        pytest.param("--gpu-hourly", "-1", ("--gpu-hourly", "-1.0", "0 to 10000"), id="price"),
        pytest.param(
            "--max-num-batched-tokens",
            "9999999999",
            ("--max-num-batched-tokens: 9999999999", "1 to 1000000000"),
            id="budget",
        ),
        pytest.param("--cold-start", "soon", ("--cold-start", "'soon'", "duration"), id="start"),
        pytest.param("--trace", "none.csv", ("--prompt-tokens", "not with --trace"), id="both"),
        pytest.param("--service-law", "a=1", ("--service-law: a", "'1'", "unit"), id="no unit"),
        pytest.param("--service-law", "a=1ms", ("--service-law: b", "a=…,b=…"), id="law short"),
        pytest.param(
            "--service-law", "a=1ms,a=2ms,b=1us,c=1us", ("--service-law: a", "once"), id="law twice"
        ),
        pytest.param(
            "--service-law", "a=0ms,b=1us,c=1us", ("--service-law: a", "above 0"), id="law zero"
        ),
    ],
)
def test_bad_input_is_named_with_its_value_and_what_is_allowed(cli, flag, value, words):
    """Exit code 2 and one line."""
    called = cli(*with_flag(GOOD, flag, value))
    assert called.refuses(*words), called.err


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--max-num-batched-tokens", "--kv-tokens"])
def test_an_engine_without_a_preset_needs_all_its_limits(cli, flag):
    """The missing flag is named."""
    called = cli(*with_flag(STATED, flag, None))
    assert called.refuses(flag, "required without --fleet"), called.err


def test_a_bad_trace_is_named_by_file_and_line(cli, tmp_path):
    """The message leads to the cell."""
    trace = tmp_path / "bad.csv"
    trace.write_text("arrival_seconds,prompt_tokens,output_tokens\n1,2,3\n4,many,6\n")
    arguments = with_flag(with_flag(GOOD, "--prompt-tokens", None), "--output-tokens", None)
    called = cli(*arguments, "--trace", trace)
    assert called.refuses(f"{trace}:3", "prompt_tokens", "'many'"), called.err


def test_the_preset_and_the_same_engine_stated_give_one_answer(cli):
    """A preset is nothing but numbers."""
    by_name = answer_of(cli(*GOOD, "--gpu-hourly", "1", "-o", "json"))
    stated = answer_of(cli(*STATED, "--gpu-hourly", "1", "-o", "json"))
    assert by_name == stated


def test_the_answer_is_the_least_count_that_keeps_every_constraint(cli):
    """Judged by the models directly: this count keeps all, one fewer misses one."""
    arguments = [*GOOD, "--objective", "tpot:p95:50ms"]
    answer = answer_of(cli(*arguments, "-o", "json"))
    kind = engine_kind("l4-small")
    model = latency_model(_workload(), kind.law, kind.limits)

    def keeps(count):
        prediction = model.predict(12.0, count, Routing.POOLED)
        return (
            prediction.stable
            and prediction.utilization <= 0.85
            and prediction.kv_usage_quantile(KV_PERCENTILE) <= 0.9
            and prediction.ttft_seconds(99) <= 1.0
            and prediction.tpot_seconds(95) <= 0.05
        )

    assert answer["feasible"]
    assert keeps(answer["replicas"])
    assert not keeps(answer["replicas"] - 1)
    shown = next(c for c in answer["counts"] if c["replicas"] == answer["replicas"])
    prediction = model.predict(12.0, answer["replicas"], Routing.POOLED)
    assert shown["objectives"][0]["predicted_seconds"] == pytest.approx(prediction.ttft_seconds(99))
    assert [c["meets"] for c in answer["counts"]] == [False, True, True]


def test_the_greatest_rate_is_carried_and_a_little_more_is_not(cli):
    """The rate that this count is said to carry needs exactly this count."""
    answer = answer_of(cli(*GOOD, "-o", "json"))
    rate = answer["greatest_rate_per_second"]
    at = with_flag(GOOD, "--arrival-rate", str(rate * 0.999))
    above = with_flag(GOOD, "--arrival-rate", str(rate * 1.01))
    assert answer_of(cli(*at, "-o", "json"))["replicas"] == answer["replicas"]
    assert answer_of(cli(*above, "-o", "json"))["replicas"] > answer["replicas"]


def test_an_infeasible_objective_says_what_would_be_feasible(cli):
    """Exit code 1; the least feasible value, asked for, is feasible; a little less is not."""
    called = cli(*with_flag(GOOD, "--objective", "ttft:p99:50ms"), "-o", "json")
    answer = answer_of(called)
    need = next(need for need in answer["needs"] if need["constraint"] == "ttft")
    assert (called.exit_code, answer["feasible"], need["replicas"]) == (1, False, None)
    least_ms = need["least_feasible_seconds"] * 1000
    more = f"ttft:p99:{math.ceil(least_ms * 1.02)}ms"
    less = f"ttft:p99:{math.floor(least_ms * 0.99)}ms"
    told = cli(*with_flag(GOOD, "--objective", "ttft:p99:50ms")).out
    assert "requests/s within the targets of utilization and KV cache" in told
    assert cli(*with_flag(GOOD, "--objective", more)).exit_code == 0
    assert cli(*with_flag(GOOD, "--objective", less)).exit_code == 1


@pytest.mark.parametrize(
    ("threshold", "meets", "told"),
    [
        pytest.param("800ms", True, "with the best, {} replicas meet every objective", id="best"),
        pytest.param("20ms", False, ", and do not meet every objective either", id="none"),
    ],
)
def test_batch_limits_are_told_by_what_they_keep_where_the_stated_ones_miss_it(
    cli, threshold, meets, told
):
    """A prompt alone takes too many steps of 64 tokens; what no count reaches saves nothing."""
    flags = (
        *with_flag(GOOD, "--objective", f"ttft:p99:{threshold}"),
        *("--max-num-batched-tokens", "64", "--max-num-seqs", "32"),
    )
    called = cli(*flags)
    answer = answer_of(cli(*flags, "-o", "json"))
    batching = answer["batching"]
    assert called.exit_code == 1
    assert batching["best_meets"] is meets
    saved = answer["replicas"] - batching["best_replicas"] if meets else 0
    assert batching["replicas_saved"] == saved
    assert told.format(batching["best_replicas"]) in called.out


def test_tokens_that_are_not_served_do_not_make_the_others_cheap(cli):
    """A fleet that is offered ten times what it serves: a token costs what it does at full load."""
    flags = ("--gpu-hourly", "1", "--max-replicas", "2", "-o", "json")
    costs = [
        answer_of(cli(*with_flag(GOOD, "--arrival-rate", rate), *flags))["cost"]
        for rate in ("30", "300")
    ]
    assert costs[0] == costs[1]


def test_tolerated_failures_and_price_are_counted(cli):
    """Two more replicas, each at its price."""
    plain = answer_of(cli(*GOOD, "-o", "json"))
    safe = answer_of(
        cli(*GOOD, "--tolerated-failures", "2", "--gpu-hourly", "1.5", "--gpus-per-replica", "2",
            "-o", "json")
    )  # fmt: skip
    assert safe["replicas"] == plain["replicas"] + 2
    assert safe["cost"]["per_hour"] == pytest.approx(3.0 * safe["replicas"])
    # $/h over (12 requests/s · 211 tokens · 3600 s) millions of output tokens.
    assert safe["cost"]["per_million_output_tokens"] == pytest.approx(
        safe["cost"]["per_hour"] / (12 * 211 * 3600 / 1e6), rel=0.01
    )


def test_the_sweep_agrees_with_sizing_at_each_price(cli):
    """A swept threshold gives the count that sizing with this threshold gives."""
    result = json.loads(cli(*GOOD, "--sweep", "-o", "json").out)
    prices = [p for p in result["prices"] if p["what"] == "ttft p99"]
    assert [p["instead"] for p in prices] == ["0.5s", "0.6s", "0.75s", "1.25s", "1.5s", "2s"]
    for price in prices:
        asked = with_flag(GOOD, "--objective", f"ttft:p99:{price['instead']}")
        assert answer_of(cli(*asked, "-o", "json"))["replicas"] == price["replicas"]
    counts = [p["replicas"] for p in prices]
    assert counts == sorted(counts, reverse=True)


def test_the_sweep_of_an_objective_out_of_reach_begins_at_what_is_feasible(cli):
    """Fractions of a threshold that no count meets would all say so."""
    asked = with_flag(GOOD, "--objective", "ttft:p99:20ms")
    result = json.loads(cli(*asked, "--sweep", "-o", "json").out)
    need = next(n for n in result["answer"]["needs"] if n["constraint"] == "ttft")
    tried = [p for p in result["prices"] if p["what"] == "ttft p99"]
    assert [p["stated"] for p in tried] == ["0.02s"] * 4
    counts = [p["replicas"] for p in tried]
    assert None not in counts
    assert counts == sorted(counts, reverse=True)
    least = float(tried[0]["instead"].removesuffix("s"))
    assert need["least_feasible_seconds"] <= least < 1.05 * need["least_feasible_seconds"]


def test_cold_start_has_a_price_only_where_the_rate_grows(cli):
    """A longer start must be sized for the rate when it is over."""
    still = json.loads(cli(*GOOD, "--sweep", "-o", "json").out)["prices"]
    growing = json.loads(cli(*GOOD, "--growth-per-minute", "2", "--sweep", "-o", "json").out)
    assert not [p for p in still if p["what"] == "cold start"]
    assert "  cold start: no change while demand does not grow" in cli(*GOOD, "--sweep").out
    counts = [p["replicas"] for p in growing["prices"] if p["what"] == "cold start"]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    # 2 requests/s a minute over 2m of start, 15 s of scrape and 15 s of tick.
    assert growing["answer"]["rate_per_second"] == pytest.approx(12 + 2 * 150 / 60)


def _workload():
    from servingslo.models.workload import Workload  # noqa: PLC0415
    from servingslo_lab.cli.size import OUTPUT_VARIATION, PROMPT_VARIATION  # noqa: PLC0415

    return Workload(
        arrival_rate_per_second=12.0,
        prompt=spread_lengths(1155.0, PROMPT_VARIATION),
        output=spread_lengths(211.0, OUTPUT_VARIATION),
    )


@pytest.mark.parametrize("flag", ["--prompt-variation", "--output-variation"])
def test_a_variation_beside_a_trace_is_refused(cli, tmp_path, flag):
    """It had no effect: the trace has the lengths."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,100,10\n60,100,10\n")
    asked = ("size", "--fleet", "h100-8b", "--trace", trace, "--objective", "ttft:p99:1s")
    assert cli(*asked).exit_code == 0
    assert cli(*asked, flag, "2").refuses(flag, "2.0", "not with --trace")


def test_a_growth_beyond_every_rate_is_refused(cli):
    """Of a million hours at one request a second and minute more; it was sized in millions."""
    called = cli(
        "size", "--fleet", "h100-8b", "--arrival-rate", "1", "--prompt-tokens", "100",
        "--output-tokens", "10", "--objective", "ttft:p99:1s", "--growth-per-minute", "1",
        "--cold-start", "1000000h",
    )  # fmt: skip
    assert called.refuses("--growth-per-minute", "1000000h (--cold-start)", "1e+06"), called.err


def test_card_and_model_size_without_a_measurement(cli):
    """By the law of their table; it says how far such laws were away where they were left out."""
    asked = with_flag(with_flag(GOOD, "--fleet", None), "--arrival-rate", "41")
    called = cli(*asked, "--card", "NVIDIA-H100-80GB-HBM3", "--model", "llama-3.1-8b")
    assert "replicas of llama-3.1-8b on h100 for 41 requests/s" in called.out
    assert "Law: measured kernels" in called.out
    known = known_engine("h100", "llama-3.1-8b")
    served = 100 * known.left_out["card"][2]
    assert "rooflines fitted without a card" in called.out
    assert f"what a replica serves by {served:.1f} %" in called.out
    sized = json.loads(cli(*asked, "--card", "h100", "--model", "my-13b", "-o", "json").out)[
        "known"
    ]
    assert sized["error_ratios"] is None
    assert sized["kv_tokens"] == pytest.approx(known_engine("h100", "my-13b").kv_tokens)
