"""An operator that reads a gateway: its count is what the decision is made of."""

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from tests.integration.operator_under_test import Operator, Tenant, steady_trace
from tests.planned_decisions import decisions_of

from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.cli.live import Access
from servingslo.explain.log_line import log_line
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.reasons import Reason
from servingslo.runtimes.gateway_catalogue import NO_GATEWAY, gateway_profile
from servingslo_lab.cli.fitting.sources import LiveSource, live_samples
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.sim.traces.rebuilt import trace_from_metrics

ROUTE = "chat-route"
GATEWAY = "envoy-gateway"
PROFILE = f"--gateway-profile={GATEWAY}"
RATE_PER_SECOND = 12.0
# One engine serves about six a second with this many in flight; the gateway refuses the others.
MAX_IN_FLIGHT = 16
# What is sent past the gateway later.
PAST_RATE_PER_SECOND = 4.0
LONGEST_SECONDS = 240.0
PATIENCE_SECONDS = 60.0
# Decisions that see the same thing, at a tick of one second.
TICKS = 6


@pytest.fixture(scope="module")
def recording_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the operator of this module records."""
    return tmp_path_factory.mktemp("recordings") / "recording.jsonl"


@pytest.fixture(scope="module")
def operator_settings(recording_path: Path) -> tuple[str, ...]:
    """The administrator has Envoy Gateway read."""
    return (PROFILE, f"--record={recording_path}")


@pytest.fixture
def crowded(tenant: Tenant, tmp_path: Path) -> Tenant:
    """A workload in front of which half of the requests are refused."""
    tenant.create_deployment()
    trace = steady_trace(tmp_path / "trace.csv", rate=RATE_PER_SECOND, seconds=LONGEST_SECONDS)
    tenant.begin_traffic(trace, route=ROUTE, max_in_flight=MAX_IN_FLIGHT)
    tenant.create_slo(mode="Recommend", gateway={"name": ROUTE})
    return tenant


def _whole_lines(path: Path) -> str:
    """What is recorded so far; the operator may be in the middle of a line."""
    return path.read_text(encoding="utf-8").rpartition("\n")[0] + "\n"


def _instances(path: Path, namespace: str) -> list[list[dict[str, Any]]]:
    """What each tick of one resource saw of the gateway."""
    lines = [json.loads(line) for line in _whole_lines(path).splitlines() if line]
    seen = [line for line in lines if line.get("namespace") == namespace and "pods" in line]
    return [line["gateway"]["instances"] for line in seen]


def _call(
    rig: Rig, *arguments: str, codes: Collection[int] = (0,)
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "servingslo.cli", *arguments],
        env={**os.environ, "KUBECONFIG": str(rig.admin_kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in codes, done.stderr
    return done


def _replayed(rig: Rig, path: Path, namespace: str) -> list[Decision]:
    made = _call(rig, "plan", "--observations", str(path)).stdout
    return [decision for decision in decisions_of(made) if decision.namespace == namespace]


def _fitted(rig: Rig, namespace: str) -> dict[str, Any]:
    """What `fit` finds in the last seconds, behind the gateway; trusted or not.

    Windows of three seconds: a scrape is stamped up to a second before it is answered.
    """
    done = _call(
        rig, "fit", "--prometheus", rig.prometheus_url, "--namespace", namespace, "--target",
        "Deployment/chat", "--window", "12s", "--step", "3s", PROFILE, "--gateway-name", ROUTE,
        "-o", "json", codes={0, 1},
    )  # fmt: skip
    fit: dict[str, Any] = json.loads(done.stdout)[0]
    return fit


def _rebuilt_per_second(rig: Rig, namespace: str, profile: str) -> float:
    """Requests a second in the trace that a backtest makes of the last seconds."""
    source = LiveSource(
        config=PrometheusConfig(url=rig.prometheus_url, gateway=gateway_profile(profile)),
        access=Access(kubeconfig=rig.admin_kubeconfig, context=None),
        namespace=namespace,
        target="Deployment/chat",
        window_seconds=12.0,
        step_seconds=3.0,
        gateway_name=ROUTE,
    )
    trace = trace_from_metrics(live_samples(source), np.random.default_rng(1))
    return len(trace) / trace.duration_seconds


def _steps(decisions: list[Decision], reason: Reason) -> list[DecisionStep]:
    return [step for decision in decisions for step in decision.steps if step.reason is reason]


@pytest.mark.slow("servingslo.estimation.gateway", "servingslo.adapters.prometheus.gateways")
def test_what_a_gateway_refuses_is_demand_until_it_falls_silent(
    rig: Rig, crowded: Tenant, operator: Operator, recording_path: Path, tmp_path: Path
) -> None:
    """Twelve a second, of which engines see half; without the gateway what they see, not zero."""
    name = crowded.namespace
    crowded.wait(
        lambda: sum(map(bool, _instances(recording_path, name))) > 2 * TICKS,
        what="the gateway counts",
        timeout_seconds=PATIENCE_SECONDS,
    )
    recorded = tmp_path / "recorded.jsonl"
    limits = ("--for", "3s", "--every", "1s", "--prometheus-url", rig.prometheus_url)
    _call(rig, "record", f"{name}/chat", "--out", str(recorded), *limits, PROFILE)
    fitted = _fitted(rig, name)
    rebuilt = {one: _rebuilt_per_second(rig, name, one) for one in (GATEWAY, NO_GATEWAY)}
    crowded.end_traffic()
    past = steady_trace(tmp_path / "past.csv", rate=PAST_RATE_PER_SECOND, seconds=LONGEST_SECONDS)
    crowded.begin_traffic(past)
    before = len(_instances(recording_path, name))
    crowded.wait(
        lambda: _instances(recording_path, name)[before:].count([]) > TICKS,
        what="the gateway is silent",
        timeout_seconds=PATIENCE_SECONDS,
    )
    crowded.delete_slo()
    crowded.wait(lambda: not crowded.slo_exists(), what="the resource is gone")
    # What is told was recorded before: a tick may be under way.
    live = [line[line.index("decided ") :] for line in operator.log_lines("decided ", name)]
    copy = tmp_path / "copy.jsonl"
    copy.write_text(_whole_lines(recording_path))
    decisions = _replayed(rig, copy, name)

    # What is refused comes in turns, as slots are freed: a window of a scrape or two says little.
    counted = _steps(decisions, Reason.GATEWAY_COUNTS)[TICKS:]
    assert fmean(float(step.before or 0.0) for step in counted) < 0.7 * RATE_PER_SECOND
    assert fmean(float(step.after or 0.0) for step in counted) == pytest.approx(
        RATE_PER_SECOND, rel=0.25
    )
    refused = fmean(float(step.inputs["refused_per_second"] or 0.0) for step in counted)
    assert refused > 0.3 * RATE_PER_SECOND
    # A scrape is stamped when it begins: on a busy machine a single window of a second is off.
    silent = _steps(decisions, Reason.GATEWAY_SILENT)[-TICKS:]
    assert fmean(float(step.after or 0.0) for step in silent) == pytest.approx(
        PAST_RATE_PER_SECOND, rel=0.3
    )
    # The operator said the same as its replay does, and a recording beside it held the same.
    told = {log_line(decision) for decision in decisions}
    assert live
    assert [line for line in live if line not in told] == []
    assert all(instances[0]["requests_total"] > 0 for instances in _instances(recorded, name))
    assert _steps(_replayed(rig, recorded, name), Reason.GATEWAY_COUNTS)
    # A fit reads the same gateway.
    assert fitted["gateway"] == Reason.GATEWAY_COUNTS.value
    assert fitted["arrival_rate_per_second"] > 0.7 * RATE_PER_SECOND
    # A trace that is rebuilt of the same seconds has what the gateway refused.
    assert rebuilt[NO_GATEWAY] < 0.7 * RATE_PER_SECOND < rebuilt[GATEWAY]
