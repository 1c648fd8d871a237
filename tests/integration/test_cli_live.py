"""The commands that read a live cluster, beside a running operator that records itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator_under_test import Operator, Tenant, steady_trace
from tests.integration.prometheus_world import proxying
from tests.planned_decisions import decisions_of

from servingslo.explain.log_line import log_line
from servingslo.policy.decision import Decision
from servingslo_lab.rig.cluster import Rig

RECORDING_NAME = "recording.jsonl"
# Long enough for several decisions with changing counts at a tick of one second.
TRAFFIC_SECONDS = 40.0
# One replica saturates at about 11 requests/s of this length; two carry them.
RATE_PER_SECOND = 12.0
# Sequences at one of them then, about: 128 tokens take three seconds.
RUNNING = 20


@pytest.fixture(scope="module")
def recording_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the operator of this module records."""
    return tmp_path_factory.mktemp("recordings") / RECORDING_NAME


@pytest.fixture(scope="module")
def operator_settings(recording_path: Path) -> tuple[str, ...]:
    """The operator records what it sees."""
    return (f"--record={recording_path}",)


@pytest.fixture
def busy(tenant: Tenant, tmp_path: Path) -> Tenant:
    """A tenant whose workload was scaled up because of its traffic."""
    tenant.create_deployment()
    trace = steady_trace(tmp_path / "trace.csv", rate=RATE_PER_SECOND, seconds=10 * TRAFFIC_SECONDS)
    tenant.begin_traffic(trace)
    tenant.create_slo()
    tenant.wait(
        lambda: tenant.replicas() > 1, what="a second replica", timeout_seconds=4 * TRAFFIC_SECONDS
    )
    return tenant


def call(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`servingslo` as an administrator would call it."""
    return subprocess.run(
        [sys.executable, "-m", "servingslo.cli", *arguments],
        env={**os.environ, "KUBECONFIG": str(rig.admin_kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def decisions(out: str, namespace: str) -> list[Decision]:
    """Decisions of one namespace in the output of `plan`."""
    return [decision for decision in decisions_of(out) if decision.namespace == namespace]


def essence(line: str) -> str:
    """A log line of a decision from its first key on, without the logger's time and level."""
    return line[line.index("decided ") :]


def test_a_replay_makes_the_live_decisions(
    rig: Rig, busy: Tenant, operator: Operator, recording_path: Path, tmp_path: Path
) -> None:
    """Every decision that the operator logged is made again, word for word, number for number."""
    busy.end_traffic()
    busy.delete_slo()
    busy.wait(lambda: not busy.slo_exists(), what="the resource is gone")
    live = [essence(line) for line in operator.log_lines("decided ", busy.namespace)]
    # What others of this module record meanwhile may end in the middle of a line.
    whole = recording_path.read_text(encoding="utf-8").rpartition("\n")[0] + "\n"
    copy = tmp_path / "copy.jsonl"
    copy.write_text(whole)
    replayed = call(rig, "plan", "--observations", str(copy))
    made = decisions(replayed.stdout, busy.namespace)

    lines = {log_line(decision) for decision in made}
    assert len(live) >= 2, live
    assert any("action=scale-up" in line for line in live)
    assert [line for line in live if line not in lines] == []


def test_explain_tells_the_decision_in_the_status(rig: Rig, busy: Tenant) -> None:
    """Text and JSON of one resource, from the cluster."""
    name = f"{busy.namespace}/chat"
    told = call(rig, "explain", name)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"{name} at ")
    assert "Decision: " in told.stdout
    assert "Ready=" in told.stdout
    document = json.loads(call(rig, "explain", name, "-o", "json").stdout)
    assert document["lastDecision"]["action"] in {"hold", "scale-up", "scale-down"}
    assert document["decisions"]


def test_record_sees_what_the_operator_sees_and_writes_nothing(
    rig: Rig, busy: Tenant, tmp_path: Path
) -> None:
    """A recording that plans, with header, every second, of this resource alone."""
    out = tmp_path / "seen.jsonl"
    generation = busy.slo()["metadata"]["generation"]
    managers = {entry["manager"] for entry in busy.slo()["metadata"]["managedFields"]}
    done = call(
        rig, "record", f"{busy.namespace}/chat", "--for", "4s", "--every", "1s", "--out", str(out),
        "--prometheus-url", rig.prometheus_url,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["header"]["spec"]["targetRef"]["name"] == "chat"
    seen = lines[1:]
    assert len(seen) >= 3
    assert {line["namespace"] for line in seen} == {busy.namespace}
    # Prometheus remembers a minute of this workload, which the recording has once.
    (history,) = [line["history"] for line in seen if line["history"] is not None]
    assert history["bin_seconds"] == 300.0
    assert f"{len(seen)} observations in {out}" in done.stderr
    assert "without the past rates" not in done.stderr
    # A pod that was just ordered is not scraped yet.
    engines = [[engine for pod in line["pods"] for engine in pod["engines"]] for line in seen]
    assert all(any(engine["running"] is not None for engine in of_line) for of_line in engines)
    assert {pod["gpu_product"] for pod in seen[-1]["pods"]} <= {"NVIDIA-L4", None}
    assert any(pod["gpu_product"] for pod in seen[-1]["pods"])
    assert call(rig, "plan", "--observations", str(out)).stdout.count("\n") == len(seen)
    assert busy.slo()["metadata"]["generation"] == generation
    assert {entry["manager"] for entry in busy.slo()["metadata"]["managedFields"]} == managers


def test_fit_finds_the_law_in_prometheus_memory(rig: Rig, busy: Tenant, tmp_path: Path) -> None:
    """A law of the engines' size, from the last half minute of scrapes, with token and tenant."""
    token = tmp_path / "token"
    token.write_text("secret\n")

    def fitted() -> dict[str, Any]:
        with proxying(rig.prometheus_url) as proxy:
            proxy.required.update({"Authorization": "Bearer secret", "X-Scope-OrgID": "chat"})
            found = call(
                rig, "fit", "--prometheus", proxy.url, "--namespace", busy.namespace,
                "--target", "Deployment/chat", "--window", "60s", "--step", "2s", "-o", "json",
                "--prometheus-bearer-token-file", str(token), "--prometheus-tenant", "chat",
            )  # fmt: skip
        assert found.returncode in {0, 1}, found.stderr
        fit: dict[str, Any] = json.loads(found.stdout)[0]
        return fit

    # l4-small: 15 ms for a step, 0.15 ms and the context of about 600 tokens for each sequence.
    expected = pytest.approx(0.015 + RUNNING * (0.00015 + 600 * 4e-7), rel=0.15)

    def found() -> bool:
        fit = fitted()
        if fit["window_count"] < 12:
            return False
        law = fit["law"]
        step = law["step_fixed_seconds"] + RUNNING * law["step_per_sequence_seconds"]
        return bool(step == expected)

    # Engines on a clock of their own are late in a window in which the machine is busy.
    busy.wait(found, what="the law from a dozen windows", timeout_seconds=3 * TRAFFIC_SECONDS)


def test_backtest_replays_what_prometheus_remembers(rig: Rig, busy: Tenant, tmp_path: Path) -> None:
    """The requests that were sent, 512 prompt and 128 output tokens each, rebuilt from counters."""
    saved = tmp_path / "rebuilt.csv"

    def rebuilt() -> list[list[str]]:
        done = call(
            rig, "backtest", "--prometheus", rig.prometheus_url, "--namespace", busy.namespace,
            "--target", "Deployment/chat", "--window", "60s", "--step", "2s", "--objective",
            "ttft:p99:2s", "--fleet", "l4-small", "--policy", "static", "--processes", "1",
            "--save-trace", str(saved), "--cache", str(tmp_path / "kept"), "-o", "json",
        )  # fmt: skip
        if done.returncode != 0:
            # Nothing has been served yet.
            assert "--prometheus: samples" in done.stderr, done.stderr
            return []
        assert json.loads(done.stdout)["policies"][0]["policy"] == "static"
        return [line.split(",") for line in saved.read_text().splitlines()[1:]]

    busy.wait(
        lambda: len(rebuilt()) >= 30.0 * RATE_PER_SECOND,
        what="half a minute of requests",
        timeout_seconds=3 * TRAFFIC_SECONDS,
    )
    rows = rebuilt()
    # Half a minute is known, and scrapes of the last seconds may have failed on a busy machine. A
    # scrape is stamped when it begins and may take a second: one at either end, of twenty.
    last = [row for row in rows if 34.0 <= float(row[0]) < 54.0]
    assert len(last) / 20.0 == pytest.approx(RATE_PER_SECOND, rel=0.15)
    prompts, outputs = ([float(row[place]) for row in rows] for place in (1, 2))
    assert sum(prompts) / len(prompts) == pytest.approx(512, rel=0.1)
    assert sum(outputs) / len(outputs) == pytest.approx(128, rel=0.1)
