"""Replicas that leave each adapter (LoRA) a slot in the batch of an engine."""

import math

from servingslo.models.engine.adapter_slots import least_engines, waiting_ratio
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.decision_parts import ConstraintNeed, StepValue
from servingslo.policy.replicas.context import TickContext
from servingslo.reasons import Constraint

# A wait for a slot ends only with the last request of another adapter: a miss of these.
DELAYED = frozenset({LatencyMetric.TTFT, LatencyMetric.LATENCY, LatencyMetric.QUEUE_TIME})
# At most twice the serving replicas at once, as for measured saturation: adapters that wait are in
# flight for longer, so their number is overestimated until they have slots.
LARGEST_RATIO = 2


def adapter_slots_need(context: TickContext) -> tuple[ConstraintNeed, dict[str, StepValue]] | None:
    """The need, and its numbers; None without more adapters in flight than slots.

    The share of requests that find no slot is at most that which the objectives may miss. An
    objective on tokens alone is not delayed by a slot.
    """
    models = context.estimate.models
    delayed = [one.percentile for one in context.targets.objectives if one.metric in DELAYED]
    if models is None or models.slots is None or not delayed:
        return None
    requests = [one.value for one in models.adapter_requests]
    if len(requests) <= models.slots:
        return None
    allowed = 1.0 - max(delayed) / 100.0
    each = context.estimate.engines_per_pod
    serving = max(len(context.serving), 1)
    most = LARGEST_RATIO * serving
    engines = least_engines(requests, models.slots, allowed, most * each)
    replicas = most if engines is None else math.ceil(engines / each)
    need = ConstraintNeed(constraint=Constraint.ADAPTER_SLOTS, replicas=replicas)
    return need, {
        "adapters": len(requests),
        "adapter_slots": models.slots,
        "adapters_waiting": models.adapters_waiting,
        "waiting_ratio": waiting_ratio(requests, models.slots, serving * each),
    }
