"""Replicas follow the load, across restarts of the operator and edits by hand."""

from pathlib import Path

import pytest
from tests.integration.operator_under_test import (
    LENGTH_SPREAD,
    Operator,
    Tenant,
    steady_trace,
    ticks_pass,
)

from servingslo.controller.recordings.recording import replay
from servingslo.explain.log_line import log_line, material_change

# One replica of these engines serves about six such requests per second.
SURGE_PER_SECOND = 12.0
CALM_PER_SECOND = 1.0
# A law needs eight windows of 1 s after the first scrape, and as many more as a busy machine makes
# unfit for it.
FITTED_WITHIN_SECONDS = 120.0
# Of the simulated small card, as the catalogue has it.
LAW = {
    "stepFixedSeconds": 0.015,
    "stepPerSequenceSeconds": 0.00015,
    "prefillPerTokenSeconds": 0.00008,
    "contextPerTokenSeconds": 0.0000004,
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the operator of this module records what it sees."""
    return tmp_path_factory.mktemp("recording") / "observations.jsonl"


@pytest.fixture(scope="module")
def operator_settings(recording: Path) -> tuple[str, ...]:
    """The operator records."""
    return (f"--record={recording}",)


def wait_line(tenant: Tenant, operator: Operator, needle: str) -> None:
    """Wait for a decision's line with this in it: counts and events are written before it."""
    tenant.wait(
        lambda: bool(operator.log_lines("decided", tenant.namespace, needle)),
        what=f"a line with {needle!r}",
    )


@pytest.mark.slow("servingslo.policy.replicas", "servingslo.estimation", "servingslo.controller")
def test_replicas_follow_the_load(tenant: Tenant, operator: Operator, tmp_path: Path) -> None:
    """Under load replicas are added, and taken away after it; each with a log line."""
    tenant.create_deployment(replicas=1)
    tenant.create_slo()
    tenant.wait_condition("MetricsFresh", "True")
    surge = steady_trace(tmp_path / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
    tenant.begin_traffic(surge, duration_seconds=600)
    tenant.wait(lambda: tenant.replicas() > 1, what="a scale-up", timeout_seconds=120)
    wait_line(tenant, operator, "action=scale-up")
    tenant.end_traffic()
    peak = tenant.replicas()
    tenant.wait(lambda: tenant.replicas() < peak, what="a scale-down", timeout_seconds=240)
    wait_line(tenant, operator, "action=scale-down")


@pytest.mark.slow("servingslo.estimation.law", "servingslo.policy.replicas")
def test_a_new_workload_is_planned_by_the_law_of_its_spec_until_one_is_fitted(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """The API server takes the law, the planner uses it at once, and events tell both changes."""
    tenant.create_deployment(replicas=1)
    tenant.begin_traffic(
        steady_trace(tmp_path / "new.csv", rate=6.0, seconds=300, spread=LENGTH_SPREAD)
    )
    tenant.create_slo(serviceLaw=LAW)
    assert "spec.serviceLaw" in tenant.wait_event("LawFromSpec")
    wait_line(tenant, operator, " law=spec ")
    trusted = tenant.wait_event("ModelTrusted", timeout_seconds=FITTED_WITHIN_SECONDS)
    assert trusted.startswith("service law from fit")


@pytest.mark.slow(
    "servingslo.policy.pools.stored", "servingslo.policy.stored_state", "servingslo.handlers"
)
def test_a_restart_in_mid_scaling_continues_without_a_scaling_action(
    tenant: Tenant, operator: Operator
) -> None:
    """An operator that starts while ordered pods are not ready orders nothing anew."""
    tenant.create_deployment(replicas=1, ready_delay="20s")
    tenant.create_slo(replicas={"min": 3, "max": 8})
    tenant.wait(lambda: tenant.replicas() == 3, what="a scale-up")
    tenant.wait_event("Scaled")
    assert tenant.ready_replicas() < 3
    before = len(operator.log_lines(tenant.namespace, "action=scale-"))
    operator.stop()
    operator.start()
    ticks_pass(operator)
    assert tenant.ready_replicas() < 3
    tenant.wait(lambda: tenant.ready_replicas() == 3, what="ready", timeout_seconds=60)
    ticks_pass(operator)
    assert tenant.replicas() == 3
    assert len(operator.log_lines(tenant.namespace, "action=scale-")) == before


def test_what_was_learnt_survives_a_restart(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """A new operator begins with the lengths and the law that the one before wrote to status."""
    tenant.create_deployment(replicas=2)
    tenant.create_slo()
    tenant.wait_condition("MetricsFresh", "True")
    calm = steady_trace(tmp_path / "calm.csv", rate=CALM_PER_SECOND, seconds=30)
    tenant.begin_traffic(calm, duration_seconds=600)
    tenant.wait(lambda: "learned" in tenant.status(), what="something is learnt")
    saved = tenant.status()["learned"]
    operator.stop()
    operator.start()
    tenant.wait_reconciled()
    ticks_pass(operator)
    assert tenant.status()["learned"] == saved
    assert tenant.replicas() == 2
    assert len(tenant.status()["decisions"]) <= 3


def test_a_recording_gives_the_same_decisions_again(
    tenant: Tenant, operator: Operator, recording: Path, tmp_path: Path
) -> None:
    """What the operator recorded makes, offline, exactly the lines that it logged live.

    The history that it read of the workload is part of the recording, once more where a season is
    stated.
    """
    tenant.create_deployment(replicas=1)
    tenant.create_slo()
    calm = steady_trace(tmp_path / "calm.csv", rate=CALM_PER_SECOND, seconds=30)
    tenant.begin_traffic(calm, duration_seconds=600)
    tenant.wait_condition("MetricsFresh", "True")
    tenant.patch_slo({"replicas": {"min": 3, "max": 4}})
    tenant.wait(lambda: tenant.ready_replicas() == 3, what="3 ready")
    ticks_pass(operator)
    tenant.patch_slo({"forecast": {"season": "1d"}})
    ticks_pass(operator, 2)
    tenant.delete_slo()
    ticks_pass(operator, 2)
    again: list[str] = []
    histories = 0
    last = None
    for entry in replay(recording.read_text(encoding="utf-8").splitlines()):
        histories += (
            entry.decision.namespace == tenant.namespace and entry.observation.history is not None
        )
        if entry.decision.namespace == tenant.namespace and material_change(last, entry.decision):
            last = entry.decision
            again.append(log_line(entry.decision))
    live = [
        line[line.index("decided ") :] for line in operator.log_lines("decided", tenant.namespace)
    ]
    assert again == live
    assert histories == 2
    assert any("action=scale-up" in line for line in live)
