"""What people see of a running operator: dashboard, table of all resources, a day back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.dashboards.servingslo import queries
from tests.integration.operator_under_test import Operator, Tenant, steady_trace
from tests.integration.promql import series_of

from servingslo_lab.rig.cluster import Rig

# More than the one replica that the resource allows carries: it is limited and misses.
RATE_PER_SECOND = 12.0
TRAFFIC_SECONDS = 300.0
PATIENCE_SECONDS = 120.0


@pytest.fixture
def seen(rig: Rig, operator: Operator, tenant: Tenant, tmp_path: Path) -> Tenant:
    """A busy tenant with a price, whose operator Prometheus scrapes."""
    address = operator.metrics_address
    rig.configure_prometheus(static_targets={"servingslo": [address]})
    tenant.create_deployment()
    trace = steady_trace(tmp_path / "trace.csv", rate=RATE_PER_SECOND, seconds=TRAFFIC_SECONDS)
    tenant.begin_traffic(trace)
    tenant.create_slo(
        replicas={"min": 1, "max": 3},
        cost={"gpuHourly": 2.5, "currency": "USD", "gpusPerReplica": 1},
    )
    return tenant


def _call(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "servingslo.cli", *arguments],
        env={"KUBECONFIG": str(rig.admin_kubeconfig), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_panel_answers_and_tables_tell_the_same(rig: Rig, seen: Tenant) -> None:
    """Each query of the dashboard has data; `top` and `history` show the resource."""

    def expression(query: str) -> str:
        chosen = query.replace("$namespace", seen.namespace).replace("$name", "chat")
        chosen = chosen.replace("$pool", ".*")
        return chosen.replace("$__rate_interval", "30s")

    # This resource has a single target, no classes and no backlog. Growth has data only while it
    # misses, so a panel that once had data is not asked again.
    empty = {
        (panel, query)
        for panel, query in queries()
        if not any(one in query for one in ('pool!=""', "servingslo_class_", "servingslo_backlog_"))
    }

    def answered() -> bool:
        for panel, query in list(empty):
            if series_of(rig.prometheus_url, expression(query)):
                empty.discard((panel, query))
        return not empty

    try:
        seen.wait(answered, what="data in every panel", timeout_seconds=PATIENCE_SECONDS)
    except Exception as error:
        error.add_note(f"without data: {empty}")
        raise

    table = _call(rig, "top", "-n", seen.namespace)
    assert table.returncode == 0, table.stderr
    head, row = table.stdout.splitlines()
    assert head.startswith("NAMESPACE")
    assert row.split()[:3] == [seen.namespace, "chat", "Deployment/chat"]
    told = json.loads(_call(rig, "top", "-A", "-o", "json").stdout)
    (ours,) = (one for one in told if one["namespace"] == seen.namespace)
    assert ours["desired_replicas"] == seen.replicas()
    assert ours["currency"] == "USD"

    where = (f"{seen.namespace}/chat", f"--prometheus-url={rig.prometheus_url}", "--since=2m")
    back = _call(rig, "history", *where, "--every=5s", "-o", "json")
    assert back.returncode == 0, back.stderr
    last = json.loads(back.stdout)[-1]
    assert last["replicas_greatest"] >= 1
    assert last["arrivals_per_second"] > 0
    assert set(last["within_ratio"]) == {"ttft p95", "tpot p95"}
    nothing = _call(rig, "history", f"{seen.namespace}/other", *where[1:])
    assert nothing.returncode == 1
    assert "nothing in Prometheus" in nothing.stdout
