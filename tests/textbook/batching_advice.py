"""What to do about a dynamic batcher that is seen to be in trouble, or to have too much.

The book's table of symptoms and remedies, for what is measured on one replica. The operator does
not decide by it: it searches replicas and limits by predictions. It is for servers whose percentile
is measured and not predicted.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from tests.textbook.batching import BatchLaw, least_batch

# Below the first, replicas are idle for half of the time; above the second, waits grow faster than
# load. Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", table 2.
IDLE_UTILIZATION = 0.5
BUSY_UTILIZATION = 0.85


class BatchSymptom(StrEnum):
    """What is wrong."""

    BATCH_TOO_SMALL = "batch-too-small"
    OBJECTIVE_MISSED = "objective-missed"
    IDLE = "idle"
    BUSY = "busy"


class BatchRemedy(StrEnum):
    """What helps."""

    LARGER_BATCH = "larger-batch"
    SMALLER_BATCH = "smaller-batch"
    MORE_REPLICAS = "more-replicas"
    FEWER_REPLICAS = "fewer-replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinding:
    """A symptom, and the remedies of which one is enough; none where others contradict it."""

    symptom: BatchSymptom
    remedies: tuple[BatchRemedy, ...]


_REMEDIES = {
    BatchSymptom.BATCH_TOO_SMALL: (BatchRemedy.LARGER_BATCH, BatchRemedy.MORE_REPLICAS),
    BatchSymptom.OBJECTIVE_MISSED: (BatchRemedy.SMALLER_BATCH, BatchRemedy.MORE_REPLICAS),
    BatchSymptom.IDLE: (BatchRemedy.FEWER_REPLICAS,),
    BatchSymptom.BUSY: (BatchRemedy.MORE_REPLICAS,),
}
_OPPOSITE = {
    BatchRemedy.LARGER_BATCH: BatchRemedy.SMALLER_BATCH,
    BatchRemedy.SMALLER_BATCH: BatchRemedy.LARGER_BATCH,
    BatchRemedy.MORE_REPLICAS: BatchRemedy.FEWER_REPLICAS,
    BatchRemedy.FEWER_REPLICAS: BatchRemedy.MORE_REPLICAS,
}


def batch_findings(
    law: BatchLaw,
    arrival_rate_per_second: float,
    batch_count: int,
    *,
    p99_seconds: float,
    objective_seconds: float,
    utilization_target: float = BUSY_UTILIZATION,
) -> tuple[BatchFinding, ...]:
    """What is wrong with one replica at this batch and rate, in the order of the table.

    arrival_rate_per_second: of the replica, above 0. batch_count: 1 or more. p99_seconds: measured
    where it can be, inf where nothing ends. utilization_target: above 0, at most 1, for the least
    batch. Where two symptoms ask for opposite things, neither is advised: a batch that is too small
    and too slow needs more replicas, an idle replica that is too slow a smaller batch. Where no
    batch is large enough, a larger one is not advised.
    Source: Machine Learning Systems, appendix "Inference Foundations", table 2 and equation 2; what
    to do where rows contradict each other is ours.
    """
    least = least_batch(law, arrival_rate_per_second, utilization_target)
    utilization = arrival_rate_per_second / law.throughput_per_second(batch_count)
    seen = {
        BatchSymptom.BATCH_TOO_SMALL: batch_count < least,
        BatchSymptom.OBJECTIVE_MISSED: p99_seconds > objective_seconds,
        BatchSymptom.IDLE: utilization < IDLE_UTILIZATION,
        BatchSymptom.BUSY: utilization > BUSY_UTILIZATION,
    }
    found = [symptom for symptom, holds in seen.items() if holds]
    asked = {remedy for symptom in found for remedy in _REMEDIES[symptom]}
    refused = {_OPPOSITE[remedy] for remedy in asked}
    if math.isinf(least):
        refused.add(BatchRemedy.LARGER_BATCH)
    return tuple(
        BatchFinding(
            symptom=symptom,
            remedies=tuple(r for r in _REMEDIES[symptom] if r not in refused),
        )
        for symptom in found
    )
