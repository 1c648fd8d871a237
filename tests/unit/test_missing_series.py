"""Series that are not there: named by name, and never taken for a lack of requests."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine_pages import sglang_page, triton_page, vllm_page
from tests.unit.page_plans import decisions

from servingslo.adapters.kubernetes.pods.config_maps import StartedWith
from servingslo.adapters.kubernetes.pods.launches import read_launch
from servingslo.adapters.kubernetes.pods.records import ContainerRecord
from servingslo.explain.conditions.derived import conditions
from servingslo.explain.text import text
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.launch.settings import metrics_switched_off
from servingslo.runtimes.shell.words import Environment

TICKS = 6
quick = settings(max_examples=6, deadline=None)
_RATES = st.floats(0.5, 20.0)
_BUCKETS = {
    LatencyMetric.TTFT: "vllm:time_to_first_token_seconds_bucket",
    LatencyMetric.TPOT: "vllm:request_time_per_output_token_seconds_bucket",
    LatencyMetric.LATENCY: "vllm:e2e_request_latency_seconds_bucket",
    LatencyMetric.QUEUE_TIME: "vllm:request_queue_time_seconds_bucket",
}


def _conditions(
    page_of, *, pods=("chat-0", "chat-1"), metric=LatencyMetric.TTFT, ticks=TICKS, **of_pods
):
    """Each tick's conditions of a workload whose pods export these pages, and the decisions."""

    def served(seconds):
        return [
            ({"pod": pod, "instance": f"10.0.0.{place}:8000", "job": "engines"}, page)
            for place, pod in enumerate(pods)
            if (page := page_of(pod, seconds)) is not None
        ]

    objective = Objective(metric=metric, percentile=95.0, threshold_seconds=1.0)
    of_pod = dict.fromkeys(pods, of_pods)
    every = decisions(served, len(pods), (objective,), ticks=ticks, of_pod=of_pod)
    told = (conditions(one, generation=1, now_seconds=one.time_seconds) for one in every)
    return [
        ({str(c.type): c for c in each}, decision)
        for each, decision in zip(told, every, strict=True)
    ]


def _without(page: str, pattern: str) -> str:
    return "".join(f"{line}\n" for line in page.splitlines() if not re.match(pattern, line))


@quick
@given(rate=_RATES, metric=st.sampled_from(list(_BUCKETS)), every=st.booleans())
def test_dropped_buckets_are_named_and_are_no_lack_of_requests(rate, metric, every) -> None:
    """A relabelling drops those of one histogram, or of all, to save series."""
    own = _BUCKETS[metric]
    pattern = r"[^{]*_bucket" if every else re.escape(own)
    told, decision = _conditions(
        lambda _pod, seconds: _without(vllm_page(rate * seconds), pattern), metric=metric
    )[-1]
    slo = told["SLOMet"]
    assert (str(slo.status), str(slo.reason)) == ("Unknown", "MetricsMissing")
    assert own in slo.message
    assert "no requests" not in slo.message
    fresh = told["MetricsFresh"]
    assert "_bucket" in fresh.message
    assert every or own in fresh.message
    assert decision.demand.arrival_rate_per_second == pytest.approx(2 * rate, rel=0.05)
    assert own in text(decision)


@quick
@given(rate=_RATES, metric=st.sampled_from(list(_BUCKETS)), every=st.booleans())
def test_a_dropped_sum_is_named_and_not_the_buckets(rate, metric, every) -> None:
    """A relabelling that keeps buckets and drops sums is told as what it did."""
    own = _BUCKETS[metric].replace("_bucket", "_sum")
    pattern = r"[^{]*_sum" if every else re.escape(own)
    told, decision = _conditions(
        lambda _pod, seconds: _without(vllm_page(rate * seconds), pattern), metric=metric
    )[-1]
    assert str(told["SLOMet"].reason) == "MetricsMissing"
    for words in (told["SLOMet"].message, text(decision)):
        assert own in words
        assert "_bucket" not in words
    assert "_sum" in told["MetricsFresh"].message
    assert "_bucket" not in told["MetricsFresh"].message


@quick
@given(
    rate=_RATES,
    metric=st.sampled_from(list(_BUCKETS)),
    ends=st.booleans(),
    lost=st.sampled_from(["", "_(sum|count)"]),
)
def test_a_family_that_is_dropped_is_named(rate, metric, ends, lost) -> None:
    """Its buckets with it, also where what counts ended requests, and times the page, goes too."""
    own = _BUCKETS[metric].removesuffix("_bucket")
    pattern = rf"{own}{lost or '(_bucket|_sum|_count)'}" + (
        "|vllm:request_success_total" if ends else ""
    )
    told, _ = _conditions(
        lambda _pod, seconds: _without(vllm_page(rate * seconds), pattern), metric=metric
    )[-1]
    slo = told["SLOMet"]
    assert "no requests" not in slo.message
    if not lost:
        assert (str(slo.status), str(slo.reason)) == ("Unknown", "MetricsMissing")
        assert own in slo.message


@quick
@given(rate=_RATES, metric=st.sampled_from(list(_BUCKETS)))
def test_a_whole_page_misses_nothing(rate, metric) -> None:
    """What was read right is told as ever."""
    for told, decision in _conditions(lambda _p, s: vllm_page(rate * s), metric=metric)[2:]:
        assert told["MetricsFresh"].message == "every pod has fresh metrics"
        assert told["SLOMet"].reason not in {"MetricsMissing", "NotObserved"}
        assert decision.metrics_missing == ""


@quick
@given(
    runtime=st.sampled_from(["vllm", "sglang"]), rate=_RATES, keep=st.sampled_from(["none", "sums"])
)
def test_gauges_alone_are_told_with_the_counters_that_are_not_there(runtime, rate, keep) -> None:
    """Nothing counts what is served, though requests run."""
    page = {"vllm": vllm_page, "sglang": lambda requests: sglang_page(requests, 1)}[runtime]
    gauges = r"(vllm:(num_|kv_)|sglang:(num_running|num_queue|token_usage|max_total))"
    wanted = gauges if keep == "none" else rf"({gauges}|.*_sum)"
    told, _ = _conditions(lambda _pod, s: _without(page(rate * s), f"(?!{wanted})"))[-1]
    fresh = told["MetricsFresh"]
    assert (str(fresh.status), str(fresh.reason)) == ("False", "MetricsMissing")
    assert (str(told["Ready"].status), str(told["Ready"].reason)) == ("False", "MetricsMissing")
    counter = (
        "vllm:generation_tokens_total" if runtime == "vllm" else "sglang:realtime_tokens_total"
    )
    assert counter in fresh.message
    assert str(told["SLOMet"].reason) != "NoTraffic"


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_"])
def test_changed_names_are_told_with_the_value_that_states_them(prefix) -> None:
    """Stores and proxies that know no colon in a name write another character."""
    told, _ = _conditions(lambda _pod, s: vllm_page(2.0 * s).replace("vllm:", prefix))[-1]
    assert "the chart's value runtimes" in told["MetricsFresh"].message


def test_what_counts_requests_is_named_where_it_is_not_there() -> None:
    """Rows are counted, and latencies observed: requests are unknown, and not none."""
    named = "nv_inference_request_success"
    told, decision = _conditions(
        lambda _pod, s: _without(triton_page(4.0 * s), named), metric=LatencyMetric.LATENCY
    )[-1]
    assert str(told["MetricsFresh"].reason) == "MetricsMissing"
    assert named in told["MetricsFresh"].message
    assert str(told["SLOMet"].reason) == "MetricsMissing"
    assert decision.reason is Reason.METRICS_MISSING


@quick
@given(rate=_RATES, pods=st.integers(1, 3))
def test_triton_without_its_gauge_names_it(rate, pods) -> None:
    """Pages of older servers have counters alone; the scrape and its labels are right."""
    told, _ = _conditions(
        lambda _pod, seconds: triton_page(rate * seconds, pending=False),
        pods=tuple(f"chat-{n}" for n in range(pods)),
        metric=LatencyMetric.LATENCY,
    )[-1]
    for condition in (told["MetricsFresh"], told["Ready"]):
        assert (str(condition.status), str(condition.reason)) == ("False", "MetricsMissing")
        assert "nv_inference_pending_request_count is not exported" in condition.message
        assert "check the labels" not in condition.message


def test_a_model_without_summaries_is_no_model_without_requests() -> None:
    """Triton exports percentiles where it is told to; means alone give no share."""
    told, _ = _conditions(
        lambda _pod, seconds: triton_page(4.0 * seconds), metric=LatencyMetric.LATENCY
    )[-1]
    assert str(told["SLOMet"].reason) == "MetricsMissing"
    assert "nv_inference_request_summary_us" in told["SLOMet"].message
    assert told["MetricsFresh"].message == "every pod has fresh metrics"


@pytest.mark.parametrize("pending", [True, False])
def test_summaries_of_no_request_are_no_broken_samples(pending) -> None:
    """The quantiles of an idle model are NaN: it is seen, and it may be scaled down."""
    idle = 'nv_inference_request_summary_us{model="m",version="1",quantile="0.95"} NaN\n'
    told, decision = _conditions(
        lambda _pod, _seconds: triton_page(7000.0, pending=pending) + idle,
        metric=LatencyMetric.LATENCY,
    )[-1]
    if not pending:
        assert "nv_inference_pending_request_count is not exported" in told["Ready"].message
        return
    assert told["MetricsFresh"].message == "every pod has fresh metrics"
    assert str(told["SLOMet"].reason) == "NoTraffic"
    assert decision.metrics is Reason.METRICS_FRESH


@pytest.mark.parametrize(
    ("gauges", "reason"), [("running", "MetricsPartial"), (r"\w+", "MetricsNotANumber")]
)
def test_gauges_that_are_no_number_are_named_and_not_called_old(gauges, reason) -> None:
    """The samples are of two seconds ago."""
    broken = rf"(vllm:num_requests_{gauges}\{{.*\}}) .*"
    told, _ = _conditions(lambda _pod, s: re.sub(broken, r"\1 NaN", vllm_page(2.0 * s)))[-1]
    fresh = told["MetricsFresh"]
    assert (str(fresh.status), str(fresh.reason)) == ("False", reason)
    assert "not a number: vllm:num_requests_running" in fresh.message
    assert "too old" not in fresh.message


@pytest.mark.parametrize(
    ("series", "value", "named"),
    [
        ("vllm:time_to_first_token_seconds_sum", "+Inf", "vllm:time_to_first_token_seconds"),
        ("vllm:generation_tokens_total", "NaN", "vllm:generation_tokens_total"),
    ],
)
def test_counts_that_are_no_number_are_named(series, value, named) -> None:
    """Nothing else of the page is broken; an objective without its histogram is not untried."""
    broken = rf"({series}\{{.*\}}) .*"
    told, decision = _conditions(
        lambda _pod, s: re.sub(broken, rf"\1 {value}", vllm_page(2.0 * s))
    )[-1]
    assert f"missing: {named} (not a number)" in told["MetricsFresh"].message
    if value == "+Inf":
        assert str(told["SLOMet"].reason) == "MetricsMissing"
        assert f"{named} is not a number" in told["SLOMet"].message
        assert f"{named} is not a number" in text(decision)


def test_a_model_without_a_gauge_beside_another_is_not_called_old() -> None:
    """Both are of one page."""
    second = triton_page(7000.0, pending=False).replace('"m"', '"b"')
    told, _ = _conditions(
        lambda _pod, s: triton_page(2.0 * s) + second, metric=LatencyMetric.LATENCY
    )[-1]
    fresh = told["MetricsFresh"]
    assert str(fresh.reason) == "MetricsPartial"
    assert "nv_inference_pending_request_count is not exported" in fresh.message


_WHOLE = vllm_page(7200.0).splitlines()
# After the first line of the last family that decisions need, a cut takes nothing of it.
_LINES = st.integers(3, len(_WHOLE) - 1)


def _families(lines: list[str]) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", line.partition("{")[0]) for line in lines}


@settings(max_examples=12, deadline=None)
@given(cut=_LINES, since=st.integers(0, 4), alone=st.booleans(), rate=_RATES)
def test_a_page_cut_at_the_end_of_a_line_names_pod_and_series(cut, since, alone, rate) -> None:
    """By what it exported before, or by what its siblings export, as long as it is cut."""
    pods = ("chat-0",) if alone else ("chat-0", "chat-1", "chat-2")
    since = max(since, 2) if alone else since

    def page_of(pod, seconds):
        lines = vllm_page(rate * seconds).splitlines()
        tick = round((seconds - 3600.0) / 15.0)
        return "\n".join(lines[:cut] if pod == "chat-0" and tick >= since else lines) + "\n"

    lost = _families(_WHOLE) - _families(_WHOLE[:cut])
    # Histograms may be read in turns: nobody who never had any is asked for them in the beginning.
    late = since == 0 and not any("_bucket" in line for line in _WHOLE[:cut])
    found = _conditions(page_of, pods=pods, ticks=24 if late else TICKS)
    for told, _ in found[-1:] if late else found[since:]:
        fresh = told["MetricsFresh"]
        if lost:
            assert str(fresh.status) == "False"
            assert "chat-0" in fresh.message or alone or "1 of" in fresh.message
            if str(fresh.reason) == "MetricsPartial":
                assert any(name in fresh.message for name in lost)
            assert str(told["SLOMet"].reason) != "NoTraffic"


@quick
@given(rate=_RATES, zeros=st.sampled_from([1, 2]), since=st.integers(3, 5))
def test_pages_of_zeros_are_told(rate, zeros, since) -> None:
    """Of some pods or of all, from any tick on, for as long as nothing counts again."""

    def page_of(pod, seconds):
        tick = round((seconds - 3600.0) / 15.0)
        page = vllm_page(rate * seconds)
        if tick < since or int(pod[-1]) >= zeros:
            return page
        return re.sub(r"(\}) [0-9.e+]+$", r"\1 0", page, flags=re.MULTILINE)

    found = _conditions(page_of, ticks=10)
    for told, _ in found[since:]:
        fresh = told["MetricsFresh"]
        assert str(fresh.status) == "False"
        assert str(told["SLOMet"].reason) != "NoTraffic"
    assert "chat-0" in found[-1][0]["MetricsFresh"].message


_OTHERS = st.lists(
    st.sampled_from(["--model", "m", "--max-num-seqs=64", "--port", "8000", "--enable-lora"]),
    max_size=5,
)


@given(
    before=_OTHERS,
    after=_OTHERS,
    spelt=st.sampled_from(
        ["--disable-log-stats", "--disable_log_stats", "--disable-log-stat", "--disable-log-s"]
    ),
)
def test_a_flag_that_turns_metrics_off_is_named(before, after, spelt) -> None:
    """However vLLM lets it be spelt, and wherever it stands."""
    told = metrics_switched_off([*before, spelt, *after], CATALOGUE)
    assert told == "--disable-log-stats turns the metrics of vllm off"


@given(before=_OTHERS, after=_OTHERS, other=st.sampled_from(
    ["--disable-log-requests", "--disable-log-stats=false", "--disable", "-m=--disable-log-stats"]
))  # fmt: skip
def test_no_flag_is_named_that_is_not_given(before, after, other) -> None:
    """Others that begin alike turn nothing off."""
    assert metrics_switched_off([*before, other, *after], CATALOGUE) == ""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        pytest.param(["python3", "-m", "sglang.launch_server"], "--enable-metrics", id="module"),
        pytest.param(["/usr/bin/sglang", "serve", "m"], "--enable-metrics", id="program"),
        pytest.param(["python3", "-m", "dynamo.sglang"], "--enable-metrics", id="dynamo"),
        pytest.param(["sglang", "serve", "--enable-metrics"], "", id="sglang-with-metrics"),
        pytest.param(["tritonserver", "--allow-metrics=false"], "--allow-metrics", id="triton"),
        pytest.param(["tritonserver", "--allow-metrics", "0"], "--allow-metrics", id="triton-word"),
        pytest.param(["tritonserver", "--allow-metrics=true"], "", id="triton-with-metrics"),
        pytest.param(["vllm", "serve", "m"], "", id="vllm"),
        pytest.param([], "", id="nothing"),
    ],
)
def test_what_other_runtimes_need_is_named(words, named) -> None:
    """SGLang has no metrics unless it is told, Triton has unless it is told not."""
    told = metrics_switched_off(words, CATALOGUE)
    assert bool(told) is bool(named)
    assert named in told


@pytest.mark.parametrize(
    ("command", "args", "config", "named"),
    [
        pytest.param((), ("--model", "m", "--disable-log-stats"), (), True, id="arguments"),
        pytest.param(("vllm", "serve", "m"), (), ("--disable-log-stats",), True, id="file"),
        pytest.param(("sh", "-c", "vllm serve m --disable-log-stats"), (), (), True, id="script"),
        pytest.param(("vllm", "serve", "m"), ("--port", "8000"), (), False, id="without"),
    ],
)
def test_the_flag_is_found_wherever_a_container_has_it(command, args, config, named) -> None:
    """Also while no runtime is known, for nothing is exported that would tell it."""
    started = StartedWith(command=command, args=args, config=config)
    engine = ContainerRecord(name="vllm", image=None, command=(), args=())
    assert ("--disable-log-stats" in read_launch(engine, started, None).metrics_off) is named


def test_the_flag_is_found_in_a_variable_of_a_script() -> None:
    """Of the container's own, as the shell replaces it."""
    script = ("sh", "-c", "vllm serve m $EXTRA")
    environment = Environment(known={"EXTRA": "--port 8000 --disable-log-stats"})
    started = StartedWith(command=script, args=(), environment=environment)
    engine = ContainerRecord(name="vllm", image=None, command=(), args=())
    told = "--disable-log-stats turns the metrics of vllm off"
    assert read_launch(engine, started, None).metrics_off == told


@pytest.mark.parametrize(
    ("args", "told"),
    [
        pytest.param(["sglang", "serve", "--model-path", "$(MODEL)"], True, id="model"),
        pytest.param(["sglang", "serve", "--config", "/etc/sglang.yaml"], False, id="file"),
        pytest.param(["sglang", "serve", "$(EXTRA_ARGS)"], False, id="variable"),
        pytest.param(["sh", "-c", "sglang serve m $EXTRA_ARGS"], False, id="script"),
    ],
)
def test_a_flag_that_may_be_given_is_not_said_to_be_missing(args, told) -> None:
    """In a file or a variable that is not read."""
    engine = ContainerRecord(name="sglang", image=None, command=(), args=())
    read = read_launch(engine, StartedWith(command=(), args=tuple(args), config=()), None)
    assert ("--enable-metrics" in read.metrics_off) is told


@pytest.mark.parametrize("pods", [1, 3])
def test_pods_without_metrics_say_which_flag_turned_them_off(pods) -> None:
    """Their pages hold what the process and its HTTP server export."""
    why = "--disable-log-stats turns the metrics of vllm off"
    told, _ = _conditions(
        lambda _pod, _seconds: "process_cpu_seconds_total{} 5\nhttp_requests_total{} 7\n",
        pods=tuple(f"chat-{n}" for n in range(pods)),
        metrics_off=why,
    )[-1]
    for condition in (told["MetricsFresh"], told["Ready"]):
        assert str(condition.reason) == "MetricsMissing"
        assert condition.message.startswith(why)
        assert "check the labels" not in condition.message
        assert "a runtime that is known" not in condition.message
