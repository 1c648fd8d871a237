"""Engines that are not what most are: without tokens, asleep, without a server."""

from dataclasses import dataclass, field, replace

import pytest
from tests.unit.engine_pages import histogram, vllm_page
from tests.unit.page_plans import LATENCY, conditions, decisions, of_pods
from tests.unit.policy_world import World, reasons, run, stepped

from servingslo.api.runtime_profiles import runtimes_of
from servingslo.estimation.sample import EngineLaunch, EngineSample
from servingslo.estimation.windows.families import generates_no_token
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.reasons import Action, Reason
from servingslo.runtimes import catalogue

NODE = {"launch": EngineLaunch(api_server_count=0)}


def pooling_vllm(requests: float, seconds: float = 0.05) -> str:
    """A vLLM that embeds or ranks: it counts first tokens and generates none."""
    own = 'engine="0"'
    return (
        f"vllm:num_requests_running{{{own}}} 1\nvllm:num_requests_waiting{{{own}}} 0\n"
        f"vllm:prompt_tokens_total{{{own}}} {300 * requests}\n"
        f"vllm:generation_tokens_total{{{own}}} 0\n"
        f'vllm:request_success_total{{{own},finished_reason="stop"}} {requests}\n'
        + histogram("vllm:time_to_first_token_seconds", own, seconds, requests)
        + histogram("vllm:e2e_request_latency_seconds", own, seconds, requests)
    )


def pooling_sglang(requests: float) -> str:
    """An SGLang started with --is-embedding: tokens of prompts alone, no first token."""
    own = 'model_name="m"'
    return (
        f"sglang:num_running_reqs{{{own}}} 1\nsglang:num_queue_reqs{{{own}}} 0\n"
        f'sglang:realtime_tokens_total{{{own},mode="prefill_compute"}} {300 * requests}\n'
        f"sglang:num_requests_total{{{own}}} {requests}\n"
        + histogram("sglang:time_to_first_token_seconds", own, 0.05, 0.0)
        + histogram("sglang:e2e_request_latency_seconds", own, 0.05, requests)
    )


def pooling_trtllm(requests: float) -> str:
    """A trtllm-serve of an encoder."""
    own = 'model_name="m"'
    return (
        f"trtllm_num_requests_running{{{own}}} 1\ntrtllm_num_requests_waiting{{{own}}} 0\n"
        f"trtllm_generation_tokens_total{{{own}}} 0\n"
        f'trtllm_request_success_total{{{own},finished_reason="stop"}} {requests}\n'
        + histogram("trtllm_e2e_request_latency_seconds", own, 0.05, requests)
    )


@pytest.mark.parametrize("page", [pooling_vllm, pooling_sglang, pooling_trtllm])
@pytest.mark.parametrize("rate", [0.5, 7.0, 300.0])
def test_engines_that_generate_no_token_are_observed_and_have_no_law(page, rate):
    """Arrivals and latencies are measured at any rate, and learning has an end."""
    each = of_pods(*2 * [lambda seconds: page(rate * seconds)])
    last = decisions(each, 2, LATENCY)[-1]
    told = conditions(last)
    assert last.demand.arrival_rate_per_second == pytest.approx(2 * rate, rel=0.01)
    assert last.demand.output_tokens_mean is None
    assert told["ModelTrusted"][:2] == ("False", "NoTokensGenerated")
    assert told["SLOMet"][:2] == ("True", "WithinObjectives")
    assert told["MetricsFresh"][0] == "True"


def generating_trtllm(requests: float) -> str:
    """A trtllm-serve that generates tokens, whose gaps it does not time."""
    own = 'model_name="m"'
    page = pooling_trtllm(requests).replace(
        f"trtllm_generation_tokens_total{{{own}}} 0",
        f"trtllm_generation_tokens_total{{{own}}} {100 * requests}",
    )
    return page + histogram("trtllm_time_to_first_token_seconds", own, 0.05, requests)


def test_learning_ends_if_the_runtime_has_no_gaps_of_tokens():
    """What would teach a law is named, and what decides without one."""
    each = of_pods(*2 * [lambda seconds: generating_trtllm(7.0 * seconds)])
    told = conditions(decisions(each, 2, LATENCY)[-1])["ModelTrusted"]
    assert told[:2] == ("False", "MetricNotOfRuntime")
    assert "spec.serviceLaw" in told[2]
    assert "measured saturation decides" in told[2]


def without_counter(page: str) -> str:
    """A page whose counters of tokens are not exported, nor a histogram that counts nothing."""
    dropped = ("generation_tokens_total", "realtime_tokens_total", "sglang:time_to_first_token")
    return "".join(f"{x}\n" for x in page.splitlines() if not any(name in x for name in dropped))


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        pytest.param(pooling_vllm, "NoTokensGenerated", id="vllm"),
        pytest.param(pooling_sglang, "NoTokensGenerated", id="sglang"),
        pytest.param(vllm_page, "ModelLearning", id="a counter dropped, and gaps of tokens there"),
    ],
)
def test_learning_ends_if_nothing_counts_generated_tokens(page, reason):
    """No counter at all; the missing series are named, and nothing is concluded too early."""
    each = of_pods(*2 * [lambda seconds: without_counter(page(7.0 * seconds))])
    last = decisions(each, 2, LATENCY)[-1]
    assert conditions(last)["ModelTrusted"][1] == reason
    assert "tokens_total" in conditions(last)["MetricsFresh"][2]


def test_measurement_alone_orders_for_engines_that_generate_no_token():
    """An objective that they miss asks for more."""
    each = of_pods(*2 * [lambda seconds: pooling_vllm(7.0 * seconds, 8.0)])
    assert decisions(each, 2, LATENCY)[-1].recommended_replicas > 2


def test_a_pod_whose_model_changes_to_one_without_tokens_is_followed():
    """Its counters begin again; series of tokens that it had are not missed for ever."""

    def page(seconds: float) -> str:
        since = seconds - 3600.0 - 150.0
        return vllm_page(7.0 * seconds) if since < 0.0 else pooling_vllm(7.0 * since)

    last = decisions(of_pods(page, page), 2, LATENCY, ticks=40)[-1]
    assert last.demand.arrival_rate_per_second == pytest.approx(14.0, rel=0.01)
    assert last.metrics is Reason.METRICS_FRESH
    assert last.model.reason is Reason.NO_TOKENS_GENERATED


def test_one_pod_without_tokens_among_others_keeps_nobody_from_being_observed():
    """The others' law is theirs; the whole demand is counted."""
    pages = [lambda seconds: vllm_page(7.0 * seconds)] * 2
    last = decisions(of_pods(*pages, lambda seconds: pooling_vllm(7.0 * seconds)), 3, LATENCY)[-1]
    assert last.demand.arrival_rate_per_second == pytest.approx(21.0, rel=0.01)
    assert last.metrics is Reason.METRICS_FRESH
    assert last.model.reason is not Reason.NO_TOKENS_GENERATED


def sleeping(**states: float) -> str:
    """A vLLM that served before and has these sleep states now."""
    lines = (
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {value}\n'
        for name, value in states.items()
    )
    return vllm_page(7200.0, running=0.0) + "".join(lines)


@pytest.mark.parametrize(
    "states",
    [
        pytest.param({"awake": 0, "weights_offloaded": 1, "discard_all": 0}, id="level 1"),
        pytest.param({"awake": 0, "weights_offloaded": 0, "discard_all": 1}, id="level 2"),
        pytest.param({"awake": 0, "weights_offloaded": 0, "discard_all": 0}, id="paused"),
        pytest.param({"weights_offloaded": 1}, id="awake is not exported"),
    ],
)
def test_engines_that_sleep_are_no_capacity(states):
    """However many they are, and Ready names them."""
    pages = [lambda _seconds: sleeping(**states)] * 3
    last = decisions(of_pods(lambda seconds: vllm_page(4.0 * seconds), *pages), 4)[-1]
    assert last.replicas.excluded == 3
    assert last.recommended_replicas == 4
    assert "no capacity: chat-1 (asleep), chat-2 (asleep)" in conditions(last)["Ready"][2]


@pytest.mark.parametrize("asleep", [0, 1, 2])
def test_a_shortage_is_ordered_for_on_top_of_engines_that_sleep(asleep):
    """Without a law too: what is measured asks for a second pod that serves, whoever sleeps."""

    def full(seconds: float) -> str:
        page = vllm_page(4.0 * seconds, running=200.0)
        return page.replace('waiting{engine="0"} 0', 'waiting{engine="0"} 50')

    pages = [lambda _seconds: sleeping(awake=0)] * asleep
    last = decisions(of_pods(full, *pages), 1 + asleep)[-1]
    assert last.model.trusted is False
    assert last.recommended_replicas == 2 + asleep
    assert last.reason is Reason.SATURATION_BOUND


def test_engines_that_are_awake_are_capacity():
    """The same gauge of an engine that serves."""
    page = sleeping(awake=1, weights_offloaded=0, discard_all=0)
    last = decisions(of_pods(lambda _seconds: page), 1)[-1]
    assert last.replicas.excluded == 0


def test_a_pod_with_one_engine_of_two_asleep_is_named():
    """It is no whole replica; if all pods are like it, the target still serves."""

    def page(seconds: float) -> str:
        second = sleeping(awake=0).replace('engine="0"', 'engine="1"')
        return vllm_page(2.0 * seconds) + second

    last = decisions(of_pods(page, lambda seconds: vllm_page(2.0 * seconds)), 2)[-1]
    assert "chat-0 (partly asleep: engine 1)" in conditions(last)["Ready"][2]
    last = decisions(of_pods(page, page), 2)[-1]
    status, reason, message = conditions(last)["Ready"]
    assert (status, reason) == ("True", "Ready")
    assert "no whole replica: chat-0 (partly asleep: engine 1), chat-1 (partly" in message


def test_a_target_that_sleeps_as_a_whole_is_not_ready_and_orders_nothing():
    """No request arrives, so that no sleeping engine needs a replacement."""
    pages = [lambda _seconds: sleeping(awake=0)] * 2
    last = decisions(of_pods(*pages), 2)[-1]
    assert conditions(last)["Ready"][:2] == ("False", "EnginesAsleep")
    assert last.recommended_replicas == 2


@dataclass
class SleepyWorld(World):
    """One pod sleeps from a time on."""

    asleep_from: float = field(default=float("inf"))

    def observe(self, at):
        """What is seen, with the state of the first pod."""
        observation = super().observe(at)
        first, *others = observation.pods
        state = {"awake": float(at < self.asleep_from)}
        engines = tuple(replace(engine, sleep_states=state) for engine in first.engines)
        return replace(observation, pods=(replace(first, engines=engines), *others))


def test_no_replica_is_released_while_an_engine_sleeps():
    """A trusted law wants fewer; Kubernetes might remove one that serves."""
    released = {}
    for asleep_from in (float("inf"), 900.0):
        story = run(SleepyWorld(stepped((0.0, 12.0), (900.0, 2.0)), 6, asleep_from=asleep_from))
        story.until(2700.0)
        late = [one for one in story.decisions if one.time_seconds > 900.0]
        released[asleep_from] = Action.SCALE_DOWN in {one.action for one in late}
    assert released == {float("inf"): True, 900.0: False}
    assert Reason.ENGINES_ASLEEP in reasons(story.decisions[-1])


def test_a_node_of_an_engine_misses_nothing_and_is_no_replica():
    """Demand is not multiplied, and the count stays although the objective is missed."""
    missed = (Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=0.05),)
    last = decisions(
        of_pods(lambda seconds: vllm_page(2.0 * seconds), None), 2, missed, of_pod={"chat-1": NODE}
    )[-1]
    assert last.demand.arrival_rate_per_second == pytest.approx(2.0, rel=0.01)
    assert (last.recommended_replicas, last.limited_by) == (2, Reason.NODES_OF_AN_ENGINE)
    assert last.metrics is Reason.METRICS_FRESH
    assert (last.replicas.ready, last.replicas.pending) == (2, 0)
    assert "chat-1 runs no server" in conditions(last)["ScalingLimited"][2]


def test_a_pod_whose_samples_are_missing_is_named():
    """The others are nodes, and not meant."""
    last = decisions(
        of_pods(lambda seconds: vllm_page(2.0 * seconds), None, None), 3, of_pod={"chat-1": NODE}
    )[-1]
    told = conditions(last)["MetricsFresh"]
    assert told == ("False", "MetricsPartial", "some samples are missing: of pod chat-2")


def test_a_target_of_nodes_alone_is_told_so():
    """No label of the scrape would help."""
    last = decisions(of_pods(None), 1, of_pod={"chat-0": NODE})[-1]
    assert conditions(last)["Ready"][1:] == ("MetricsMissing", "no pod of the target runs a server")


def test_a_new_engine_is_not_taken_for_one_without_tokens():
    """One that has not ended a request yet, or counts tokens later than requests."""
    one = EngineSample(engine="0", runtime="vllm", generation_tokens_total=0.0, running=1.0)
    few = replace(one, finished_total={"stop": 2.0})
    assert not generates_no_token(one)
    assert not generates_no_token(few)
    assert generates_no_token(replace(one, finished_total={"stop": 200.0}))
    assert not generates_no_token(replace(few, generation_tokens_total=None, runtime="triton"))


def test_an_added_runtime_without_any_token_needs_its_answers_alone():
    """A server of embeddings as an administrator describes it: requests, queue and latency."""
    metrics = {
        "running": "te_running", "waiting": "te_queue_size",
        "finishedTotal": {"names": ["te_request_success_total"], "byLabel": "method"},
        "latencySeconds": "te_request_duration",
    }  # fmt: skip
    catalogue.add(runtimes_of({"embedder": {"metrics": metrics}}))
    try:

        def page(seconds: float) -> str:
            return (
                f'te_running 1\nte_queue_size 0\nte_request_success_total{{method="embed"}} '
                f"{9.0 * seconds}\n" + histogram("te_request_duration", "", 0.05, 9.0 * seconds)
            )

        last = decisions(of_pods(page, page), 2, LATENCY)[-1]
    finally:
        catalogue.add(())
    assert last.demand.arrival_rate_per_second == pytest.approx(18.0, rel=0.01)
    assert last.model.reason is Reason.NO_TOKENS_GENERATED
    assert conditions(last)["SLOMet"][0] == "True"
    assert (last.replicas.excluded, last.metrics) == (0, Reason.METRICS_FRESH)
