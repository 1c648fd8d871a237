"""A proven lower bound on the cost of a trace: no schedule, routing or foresight is cheaper.

Replica-hours are at least the engine time of the requests that must be served. A request in SLO is
finished, so its prompt was prefilled and its tokens were emitted, each at its cost in the step law.
Steps also have a fixed cost that the sequences of a step share: at most `max_num_seqs` of them, and
at most as many as fit in the KV cache together. Everything else is omitted: waiting, steps that are
not full, the extra needs of percentiles beyond means, whole replicas, cold starts. The requests
allowed to miss are those with the most work.
"""

import math

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace

# Number of tried splits of the fixed cost between tokens and KV memory. Every split gives a bound,
# so the largest bound is valid. The bound is linear in the split except for the requests allowed to
# miss, so a few splits are enough.
_PARTS = 21


def least_work_seconds(fleet: FleetSpec, trace: Trace, tokens_part: float) -> FloatArray:
    """The least engine time of each request, for any other requests in its steps.

    In a step n sequences emit and k tokens are attended, with n ≤ N = max_num_seqs and k ≤ K = the
    KV cache. So 1 ≥ part·n/N + (1 − part)·k/K, and a request that emits O tokens and attends A in
    all has at least a·(part·O/N + (1 − part)·A/K) of the fixed costs.
    tokens_part: the part, from 0 to 1. Cached tokens of the prompt cost nothing.
    """
    law, limits = fleet.engine_law, fleet.engine_limits
    prompt = trace.prompt_tokens.astype(np.float64)
    output = trace.output_tokens.astype(np.float64)
    attended = (output - 1.0) * (prompt + output / 2.0)
    computed = (1.0 - fleet.cached_ratio) * prompt
    if trace.shared_tokens is not None:
        computed = np.minimum(computed, prompt - trace.shared_tokens)
    fixed = law.step_fixed_seconds * (
        tokens_part * output / limits.max_num_seqs
        + (1.0 - tokens_part) * attended / limits.kv_capacity_tokens
    )
    work: FloatArray = (
        fixed
        + law.step_per_sequence_seconds * output
        + law.prefill_per_token_seconds * computed
        + law.context_per_token_seconds * attended
    )
    return work


def least_replica_hours(fleet: FleetSpec, trace: Trace, objectives: Objectives) -> float:
    """Replica-hours below which no schedule meets the share, at the engine's own limits.

    Raises: InvalidInputError for engines that serve whole batches, because they have another law.
    Work after the end of the trace is not paid for. So a request that may end later within its
    objectives does not count.
    """
    if fleet.dynamic_batching is not None:
        raise InvalidInputError("dynamic_batching", fleet.dynamic_batching, "continuous batching")
    gaps = np.maximum(trace.output_tokens - 1.0, 0.0)
    allowed = np.minimum(
        objectives.ttft_seconds + gaps * objectives.tpot_seconds, objectives.latency_seconds
    )
    inside = trace.arrival_seconds + allowed <= trace.duration_seconds
    served = math.ceil(objectives.share * len(trace) - 1e-9)
    found = 0.0
    for part in np.linspace(0.0, 1.0, _PARTS):
        work = np.where(inside, least_work_seconds(fleet, trace, float(part)), 0.0)
        found = max(found, float(np.partition(work, served - 1)[:served].sum()) if served else 0.0)
    return found / SECONDS_PER_HOUR
