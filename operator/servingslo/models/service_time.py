"""The service law of one engine: how long a step takes."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLaw:
    """Step time of continuous batching: τ = a + b·n + c·p + d·k, in seconds.

    n decoding sequences, p prompt tokens prefilled in the step, k context tokens attended by the
    decoding sequences. Affine from about four sequences upwards; one to three sequences deviate.
    Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", equation 1,
    extended by prefill and context terms.
    """

    step_fixed_seconds: float
    step_per_sequence_seconds: float
    prefill_per_token_seconds: float
    context_per_token_seconds: float = 0.0

    def step_seconds(
        self, sequence_count: float, prefill_tokens: float = 0.0, context_tokens: float = 0.0
    ) -> float:
        """Duration of one step, in seconds."""
        return (
            self.step_fixed_seconds
            + self.step_per_sequence_seconds * sequence_count
            + self.prefill_per_token_seconds * prefill_tokens
            + self.context_per_token_seconds * context_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits in force on one engine.

    max_num_seqs: most sequences running at once. max_num_batched_tokens: token budget of a step.
    kv_capacity_tokens: tokens that the KV cache holds.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_capacity_tokens: float
    kv_block_tokens: int = 16


FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
