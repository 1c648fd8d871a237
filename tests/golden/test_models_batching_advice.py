"""What to do about a dynamic batcher: the book's table on its own worked numbers."""

import math

import pytest
from tests.textbook.batching import BatchLaw, textbook_batch_response
from tests.textbook.batching_advice import batch_findings

# λ = 100/s, T_fixed = 50 ms, t_req = 0.5 ms, ρ* = 0.75: the least batch is 7.14.
# Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations".
LAW = BatchLaw(fixed_seconds=0.050, per_request_seconds=0.0005)
RATE_PER_SECOND = 100.0
TARGET = 0.75
# p99 of an exponential-like tail, −ln(0.01) times the mean.
TAIL = -math.log(0.01)


def found(batch, objective, rate=RATE_PER_SECOND):
    """Symptoms with their remedies, in words."""
    mean = textbook_batch_response(LAW, rate, batch).response_seconds
    findings = batch_findings(
        LAW,
        rate,
        batch,
        p99_seconds=TAIL * mean,
        objective_seconds=objective,
        utilization_target=TARGET,
    )
    return {one.symptom.value: {remedy.value for remedy in one.remedies} for one in findings}


@pytest.mark.parametrize(
    ("batch", "objective", "expected"),
    [
        pytest.param(
            4,
            1.0,
            {
                "batch-too-small": {"more-replicas"},
                "objective-missed": {"more-replicas"},
                "busy": {"more-replicas"},
            },
            id="4-unstable-so-late-too",
        ),
        pytest.param(8, 1.0, {}, id="8-as-it-should-be"),
        pytest.param(
            8, 0.5, {"objective-missed": {"smaller-batch", "more-replicas"}}, id="8-too-slow"
        ),
        pytest.param(16, 1.0, {"idle": {"fewer-replicas"}}, id="16-idle"),
        pytest.param(
            32, 1.0, {"objective-missed": {"smaller-batch"}, "idle": set()}, id="32-waits-to-fill"
        ),
    ],
)
def test_the_table_on_the_worked_numbers(batch, objective, expected):
    """ρ is 1.30, 0.675, 0.363 and 0.206; opposite remedies are not both advised, nor either."""
    assert found(batch, objective) == expected


def test_a_batch_that_is_too_small_and_quick_enough_may_grow():
    """At ρ = 0.8 with a target of 0.75, no row is contradicted."""
    rate = 0.8 * LAW.throughput_per_second(8)
    assert found(8, 10.0, rate) == {"batch-too-small": {"larger-batch", "more-replicas"}}


def test_where_no_batch_is_enough_only_replicas_help():
    """1,500/s at 0.5 ms each leave nothing of a utilization of 0.75."""
    findings = batch_findings(
        LAW, 1500.0, 64, p99_seconds=0.1, objective_seconds=1.0, utilization_target=TARGET
    )
    assert {remedy.value for one in findings for remedy in one.remedies} == {"more-replicas"}


@pytest.mark.parametrize(
    ("utilization", "symptoms"),
    [
        pytest.param(0.499, {"idle"}, id="below-a-half"),
        pytest.param(0.501, set(), id="a-half"),
        pytest.param(0.849, set(), id="at-the-ceiling"),
        pytest.param(0.851, {"busy"}, id="above-the-ceiling"),
    ],
)
def test_utilization_alone_speaks_below_a_half_and_above_the_ceiling(utilization, symptoms):
    """0.5 and 0.85; the least batch is held against a target of its own."""
    rate = utilization * LAW.throughput_per_second(8)
    findings = batch_findings(
        LAW, rate, 8, p99_seconds=0.1, objective_seconds=1.0, utilization_target=1.0
    )
    assert {one.symptom.value for one in findings} == symptoms
