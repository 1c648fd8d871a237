"""Monitors, rules and alerts of the chart, held by promtool and by the API server."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from tests.dashboards.servingslo import queries
from tests.e2e.chart_matrix import rendered_with
from tests.rules import own_metrics

from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.versions import PROMTOOL

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "servingslo-operator"
RULES = CHART / "files" / "rules.yaml"
CASES = sorted((*ROOT.glob("tests/rules/*.yaml"), *ROOT.glob("tests/features/*/rules/*.yaml")))
CRDS = Path(__file__).parent / "data" / "prometheus-operator"
RELEASE = "monitored"
KUBE_VERSION = "--kube-version=1.36.3"
GROUP = "monitoring.coreos.com"
ON = (
    "monitoring.serviceMonitor.enabled=true",
    "monitoring.podMonitor.enabled=true",
    "monitoring.podMonitor.selector.matchLabels.app=llama-chat",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.labels.release=kube-prometheus-stack",
)
PLURALS = {
    "ServiceMonitor": "servicemonitors",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
}


def test_the_operator_s_metrics_keep_prometheus_conventions() -> None:
    """Every family has a name, a type and a help text as promtool wants them."""
    promtool = ensure_tools((PROMTOOL,))[PROMTOOL.name]
    every = own_metrics.page()
    assert own_metrics.complaints(promtool, every) == ""
    # Every family is seen, also those without a sample here.
    names = re.findall(r"^# TYPE (servingslo_\S+) (?:gauge|counter)$", every, re.MULTILINE)
    assert "servingslo_build_info" in names
    for name in names:
        lacking = re.sub(rf"^# HELP {name} .*\n", "", every, flags=re.MULTILINE)
        assert f"{name} no help text" in own_metrics.complaints(promtool, lacking)


def _rules() -> dict[str, Any]:
    return yaml.safe_load(RULES.read_text(encoding="utf-8"))


ALERTS = [
    rule["alert"] for group in _rules()["groups"] for rule in group["rules"] if "alert" in rule
]


def _tested(
    rules: dict[str, Any], folder: Path, alert: str | None = None
) -> subprocess.CompletedProcess[str]:
    """What promtool says of these rules beside the cases, or beside those of one alert alone."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    written = []
    for path in CASES:
        cases = yaml.safe_load(path.read_text(encoding="utf-8"))
        cases["rule_files"] = ["rules.yaml"]
        cases["tests"] = [case for case in cases["tests"] if alert in {None, *_alerts_of(case)}]
        if cases["tests"]:
            written.append(folder / path.name)
            written[-1].write_text(yaml.safe_dump(cases), encoding="utf-8")
    promtool = ensure_tools((PROMTOOL,))[PROMTOOL.name]
    return subprocess.run(
        [str(promtool), "test", "rules", *map(str, written)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _alerts_of(case: dict[str, Any]) -> set[str]:
    """The alerts that a case is about."""
    return {entry["alertname"] for entry in case.get("alert_rule_test", ())}


def test_alerts_fire_when_they_should_and_only_then(rig: Rig, tmp_path: Path) -> None:
    """Promtool holds every case against the chart's own rules."""
    done = _tested(_rules(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_replica_hours_are_of_the_time_that_was_seen(tmp_path: Path) -> None:
    """Four replicas for six minutes are 0.4 hours, not the 96 of a whole day."""
    asked = [query for panel, query in queries() if panel == "Replica-hours of the last day"]
    labels = 'namespace="inference",name="llama-chat"'
    series = f'servingslo_replicas_current{{{labels},pod="operator-0",pool="POOL"}}'
    pools = [{"series": series.replace("POOL", pool), "values": "4x23 stale"} for pool in "ab"]
    wanted = ([(f'{{{labels}, pool="{pool}"}}', 0.4) for pool in "ab"], [(f"{{{labels}}}", 0.8)])
    case = {
        "interval": "15s",
        "input_series": pools,
        "promql_expr_test": [
            {
                "expr": re.sub(r"\$\w+", ".*", query),
                "eval_time": "30m",
                "exp_samples": [{"labels": one, "value": value} for one, value in samples],
            }
            for query, samples in zip(asked, wanted, strict=True)
        ],
    }
    (tmp_path / "hours.yaml").write_text(yaml.safe_dump({"tests": [case]}), encoding="utf-8")
    promtool = ensure_tools((PROMTOOL,))[PROMTOOL.name]
    done = subprocess.run(
        [str(promtool), "test", "rules", str(tmp_path / "hours.yaml")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_a_broken_expression_is_found_out(rig: Rig, tmp_path: Path, alert: str) -> None:
    """An alert that never fires, as one on a metric that is no more, fails a case of its own."""
    rules = _rules()
    broken = [rule for group in rules["groups"] for rule in group["rules"]]
    (rule,) = (one for one in broken if one.get("alert") == alert)
    rule["expr"] = "servingslo_no_such_metric == 1"
    done = _tested(rules, tmp_path, alert)
    assert "FAILED" in done.stdout + done.stderr


def _rendered(rig: Rig, *settings: str, major: int = 4) -> list[dict[str, Any]]:
    flags = (f"--set={setting}" for setting in settings)
    done = rig.helm("template", RELEASE, str(CHART), KUBE_VERSION, *flags, major=major)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(scope="module")
def prometheus_crds(rig: Rig) -> Iterator[None]:
    """The Prometheus Operator's own CRDs on the API server."""
    extensions = kubernetes.client.ApiextensionsV1Api(rig.api_client())
    crds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in CRDS.glob("*.yaml")]
    for crd in crds:
        extensions.create_custom_resource_definition(crd)
    custom = kubernetes.client.CustomObjectsApi(rig.api_client())

    def served() -> bool:
        try:
            for plural in PLURALS.values():
                custom.list_cluster_custom_object(GROUP, "v1", plural)
        except kubernetes.client.ApiException:
            return False
        return True

    rig.wait_for(served, what="the CRDs of the Prometheus Operator are served")
    yield
    for crd in crds:
        extensions.delete_custom_resource_definition(crd["metadata"]["name"])


@pytest.mark.parametrize("major", [3, 4])
def test_monitors_and_rules_are_accepted_and_go_with_the_release(
    rig: Rig, namespace: str, prometheus_crds: None, major: int
) -> None:
    """The API server takes each object by the upstream schema, unknown fields refused."""
    custom = kubernetes.client.CustomObjectsApi(rig.api_client())
    rendered = rig.helm(
        "template", RELEASE, str(CHART), KUBE_VERSION, *(f"--set={s}" for s in ON), major=major
    )
    objects = [d for d in yaml.safe_load_all(rendered.stdout) if d and d["kind"] in PLURALS]
    assert sorted(o["kind"] for o in objects) == sorted(PLURALS)
    for item in objects:
        item["metadata"]["namespace"] = namespace
        plural = PLURALS[item["kind"]]
        custom.create_namespaced_custom_object(
            GROUP, "v1", namespace, plural, item, field_validation="Strict"
        )
        assert item["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_nothing_of_it_is_rendered_by_default(rig: Rig) -> None:
    """A cluster without the Prometheus Operator installs the chart as it is."""
    assert not any(GROUP in document["apiVersion"] for document in _rendered(rig))


def test_a_pod_monitor_without_a_selector_is_refused(rig: Rig) -> None:
    """It would scrape every pod of the cluster that has a port of that name."""
    with pytest.raises(RigError, match=r"monitoring\.podMonitor\.selector"):
        rig.helm(
            "template",
            RELEASE,
            str(CHART),
            KUBE_VERSION,
            "--set=monitoring.podMonitor.enabled=true",
        )


def test_the_chart_s_rules_link_to_where_the_pages_are(rig: Rig) -> None:
    """monitoring.prometheusRule.runbooks is the address in front of each page."""
    address = "https://runbooks.example.com/servingslo/"
    settings = (*ON, f"monitoring.prometheusRule.runbooks={address}")
    text = rig.helm(
        "template", RELEASE, str(CHART), KUBE_VERSION, *(f"--set={s}" for s in settings)
    ).stdout
    (rule,) = (d for d in yaml.safe_load_all(text) if d and d["kind"] == "PrometheusRule")
    alerts = [r for group in rule["spec"]["groups"] for r in group["rules"] if "alert" in r]
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"{address}{alert['alert']}.md"


@pytest.mark.parametrize(("tick", "seconds"), [(1, 120), (60, 120), (300, 600)])
def test_an_operator_is_silent_after_two_ticks_or_two_minutes(tick: int, seconds: int) -> None:
    """Between two long ticks the last one is old, and nothing is wrong."""
    text = rendered_with(*ON, f"tickSeconds={tick}")
    (rule,) = (d for d in yaml.safe_load_all(text) if d and d["kind"] == "PrometheusRule")
    alerts = {r.get("alert"): r for group in rule["spec"]["groups"] for r in group["rules"]}
    expression = alerts["ServingSLOOperatorSilent"]["expr"]
    assert f"min(servingslo_last_success_age_seconds) > {seconds}\n" in expression


def test_the_dashboard_is_a_config_map_for_the_sidecar(rig: Rig) -> None:
    """The generated file as it stands, under the label that Grafana's sidecar looks for."""
    documents = _rendered(rig, "monitoring.dashboard.enabled=true")
    (found,) = (d for d in documents if d["kind"] == "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    board = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    assert json.loads(found["data"]["servingslo.json"]) == board
