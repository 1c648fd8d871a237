"""The verdict on a crowd: it rests on clients' records and Envoy's counters, and it can fail."""

import dataclasses

import pytest

from servingslo_lab.cli.demo.crowd_verdict import (
    ArmFigures,
    figures_of,
    missed,
    not_enforced,
    table,
)
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending

OFF = ArmFigures(
    name="off", requests=1000, admitted=1000, admitted_in_slo=600, refused=0, refusals=0, broken=0,
    overflows=0, unserved=0, replica_seconds=3600.0,
)  # fmt: skip
ON = ArmFigures(
    name="on", requests=1000, admitted=900, admitted_in_slo=890, refused=100, refusals=100,
    broken=0, overflows=100, unserved=0, replica_seconds=3600.0, bounds=(40, 60),
)  # fmt: skip


def record(ending: Ending, *, ttft: float | None = 0.2, seconds: float = 1.0) -> ClientRecord:
    """Of a request for eleven tokens."""
    return ClientRecord(
        arrival_seconds=0.0, ending=ending, seconds=seconds, ttft_seconds=ttft, output_tokens=11,
        attempts=1, refusals=int(ending is Ending.REFUSED),
    )  # fmt: skip


def test_figures_are_those_of_the_records() -> None:
    """Refused ones were not let in; broken, timed out and late ones were, and missed."""
    records = [
        record(Ending.FINISHED),
        record(Ending.FINISHED, ttft=1.5, seconds=2.0),
        record(Ending.FINISHED, seconds=3.0),
        record(Ending.REFUSED, ttft=None),
        record(Ending.BROKEN, ttft=None),
        record(Ending.TIMED_OUT),
    ]
    found = figures_of(
        "on", records, ttft_seconds=1.0, tpot_seconds=0.1, overflows=1.0, unserved=0.0,
        replica_seconds=7200.0, bounds=[3],
    )  # fmt: skip
    assert (found.requests, found.admitted, found.admitted_in_slo) == (6, 5, 1)
    assert (found.refused, found.broken) == (1, 2)
    assert found.in_slo_ratio == pytest.approx(1 / 6)
    assert found.admitted_in_slo_ratio == pytest.approx(1 / 5)
    assert "2.000" in table([found])


def test_a_run_that_keeps_every_promise_has_no_complaint() -> None:
    """Bound enforced, admitted requests good, more of all, at no more cost."""
    assert not_enforced(ON) == ""
    assert missed(OFF, ON) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({"bounds": ()}, "wrote no bound", id="nothing written"),
        pytest.param({"overflows": 0}, "never reached Envoy", id="never reached Envoy"),
        pytest.param({"refusals": 160}, "something else refuses", id="somebody else refuses"),
    ],
)
def test_a_bound_that_is_not_enforced_is_found_out(change: dict[str, object], told: str) -> None:
    """Whatever the shares are: a run without a bound in force shows nothing."""
    assert told in not_enforced(dataclasses.replace(ON, **change))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({"admitted_in_slo": 870}, "98% is promised", id="late ones let in"),
        pytest.param({"admitted": 600, "admitted_in_slo": 600}, "of all requests", id="too many"),
        pytest.param({"replica_seconds": 3700.0}, "replica-hours", id="dearer"),
    ],
)
def test_each_promise_that_is_missed_is_told(change: dict[str, object], told: str) -> None:
    """With both figures."""
    assert told in "; ".join(missed(OFF, dataclasses.replace(ON, **change)))
