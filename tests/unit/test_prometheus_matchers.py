"""Several clusters in one store: which one is meant, and what happens while nobody says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.answering import Answering, serving
from tests.unit.cli_calls import CLI
from tests.unit.engine_pages import NAMESPACE, estimates, readings, vllm_page

import servingslo
import servingslo_lab
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.past.rates import PastRates
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.errors import InvalidInputError
from servingslo.estimation.sample import PodSample
from servingslo.estimation.windows.freshness import metrics_of
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import ScaleTarget, Targets
from servingslo.reasons import Reason
from servingslo.runtimes.gateway_catalogue import gateway_profile
from servingslo_lab.cli.past.exported import Question, read_exported
from servingslo_lab.cli.past.history import prometheus_now_seconds, read_history
from servingslo_lab.cli.past.workload import PastQuestion, PastWorkload

URL = "http://store.test"
MATCHERS = 'cluster="a", region=~"eu-.*"'
GATEWAYS = ("envoy-gateway", "istio", "gateway-api-inference-extension")
ASKS = {"past/exported.py", "past/history.py", "past/ranges.py", "past/rates.py",
        "reading/crowds.py", "reading/reader.py"}  # fmt: skip
_KEYWORDS = frozenset({"or", "and", "by", "on", "group_left", "unless"})
SETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="StatefulSet", name="chat"),
    objectives=(Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0),),
)


class Store(Answering):
    """Notes each query. Tells of one engine that it has native histograms alone."""

    asked: list[str]

    def reply(self) -> None:
        """A long query comes in the body."""
        query = parse_qs(self.body.decode() or urlsplit(self.path).query)["query"][0]
        self.asked.append(query)
        labels = {"namespace": "n", "pod": "p", "servingslo_group": "native/engine"}
        ranged = "query_range" in self.path
        one = {"metric": labels, "value": [1e9, "3"], "values": [[1e9, "3"]]}
        del one["value" if ranged else "values"]
        told = query.startswith(("label_replace(min", "max by (pod) ((kube_pod_created"))
        data = {"resultType": "matrix" if ranged else "vector", "result": [one] if told else []}
        if query == "time()":
            data = {"resultType": "scalar", "result": [1e9, "1000000000"]}
        self.answer(json.dumps({"status": "success", "data": data}).encode())


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a store that notes what it is asked."""
    Store.asked = []
    with serving(Store) as url:
        yield url


def unmatched(query: str) -> list[str]:
    """The selectors of a query that lack the matchers."""
    marked = query.replace(f"{MATCHERS}}}", "}!")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', marked)
    found = re.findall(r"[\w:]*\{[^{}]*\}(?!!)", bare)
    told = re.sub(r"\b(?:by|on|group_left) ?\([^()]*\)|\[[^\]]*\]", "", bare)
    names = re.findall(r"\b[A-Za-z_][\w:]*+(?!\s*[({])", re.sub(r"\{[^{}]*\}", "{", told))
    return found + [name for name in names if name not in _KEYWORDS]


def ask_for_the_past(config: PrometheusConfig) -> None:
    """Ask what is asked of the past and of the operator itself."""
    now = prometheus_now_seconds(config)
    list(read_history(config, [now]))
    question = Question(
        namespace="n", name="x", end_seconds=int(now), interval_seconds=600, count=3
    )
    read_exported(config, question)
    week = PastQuestion(
        namespace="n", name="x", targets=SETS, start_seconds=int(now), end_seconds=int(now) + 60,
        step_seconds=60,
    )  # fmt: skip
    list(PastWorkload(config=config, question=week).observations())
    rates = PastRates(config, days=1)
    rates._read()
    rates.close()


def _everything(config: PrometheusConfig) -> None:
    """Ask whatever the operator and its commands ask."""
    for pods in (None, {"chat-0", "chat-1"}):
        # One reading for each reader, because the store's clock stands.
        reader = PrometheusReader(config)
        assert reader._read(pods).time_seconds is not None
        reader.close()
    ask_for_the_past(config)


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_every_query_of_every_path_has_the_matchers(store: str, gateway: str) -> None:
    """Readings, past rates, gateways, GPUs, native histograms, the operator's own."""
    profile = gateway_profile(gateway)
    _everything(PrometheusConfig(url=store, gateway=profile, matchers=MATCHERS))
    asked = [query for query in Store.asked if query != "time()"]
    assert {query: found for query in asked if (found := unmatched(query))} == {}
    text = "\n".join(asked)
    for part in ("DCGM_FI", "kube_statefulset_replicas", "kube_pod_container_resource_requests",
                 "kube_pod_status_ready_time",
                 "histogram_count", "servingslo_limited_by", "servingslo_owner",
                 profile.metrics[0].names[0], "pod=~", "timestamp({"):  # fmt: skip
        assert part in text
    without = [unmatched(query.replace(MATCHERS, "")) for query in asked]
    assert all(without)


def test_no_other_module_asks_a_store() -> None:
    """What does is among those that the test above lets ask."""
    asking = {
        "/".join(path.parts[-2:])
        for package in (servingslo, servingslo_lab)
        for path in Path(package.__file__).parent.rglob("*.py")
        if "features" not in path.parts
        and re.search(r"client\.query(_range)?\(", path.read_text(encoding="utf-8"))
    }
    assert asking == ASKS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        (' cluster = "a" ', 'cluster="a"'),
        ('cluster="a",region!~"us|ap",cluster="a",', 'cluster="a", region!~"us|ap"'),
        (r'cluster="say \"a\" \\ b, {c}"', r'cluster="say \"a\" \\ b, {c}"'),
    ],
)
def test_matchers_are_taken_as_promql_writes_them(text: str, told: str) -> None:
    """Spaces, a last comma and repetitions are nothing."""
    assert PrometheusConfig(url=URL, matchers=text).matchers == told


@pytest.mark.parametrize(
    "text",
    ["cluster", "cluster=a", "cluster='a'", '{cluster="a"}', 'cluster="a"} or up{x="y"',
     'cluster="a" region="b"', '__name__="up"', 'k8s-cluster="a"', 'cluster=~"a("',
     'cluster=~"(?!b).*"', r'cluster="\d"', 'cluster="a', ',cluster="a"', 'cluster="a\nb"'],
)  # fmt: skip
def test_what_prometheus_would_refuse_is_refused_at_the_start(cli: CLI, text: str) -> None:
    """By the flag, with what it was given and what is allowed; nothing can end the selector."""
    with pytest.raises(InvalidInputError, match="--prometheus-matchers"):
        PrometheusConfig(url=URL, matchers=text)
    done = cli("history", "n/x", "--prometheus-url", "http://127.0.0.1:9",
               "--prometheus-matchers", text)  # fmt: skip
    assert done.exit_code == 2
    assert "--prometheus-matchers" in done.err
    assert "allowed: " in done.err


# Labels of one engine's two series, without those of the pod.
_A = {"job": "engines", "instance": "10.0.0.1:8000", "prometheus": "monitoring/k8s"}
_NAMESAKES = [
    ({"cluster": "a"}, {"cluster": "b"}, "cluster=a and cluster=b"),
    ({}, {"k8s_cluster": "b"}, "no k8s_cluster and k8s_cluster=b"),
    ({"environment": "x"}, {"environment": "y"}, "environment=x and environment=y"),
    ({"dc": "x", "node": "1"}, {"dc": "y", "node": "2"}, "dc=x and dc=y"),
    ({"node": "1", "region": "x"}, {"node": "2", "region": "y"}, "region=x and region=y"),
    (
        {"cluster": "a", "instance": "10.8.0.9:8000", "replica": "0"},
        {"cluster": "b", "replica": "1", "prometheus": "other/k8s"},
        "cluster=a and cluster=b",
    ),
    ({"cluster": "a", "job": "x"}, {"cluster": "b", "job": "y"}, "cluster=a and cluster=b"),
    ({"prometheus_cluster": "a"}, {"prometheus_cluster": "b"}, "prometheus_cluster=a"),
    ({"origin_prometheus": "a"}, {"origin_prometheus": "b"}, "origin_prometheus=a"),
    ({"env": "prod", "job": "x"}, {"env": "stage", "job": "y"}, "env=prod and env=stage"),
    ({"account": "1", "container": "a"}, {"account": "2", "container": "b"}, "account=1 and"),
    ({"cluster": "a", "job": "x"}, {"job": "y"}, "cluster=a and no cluster"),
    ({"job": "x"}, {"job": "y", "instance": "10.8.0.9:8000"}, "instance=10.0.0.1 and"),
]
_ONE_POD = [
    ({"prometheus_replica": "0"}, {"prometheus_replica": "1"}),
    ({"replica": "0"}, {"replica": "1"}),
    ({"__replica__": "0"}, {"__replica__": "1"}),
    ({"thanos_replica": "0", "cluster": "a"}, {"thanos_replica": "1", "cluster": "a"}),
    ({"prometheus": "a/k8s"}, {"prometheus": "b/user"}),
    ({"job": "pods", "endpoint": "http"}, {"job": "svc", "endpoint": "metrics", "service": "s"}),
    ({"endpoint": "http", "container": "vllm"}, {"endpoint": "web", "container": "proxy"}),
    ({"job": "pods", "app": "x"}, {"job": "svc", "team": "y"}),
    ({"job": "pods", "app": "x", "zone": "z"}, {"job": "svc", "app": "x-service"}),
    ({"tp_rank": "0", "pid": "7"}, {"tp_rank": "1", "priority": "2"}),
    ({"instance": "10.0.0.1:8000"}, {"instance": "chat-0:8000"}),
]


def _read(*scrapes: dict[str, str]):
    """The engines of two pods, of which the first has these scrapes."""

    def targets(seconds):
        for labels in scrapes:
            yield {"pod": "chat-0", **_A, **labels}, vllm_page(2 * seconds)
        yield {"pod": "chat-1", **_A}, vllm_page(2 * seconds)

    ((_, metrics),) = readings(targets, 1)
    assert metrics.problem is None
    return [metrics.pods[NAMESPACE, f"chat-{number}"].engines for number in (0, 1)]


@pytest.mark.parametrize(("one", "other", "told"), _NAMESAKES)
def test_namesakes_of_two_clusters_are_refused_by_name(one, other, told) -> None:
    """In any order; the other pods are read."""
    for scrapes in ((one, other), (other, one)):
        refused, read = _read(*scrapes)
        (why,) = {text for engine in refused for text in engine.impossible_metrics}
        assert why.startswith(f"two series of pod {NAMESPACE}/chat-0: {told}")
        assert why.endswith("; set prometheus.matchers, or the runtime's partLabels")
        pod = PodSample(name="chat-0", ready=True, engines=refused)
        assert metrics_of(pod, 120.0).state is Reason.METRICS_IMPLAUSIBLE
        assert metrics_of(pod, 120.0).engines == ()
        assert [engine.running for engine in read] == [4.0]


@pytest.mark.parametrize(("one", "other"), _ONE_POD)
def test_scrapes_of_one_pod_are_read(one, other) -> None:
    """By two replicas of Prometheus, two jobs, or from two ranks."""
    read, _ = _read(one, other)
    assert {engine.running for engine in read} == {4.0}


@settings(max_examples=10, deadline=None)
@given(rates=st.tuples(st.floats(0.5, 20.0), st.floats(0.5, 20.0)), ahead=st.floats(0.0, 1e5))
def test_with_matchers_the_rate_is_that_of_their_cluster(rates, ahead) -> None:
    """Whatever the other one's counters say."""

    def targets(seconds):
        for cluster, rate, base in zip("ab", rates, (0.0, ahead), strict=True):
            yield {"pod": "chat-0", **_A, "cluster": cluster}, vllm_page(rate * seconds + base)

    for matchers, rate in zip(('cluster="a"', 'cluster!="a"'), rates, strict=True):
        last = estimates(targets, 3, matchers=matchers)[-1]
        assert last.arrival_rate_per_second == pytest.approx(rate, rel=1e-3)


def test_series_from_before_a_pod_was_made_anew_are_no_namesakes() -> None:
    """A store without markers of their end keeps them for minutes."""

    def targets(seconds):
        yield {"pod": "chat-0", **_A, "node": "n2"}, vllm_page(2 * seconds)
        yield (
            {"pod": "chat-0", **_A, "node": "n1", "instance": "10.0.0.9:8000"},
            vllm_page(900.0),
            150.0,
        )

    ((_, metrics),) = readings(targets, 1)
    (engine,) = metrics.pods[NAMESPACE, "chat-0"].engines
    assert engine.impossible_metrics == ()


def test_a_namesake_that_is_gone_is_refused_as_long_as_its_counters_are_there() -> None:
    """They would be combined with the pod's own, and the larger ones win."""

    def targets(seconds):
        yield {"pod": "chat-0", **_A, "cluster": "a"}, vllm_page(2 * seconds)
        yield {"pod": "chat-0", **_A, "cluster": "b"}, vllm_page(9e6), 200.0

    ((_, metrics),) = readings(targets, 1)
    (engine,) = metrics.pods[NAMESPACE, "chat-0"].engines
    assert engine.impossible_metrics


def _gateways(**settings):
    """Requests of each workload by the proxies of two clusters, whose pods are namesakes."""

    def targets(seconds):
        del seconds
        for cluster, requests in (("a", 100.0), ("b", 900.0)):
            yield {"pod": "chat-0", **_A, "cluster": cluster}, vllm_page(requests)
            page = "".join(
                f'envoy_cluster_upstream_rq_total{{envoy_cluster_name="httproute/{space}/chat/rule/0"}}'
                f" {requests}\n"
                for space in (NAMESPACE, "elsewhere")
            )
            yield {"namespace": "gw", "pod": f"proxy-{cluster}", "cluster": cluster}, page

    gateway = gateway_profile("envoy-gateway")
    ((_, metrics),) = readings(targets, 1, gateway=gateway, **settings)
    return {
        workload: sum(one.requests_total or 0.0 for one in sample.all_instances)
        for workload, sample in metrics.gateways.items()
    }


def test_a_gateways_counts_of_namesakes_are_not_added_up() -> None:
    """Other namespaces keep theirs; with matchers each workload has its own cluster's."""
    whole = {(NAMESPACE, "chat"): 1000.0, ("elsewhere", "chat"): 1000.0}
    assert _gateways() == {("elsewhere", "chat"): whole["elsewhere", "chat"]}
    assert _gateways(matchers='cluster="a"') == dict.fromkeys(whole, 100.0)
