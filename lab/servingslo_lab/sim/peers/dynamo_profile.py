"""The profile that Dynamo's planner begins with: decode steps over contexts and batches.

Its profiler estimates or measures such steps before a deployment; aggregated engines get the decode
sweep. Here the steps are exact, so this is its planner at its best. It learns the cost of prefill
from the steps that it observes.
Source: ai-dynamo 1.6.1, dynamo/planner/monitoring/aic_interpolation.py (_sweep_decode,
_concurrency_sweep), core/adapters.py (AggPlanner).
"""

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.fleets.events import EngineStep

# Prompts from 100 tokens to the longest context less the outputs of the sweep, which have 500.
_LEAST_PROMPT, _OUTPUT, _LONGEST_CONTEXT = 100, 500, 8192
# The deployment chooses the granularity; six by six steps leave room in the 64 that it keeps.
_GRANULARITY = 6


def profiled_steps(law: ServiceLaw, limits: EngineLimits) -> list[EngineStep]:
    """The sweep for an engine; batches up to the least of its sequences and its memory."""
    found = []
    stride = (_LONGEST_CONTEXT - _OUTPUT) // _GRANULARITY
    for prompt in range(_LEAST_PROMPT, _LONGEST_CONTEXT - _OUTPUT, stride):
        most = min(limits.max_num_seqs, int(limits.kv_capacity_tokens // (prompt + _OUTPUT)))
        found += [decode_step(law, batch, prompt + _OUTPUT // 2) for batch in _batches(most)]
    return found


def _batches(most: int) -> list[int]:
    if most <= _GRANULARITY:
        return list(range(1, most + 1))
    stride = (most - 1) / (_GRANULARITY - 1)
    return sorted({1 + round(place * stride) for place in range(_GRANULARITY)})


def decode_step(law: ServiceLaw, batch: int, context: int) -> EngineStep:
    """One step in which each of `batch` sequences of `context` tokens gets a token."""
    return EngineStep(
        duration_seconds=(
            law.step_fixed_seconds
            + law.step_per_sequence_seconds * batch
            + law.context_per_token_seconds * batch * context
        ),
        decoding=batch,
        context_tokens=batch * context,
    )
