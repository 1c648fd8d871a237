"""How GPUs are reported: condition, log line, explain, gauges and status, with the numbers."""

from dataclasses import replace

import pytest
from tests.golden.decisions import SCALE_UP

from servingslo.adapters.gauges import metric_samples
from servingslo.controller.reporting.status import status_fields
from servingslo.estimation.pods.gpus import GpuUse
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.document import as_dict
from servingslo.explain.log_line import log_line, material_change
from servingslo.explain.text import text
from servingslo.policy.decision import Decision
from servingslo.reasons import Reason

GPUS = GpuUse(
    utilization_ratio=0.962,
    law_ratio=0.284,
    standard_error_ratio=0.02,
    power_watts=1853.0,
    joules_per_token=11.154,
    pods=4,
    ready_pods=5,
)
GAUGES = {
    "servingslo_gpu_utilization_ratio": 0.962,
    "servingslo_gpu_law_utilization_ratio": 0.284,
    "servingslo_gpu_power_watts": 1853.0,
    "servingslo_joules_per_output_token": 11.154,
}


def _refuted() -> Decision:
    model = replace(SCALE_UP.model, trusted=False, reason=Reason.GPUS_DISAGREE)
    return replace(SCALE_UP, gpus=GPUS, model=model)


def _status(decision: Decision) -> dict:
    return status_fields(decision, generation=1, last_batch_change_seconds=None)


def test_a_refuted_law_is_reported_everywhere_with_both_shares() -> None:
    """The condition, the log line, a line of its own, and explain."""
    refuted = _refuted()
    verdict = verdicts(refuted)[ConditionType.MODEL_TRUSTED]
    assert (verdict.status, verdict.reason) == (ConditionStatus.FALSE, Reason.GPUS_DISAGREE)
    assert verdict.message == (
        "GPUs are busy 96.2 % of the time, the law explains 28.4 %; "
        "measured saturation decides meanwhile"
    )
    assert " law=GPUsDisagree gpu_busy=0.96 law_busy=0.28 joules_per_token=11.2 " in log_line(
        refuted
    )
    assert material_change(replace(SCALE_UP, gpus=GPUS), refuted)
    told = text(refuted)
    assert "not trusted (GPUsDisagree)" in told
    assert "the utilization of the GPUs refutes the law" in told


def test_energy_is_in_explain_gauges_status_and_document() -> None:
    """Joules an output token, power, and how many pods were read."""
    decision = replace(SCALE_UP, gpus=GPUS)
    (line,) = [one for one in text(decision).splitlines() if one.startswith("GPUs:")]
    assert line == (
        "GPUs: busy 96.2 % of the time, the law explains 28.4 % (± 2.0 %); 1850 W; "
        "11.2 J an output token; read of 4 of 5 ready pods"
    )
    told = {sample.name: sample.value for sample in metric_samples(decision)}
    assert {name: told[name] for name in GAUGES} == GAUGES
    assert _status(decision)["gpus"] == {
        "utilization": 0.962,
        "lawUtilization": 0.284,
        "powerWatts": 1850.0,
        "joulesPerToken": 11.2,
    }
    assert as_dict(decision)["gpus"]["joulesPerToken"] == pytest.approx(11.154, rel=0.01)


def test_what_is_not_exported_is_said_to_be_absent() -> None:
    """In explain and status; no gauge has a sample."""
    decision = replace(SCALE_UP, gpus=GpuUse(ready_pods=5, missing="GPU metrics"))
    assert "GPUs: not exported: GPU metrics" in text(decision)
    assert _status(decision)["gpus"] == {"missing": "GPU metrics"}
    assert not {sample.name for sample in metric_samples(decision)} & GAUGES.keys()


def test_without_gpus_nothing_is_said() -> None:
    """A workload without devices has neither line nor field."""
    assert "GPU" not in text(SCALE_UP)
    assert _status(SCALE_UP)["gpus"] is None
    assert "gpus" not in as_dict(SCALE_UP)
