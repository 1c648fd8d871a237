"""The law and limits of the cards that tests of models and of sizing share.

Those of the simulation that the measured figures of continuous batching are from: a card with room
for every sequence, and one whose KV cache binds first.
"""

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw

H100 = ServiceLaw(
    step_fixed_seconds=6.5e-3,
    step_per_sequence_seconds=4e-5,
    prefill_per_token_seconds=3e-5,
    context_per_token_seconds=5e-8,
)
H100_LIMITS = EngineLimits(
    max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=400_000
)
L4 = ServiceLaw(
    step_fixed_seconds=15e-3,
    step_per_sequence_seconds=15e-5,
    prefill_per_token_seconds=8e-5,
    context_per_token_seconds=4e-7,
)
L4_LIMITS = EngineLimits(max_num_seqs=64, max_num_batched_tokens=2048, kv_capacity_tokens=60_000)
