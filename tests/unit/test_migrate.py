"""`servingslo migrate`: what of an HPA and a ScaledObject is taken over, and what is reported."""

import json
from typing import Any

import pytest
import yaml
from tests.unit.cli_calls import CLI, Called

from servingslo.api.convert import parse_spec
from servingslo.cli.manifest import read_spec

HPA: dict[str, Any] = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "llama-chat", "namespace": "inference"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-chat"},
        "minReplicas": 2,
        "maxReplicas": 16,
        "metrics": [
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "vllm_num_requests_waiting"},
                    "target": {"type": "AverageValue", "averageValue": "5"},
                },
            }
        ],
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 0, "tolerance": "50m"},
            "scaleDown": {
                "stabilizationWindowSeconds": 600,
                "selectPolicy": "Min",
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
            },
        },
    },
    "status": {"currentReplicas": 3, "desiredReplicas": 3},
}
TTFT = (
    "histogram_quantile(0.95,\n  sum by (le)"
    ' (rate(vllm:time_to_first_token_seconds_bucket{pod=~"a)|b"}[1m])))\n'
)
SCALED_OBJECT: dict[str, Any] = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {"name": "llama-chat", "namespace": "inference"},
    "spec": {
        "scaleTargetRef": {"name": "llama-chat"},
        "triggers": [
            {"type": "prometheus", "metadata": {"query": "sum(q)", "threshold": "5"}},
        ],
    },
}


def changed(source: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The resource with these fields of its spec."""
    return {**source, "spec": {**source["spec"], **spec}}


def annotated(source: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """The resource with these fields of its metadata."""
    return {**source, "metadata": {**source["metadata"], **metadata}}


def prometheus(query: str, threshold: str, **more: Any) -> dict[str, Any]:
    """A trigger of KEDA."""
    return {"type": "prometheus", "metadata": {"query": query, "threshold": threshold}, **more}


def called(cli: CLI, *documents: Any, flags: tuple[str, ...] = ()) -> Called:
    """The command with these documents as standard input."""
    return cli(
        "migrate", "-", *flags, stdin="---\n".join(json.dumps(one) + "\n" for one in documents)
    )


def spec_of(cli: CLI, document: Any, *flags: str) -> dict[str, Any]:
    """The spec that is written; the product's own validation takes it."""
    done = called(cli, document, flags=flags)
    assert done.exit_code == 0, done.err
    made = yaml.safe_load(done.out)
    parse_spec(made["spec"])
    return dict(made["spec"])


def comments(cli: CLI, document: Any) -> str:
    """What the command says about what it did."""
    return "\n".join(
        line for line in called(cli, document).out.splitlines() if line.lstrip().startswith("#")
    )


def test_an_hpa_becomes_a_serving_slo_in_recommend(cli: CLI) -> None:
    """Target, bounds and behavior; no field of the status."""
    assert spec_of(cli, HPA, "--objective", "tpot:p95:50ms") == {
        "targetRef": {"kind": "Deployment", "name": "llama-chat"},
        "mode": "Recommend",
        "objectives": [{"metric": "tpot", "percentile": 95, "threshold": "50ms"}],
        "replicas": {"min": 2, "max": 16},
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 0},
            "scaleDown": {
                "stabilizationWindowSeconds": 600,
                "selectPolicy": "Min",
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
            },
        },
    }


def test_what_is_written_is_read_back_as_a_manifest(cli: CLI, tmp_path) -> None:
    """By `plan -f`, comments and all, with name and namespace of the source."""
    path = tmp_path / "slo.yaml"
    path.write_text(called(cli, HPA).out, encoding="utf-8")
    assert read_spec(path)["mode"] == "Recommend"
    made = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert made["metadata"] == {"name": "llama-chat", "namespace": "inference"}


def test_what_of_an_hpa_cannot_be_taken_over_is_said(cli: CLI) -> None:
    """Metric, tolerance, the default of policies; and that the objectives are an example."""
    said = comments(cli, HPA)
    assert "spec.metrics[0] Pods vllm_num_requests_waiting, AverageValue 5: the replica" in said
    assert "spec.behavior.scaleUp.tolerance 50m: there is no tolerance" in said
    assert "spec.behavior.scaleUp.policies: the HPA's default" in said
    assert "An example: state the objectives" in said
    assert "kubectl delete hpa llama-chat, then mode: Auto" in said


def test_an_hpa_to_zero_has_an_idle_time(cli: CLI) -> None:
    """The window before its step down; and the gateway that it needs is named."""
    made = spec_of(cli, changed(HPA, minReplicas=0))
    assert made["replicas"] == {"min": 0, "max": 16, "idleAfter": "10m"}
    assert "a gateway counts this workload's requests" in comments(cli, changed(HPA, minReplicas=0))


def test_a_scaled_object_has_keda_s_defaults(cli: CLI) -> None:
    """0 to 100 replicas, idle for five minutes; without a fallback the count is kept."""
    made = spec_of(cli, SCALED_OBJECT)
    assert made["targetRef"] == {"kind": "Deployment", "name": "llama-chat"}
    assert made["replicas"] == {"min": 0, "max": 100, "idleAfter": "5m"}
    assert "fallback" not in made
    assert "behavior" not in made


@pytest.mark.parametrize(
    ("fallback", "wanted"),
    [
        pytest.param(
            {"failureThreshold": 4, "replicas": 6},
            {"behavior": "Floor", "replicas": 6, "staleAfter": "1m"},
            id="static",
        ),
        pytest.param(
            {"failureThreshold": 0, "replicas": 30, "behavior": "currentReplicasIfHigher"},
            {"behavior": "Floor", "replicas": 16, "staleAfter": "1s"},
            id="higher, above the maximum",
        ),
        pytest.param(
            {"failureThreshold": 2, "replicas": 6, "behavior": "currentReplicas"},
            {"staleAfter": "30s"},
            id="current",
        ),
        pytest.param(
            {"failureThreshold": 100_000, "replicas": 6, "behavior": "currentReplicasIfLower"},
            {"staleAfter": "86400s"},
            id="lower",
        ),
        pytest.param({"failureThreshold": 3, "replicas": 0}, {"staleAfter": "45s"}, id="none"),
    ],
)
def test_a_fallback_never_removes_replicas(cli: CLI, fallback: Any, wanted: Any) -> None:
    """Floor or Hold, after as many polls as KEDA waits."""
    source = changed(SCALED_OBJECT, fallback=fallback, maxReplicaCount=16, pollingInterval=15)
    assert spec_of(cli, source)["fallback"] == wanted


def test_the_behavior_of_keda_s_hpa_is_taken_over(cli: CLI) -> None:
    """From where KEDA has it."""
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 120}}
    advanced = {
        "horizontalPodAutoscalerConfig": {"behavior": behavior},
        "scalingModifiers": {"formula": "a + b", "target": "2"},
        "restoreToOriginalReplicaCount": True,
    }
    source = changed(SCALED_OBJECT, advanced=advanced, idleReplicaCount=0, minReplicaCount=2)
    made = spec_of(cli, source)
    assert made["behavior"] == behavior
    assert made["replicas"] == {"min": 2, "max": 100}
    said = comments(cli, source)
    for field in ("scalingModifiers.formula a + b", "restoreToOriginal", "spec.idleReplicaCount 0"):
        assert field in said


@pytest.mark.parametrize(
    ("query", "threshold", "wanted"),
    [
        pytest.param(TTFT, "0.5", ("ttft", 95, "500ms"), id="ttft"),
        pytest.param(TTFT.replace("0.95", ".999"), "2", ("ttft", 99.9, "2s"), id="p99.9"),
        pytest.param(
            "histogram_quantile(0.9, sum(rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
            "1.25",
            ("latency", 90, "1250ms"),
            id="latency",
        ),
        pytest.param(f"{TTFT} * 1000", "500", ("ttft", 95, "500ms"), id="milliseconds"),
        pytest.param(f"1e3 * ({TTFT})", "500", ("ttft", 95, "500ms"), id="factor-first"),
        pytest.param(f"({TTFT}) / 0.001", "500", ("ttft", 95, "500ms"), id="divided"),
        pytest.param(f"({TTFT} or vector(0))*1000", "500", ("ttft", 95, "500ms"), id="or-inside"),
        pytest.param(f"{TTFT} * 1000 or vector(0)", "500", ("ttft", 95, "500ms"), id="or-vector"),
        pytest.param(f"(({TTFT} > 0) or on() vector(0))", "0.5", ("ttft", 95, "500ms"), id="or-on"),
        pytest.param(f"{TTFT} or vector(0) * 1000", "500", None, id="factor of the other side"),
        pytest.param(f"{TTFT} * 2", "0.5", None, id="not the percentile itself"),
        pytest.param(f"{TTFT} + sum(q)", "0.5", None, id="a sum"),
        pytest.param(TTFT.replace("0.95", "0.3"), "0.5", None, id="below the median"),
        pytest.param(TTFT, "7200", None, id="longer than an hour"),
        pytest.param(TTFT, "fast", None, id="no number"),
        pytest.param(
            TTFT.replace("time_to_first_token", "inter_token_latency"), "0.05", None, id="gaps"
        ),
        pytest.param(TTFT.replace("vllm:", "mine:"), "0.5", None, id="no engine's"),
    ],
)
def test_a_trigger_on_a_percentile_of_latency_is_an_objective(
    cli: CLI, query: str, threshold: str, wanted: tuple[str, float, str] | None
) -> None:
    """Metric, percentile and threshold; any other query is reported with the reason."""
    source = changed(SCALED_OBJECT, triggers=[prometheus(query, threshold, metricType="Value")])
    made, said = spec_of(cli, source), comments(cli, source)
    if wanted is None:
        assert "a latency, not understood: state --objective" in said
        assert "not from a threshold" not in said
        assert "An example" in said
    else:
        metric, percentile, written = wanted
        assert made["objectives"] == [
            {"metric": metric, "percentile": percentile, "threshold": written}
        ]
        assert "An example" not in said


@pytest.mark.parametrize(
    ("query", "latency"),
    [
        pytest.param("rate(vllm:e2e_request_latency_seconds_sum[1m])/rate(x[1m])", True, id="mean"),
        pytest.param("max(llm:ttft:p95)", True, id="recording-rule"),
        pytest.param("avg(vllm:itl_mean)", True, id="itl"),
        pytest.param("sum(rate(vllm:e2e_request_latency_seconds_count[1m]))", False, id="requests"),
        pytest.param("sum(rate(container_cpu_usage_seconds_total[1m]))", False, id="cpu"),
        pytest.param("sum(vllm:num_requests_waiting)", False, id="waiting"),
        *(
            pytest.param(name, True, id=name)
            for name in (
                'avg(nv_inference_request_summary_us{quantile="0.95"}) / 1000',
                "llm_wait_seconds",
                "chat_first_token_s",
                "request_elapsed_seconds",
                "chat:response_seconds:avg",
                "time_in_queue_seconds",
                "e2e_seconds_avg",
                "rate(request_time_sum[1m]) / rate(request_time_count[1m])",
                "slo:e2e_p95",
                "stats.timers.chat.upper_95",
                "TargetResponseTime",
                "tail_ms_p99",
                "histogram_quantile(0.9, rate(own_bucket[1m]))",
                "http_server_requests_seconds_sum",
            )
        ),
        *(
            pytest.param(name, False, id=name)
            for name in (
                "histogram_quantile(0.9, sum(rate(vllm:request_prompt_tokens_bucket[5m])))",
                "DCGM_FI_DEV_GPU_UTIL_p95",
                "kv_usage_p90",
                "cpu_p95",
                "batch_size_p50",
                "tokens_per_ms",
                "requests_per_s",
                "vllm:gpu_cache_usage_perc[30s]",
                'sum(rate(vllm:time_to_first_token_seconds_bucket{le="+Inf"}[2m]))',
                'sum(vllm:num_requests_running{job="latency"})',
                "process_start_time_seconds",
            )
        ),
    ],
)
def test_a_latency_that_is_not_understood_is_said(cli: CLI, query: str, latency: bool) -> None:
    """In a trigger and as the name of an HPA's metric; a rate of requests is no latency."""
    named = {"metric": {"name": query}, "target": {"type": "Value", "value": "5"}}
    for source in (
        changed(SCALED_OBJECT, triggers=[prometheus(query, "5")]),
        changed(HPA, metrics=[{"type": "External", "external": named}]),
    ):
        said = comments(cli, source)
        assert ("state --objective" in said) is latency
        assert ("not from a threshold" in said) is not latency


def test_under_a_formula_the_threshold_of_a_trigger_is_no_objective(cli: CLI) -> None:
    """KEDA compares the formula's value with its own target and ignores the trigger's threshold."""
    triggers = [prometheus(f"{TTFT} * 1000", "1", name="ttft", metricType="Value")]
    modifiers = {"formula": "ttft / 1000", "target": "0.8", "metricType": "Value"}
    said = comments(
        cli, changed(SCALED_OBJECT, triggers=triggers, advanced={"scalingModifiers": modifiers})
    )
    assert "a latency, not understood: state --objective" in said
    assert "An example" in said
    assert "scalingModifiers.formula ttft / 1000, target 0.8" in said


def test_the_user_s_objectives_win_over_those_of_triggers(cli: CLI) -> None:
    """One metric and percentile is there once, with the threshold that decides in KEDA."""
    triggers = [prometheus(TTFT, "1"), prometheus(TTFT, "0.5"), prometheus(TTFT, "2")]
    source = changed(SCALED_OBJECT, triggers=triggers)
    strictest = {"metric": "ttft", "percentile": 95, "threshold": "500ms"}
    assert spec_of(cli, source)["objectives"] == [strictest]
    assert "not understood" not in comments(cli, source)
    made = spec_of(cli, source, "--objective", "ttft:p99:1500ms")
    assert made["objectives"] == [{"metric": "ttft", "percentile": 99, "threshold": "1500ms"}]
    assert "spec.triggers[0].metricType AverageValue: divides the latency" in comments(cli, source)


def test_a_list_of_the_cluster_is_read_without_the_hpa_that_keda_made(cli: CLI) -> None:
    """One ServingSLO for each ScaledObject and each other HPA."""
    owner = {"kind": "ScaledObject", "name": "llama-chat", "controller": True}
    made_by_keda = annotated(HPA, name="keda-hpa-llama-chat", ownerReferences=[owner])
    other = annotated(HPA, name="other")
    items = [made_by_keda, other, SCALED_OBJECT]
    done = called(cli, {"apiVersion": "v1", "kind": "List", "items": items}, {"kind": "Deployment"})
    made = list(yaml.safe_load_all(done.out))
    assert [one["metadata"]["name"] for one in made] == ["other", "llama-chat"]
    alone = called(cli, made_by_keda)
    assert alone.refuses("ownerReferences", "migrate scaledobject/llama-chat"), alone.err


def test_the_namespace_of_a_flag_is_for_manifests_without_one(cli: CLI) -> None:
    """What the manifest states wins."""
    bare = {**HPA, "metadata": {"name": "llama-chat"}}
    flags = ("-n", "team")
    assert yaml.safe_load(called(cli, bare).out)["metadata"] == {"name": "llama-chat"}
    for source, namespace in ((bare, "team"), (HPA, "inference")):
        made = yaml.safe_load(called(cli, source, flags=flags).out)
        assert made["metadata"]["namespace"] == namespace


def test_a_serving_slo_of_the_former_version_gets_the_present_one(cli: CLI, tmp_path) -> None:
    """Nothing else of the file changes, not even comments; and both versions are read."""
    text = """# ours
apiVersion: servingslo.dev/v1alpha1 # the first
kind: ServingSLO
metadata: {name: chat}
spec:
  targetRef: {kind: Deployment, name: chat}
  objectives: [{metric: ttft, percentile: 99, threshold: 1s}]
  replicas: {max: 4}
---
{"apiVersion": "servingslo.dev/v1alpha1", "kind": "Other", "spec": {"gpus": 8}}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
"""
    path = tmp_path / "slo.yaml"
    path.write_text(text, encoding="utf-8")
    read_spec(path)
    done = cli("migrate", path)
    assert done.out == text.replace("servingslo.dev/v1alpha1", "servingslo.dev/v1beta1")
    path.write_text(done.out, encoding="utf-8")
    read_spec(path)
    assert cli("migrate", path).out == done.out


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ("servingslo.dev/v1", "servingslo.dev/v1"),
        ("&version servingslo.dev/v1alpha1", "servingslo.dev/v1alpha1"),
        (">-\n  servingslo.dev/v1alpha1", "servingslo.dev/v1alpha1"),
    ],
)
def test_a_version_that_cannot_be_replaced_is_refused(cli: CLI, stated: str, read: str) -> None:
    """An unknown one, or one in a form that the text does not show; nothing is printed."""
    done = cli("migrate", "-", stdin=f"apiVersion: {stated}\nkind: ServingSLO\n")
    assert done.refuses(f"standard input: apiVersion: '{read}'", "v1beta1, v1alpha1"), done.err
    assert not done.out


def test_a_field_that_is_gone_is_named_beside_the_new_version(cli: CLI, tmp_path) -> None:
    """Of a List as `kubectl get` prints it, and of a part that another manager applies."""
    former = {"apiVersion": "servingslo.dev/v1alpha1", "kind": "ServingSLO"}
    gone = {**former, "spec": {"batching": {"mode": "Auto", "rollout": "Canary"}}}
    part = {**former, "spec": {"replicas": {"min": 3}}}
    path = tmp_path / "slo.yaml"
    for items, exit_code in ([part], 0), ([part, gone], 2):
        path.write_text(yaml.safe_dump({"kind": "List", "items": items}), encoding="utf-8")
        done = cli("migrate", path)
        assert done.exit_code == exit_code, done.err
        made = yaml.safe_load(done.out)["items"]
        assert made == [{**one, "apiVersion": "servingslo.dev/v1beta1"} for one in items]
    assert f"{path}: spec.batching.rollout: 'Canary' is not allowed; allowed: no such" in done.err
    assert "missing" not in done.err


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param(
            changed(HPA, maxReplicas=0), ("spec.maxReplicas: 0", "from 1 to 10000"), id="max"
        ),
        pytest.param(
            changed(HPA, minReplicas=20),
            ("spec.minReplicas: 20", "at most maxReplicas, 16"),
            id="min above max",
        ),
        pytest.param(
            {**HPA, "apiVersion": "autoscaling/v1"},
            ("apiVersion: 'autoscaling/v1'", "autoscaling/v2"),
            id="an old HPA",
        ),
        pytest.param(
            changed(HPA, behavior={"scaleUp": {"stabilizationWindowSeconds": 4000}}),
            ("spec.behavior.scaleUp.stabilizationWindowSeconds: 4000", "from 0 to 3600"),
            id="window",
        ),
        pytest.param(
            changed(HPA, metrics=[{"type": "Pods"}]),
            ("spec.metrics[0].pods is missing", "required by type Pods"),
            id="a metric without its source",
        ),
        pytest.param(
            changed(SCALED_OBJECT, minReplicaCount=101),
            ("spec.minReplicaCount: 101", "at most maxReplicaCount, 100"),
            id="min above KEDA's default",
        ),
        pytest.param(
            changed(SCALED_OBJECT, triggers=[]), ("spec.triggers", "at least 1"), id="no trigger"
        ),
        pytest.param(
            annotated(
                HPA,
                annotations={"llm-d.ai/managed": "true", "llm-d.ai/variant-cost": "-1"},
            ),
            ("llm-d.ai/variant-cost", "'-1'", "a number, 0 or more"),
            id="cost",
        ),
        pytest.param({"kind": "Deployment"}, ("kind: 'Deployment'", "ScaledObject"), id="neither"),
        pytest.param(None, ("kind is missing",), id="nothing"),
    ],
)
def test_bad_input_is_refused_with_field_value_and_range(
    cli: CLI, document: Any, words: tuple[str, ...]
) -> None:
    """Exit code 2 and one line that names standard input."""
    done = called(cli, document)
    assert done.refuses("standard input", *words), done.err
    assert done.out == ""
