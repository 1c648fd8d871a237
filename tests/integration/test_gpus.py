"""GPUs on the rig: the energy of a token, by a DCGM page that Prometheus scrapes."""

from pathlib import Path

from tests.integration.operator_under_test import LENGTH_SPREAD, Operator, Tenant, steady_trace
from tests.integration.test_pools import LAW

from servingslo_lab.rig.simulated.engine_metrics import GPUReading

# A small card is idle most of the time.
RATE_PER_SECOND = 0.1
PATIENCE_SECONDS = 60.0


def test_the_energy_of_a_token_is_reported(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """Power within that of the card, and joules of a token, in the status and as a gauge."""
    tenant.create_deployment(replicas=1)
    tenant.wait(lambda: tenant.ready_replicas() == 1, what="an engine")
    trace = steady_trace(
        tmp_path / "trace.csv", rate=RATE_PER_SECOND, seconds=120.0, spread=LENGTH_SPREAD
    )
    tenant.begin_traffic(trace, duration_seconds=900)
    tenant.create_slo(serviceLaw=LAW, mode="Recommend")
    tenant.wait(
        lambda: bool(tenant.status().get("gpus", {}).get("joulesPerToken")),
        what="the energy of a token",
        timeout_seconds=PATIENCE_SECONDS,
    )
    told = tenant.status()["gpus"]
    fields = GPUReading.__dataclass_fields__
    least, most = fields["idle_watts"].default, fields["busy_watts"].default
    assert least <= told["powerWatts"] <= most
    assert "missing" not in told
    sample = "servingslo_joules_per_output_token"
    tenant.wait(lambda: sample in operator.metrics(), what=sample)
