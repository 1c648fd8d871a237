"""The service law of one engine: the length of a step, and the work of one request."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from servingslo.models.numerics import SMALL_RATIO, TINY_SECONDS
from servingslo.models.workload import Workload

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLaw:
    """Step time of continuous batching, in seconds: τ = a + w·(1 − e^(−t/t₀)) + b·n + c·p′ + d·k.

    n decoding sequences, p prompt tokens prefilled in the step, t = n + p, k context tokens
    attended by the decoding sequences. a: what every step loads. w: weights of experts, of which t
    tokens touch a share. b: of a sequence. c: compute of a prompt token, for the p′ = max(p −
    max(p₀ − n, 0), 0) that do not hide under the loading of memory. With w and p₀ zero the law is a
    line, τ = a + b·n + c·p + d·k.
    loading_seconds: w. loading_tokens: t₀. hidden_tokens: p₀.
    Source: the line, Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations",
    equation 1, extended by prefill and context; the bends, measured kernels of vLLM
    (docs/designs/0018-service-law.md).
    """

    step_fixed_seconds: float
    step_per_sequence_seconds: float
    prefill_per_token_seconds: float
    context_per_token_seconds: float = 0.0
    loading_seconds: float = 0.0
    loading_tokens: float = 0.0
    hidden_tokens: float = 0.0

    @property
    def bends(self) -> bool:
        """Whether the law is no line."""
        return self.hidden_tokens > 0.0 or self.loading_seconds > 0.0

    def growth_seconds(self, sequence_count: float) -> float:
        """Return by how much one more sequence lengthens a step, context aside."""
        if self.loading_tokens <= 0.0:
            return self.step_per_sequence_seconds
        left = self.loading_seconds * math.exp(-sequence_count / self.loading_tokens)
        return self.step_per_sequence_seconds + left / self.loading_tokens

    def step_seconds(
        self, sequence_count: float, prefill_tokens: float = 0.0, context_tokens: float = 0.0
    ) -> float:
        """Return the duration of one step, in seconds."""
        hidden = max(self.hidden_tokens - sequence_count, 0.0)
        seconds = (
            self.step_fixed_seconds
            + self.step_per_sequence_seconds * sequence_count
            + self.prefill_per_token_seconds * max(prefill_tokens - hidden, 0.0)
            + self.context_per_token_seconds * context_tokens
        )
        if self.loading_tokens > 0.0:
            seconds += self.loaded_seconds(sequence_count + prefill_tokens)
        return seconds

    def loaded_seconds(self, tokens: float) -> float:
        """Return the seconds of the weights that so many tokens touch, w·(1 − e^(−t/t₀))."""
        if self.loading_tokens <= 0.0:
            return 0.0
        return -self.loading_seconds * math.expm1(-tokens / self.loading_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatcher:
    """How an engine forms batches of whole requests.

    largest_batch: requests in one. window_seconds: how long the oldest waits for others. room:
    requests that may wait, 0 for any number. instances: batches that run at a time.
    """

    largest_batch: int
    window_seconds: float = 0.0
    room: int = 0
    instances: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits in force on one engine.

    max_num_seqs: most sequences running at once. max_num_batched_tokens: token budget of a step.
    kv_capacity_tokens: tokens that the KV cache holds. batcher: of an engine that serves batches of
    whole requests; it ignores the other limits.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_capacity_tokens: float
    kv_block_tokens: int = 16
    batcher: DynamicBatcher | None = None

    @property
    def share_steps(self) -> bool:
        """Whether running requests share steps, which these limits bound."""
        return self.batcher is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDemand:
    """The work of one average request on an engine.

    fixed_seconds: T_fixed = O·a, the time alone in the engine without marginal work.
    marginal_seconds: t_req = O·b + I·c + d·(O − 1)·k, the work that it adds to its steps.
    step_growth_seconds: growth of a step per running sequence, b + d·k.
    held_tokens: context k of a running sequence. uncached_*: moments of the prompt tokens that must
    be prefilled. output_dispersion: squared coefficient of variation of output lengths.
    decode_seconds: work in decode steps, (O − 1)·(b + d·k): prefill makes the first token.
    prefill_mean_seconds: mean prefill work, I·c.
    Source: Machine Learning Systems, appendix "Inference Foundations", equation 1, with T_fixed =
    O·a for continuous batching.
    """

    fixed_seconds: float
    marginal_seconds: float
    step_fixed_seconds: float
    step_growth_seconds: float
    prefill_per_token_seconds: float
    output_mean_tokens: float
    output_dispersion: float
    held_tokens: float
    uncached_mean_tokens: float
    uncached_second_moment_tokens2: float
    uncached_third_moment_tokens3: float

    # Derived from the other fields; stored because every evaluation needs them.
    decode_seconds: float = field(init=False)
    prefill_mean_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        decode = max(self.output_mean_tokens - 1.0, 0.0) * self.step_growth_seconds
        object.__setattr__(self, "decode_seconds", decode)
        prefill = self.prefill_per_token_seconds * self.uncached_mean_tokens
        object.__setattr__(self, "prefill_mean_seconds", prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTime:
    """What prompts add to the steps that compute them, on an engine that runs some sequences.

    sequence_count: that decode. prompts_in_step: of a step that holds any; they share what hides
    under the loading of memory. room_tokens: of a step, for prompts.
    """

    law: ServiceLaw
    sequence_count: float
    prompts_in_step: float = 1.0
    room_tokens: float = math.inf

    def seconds(self, tokens: FloatArray) -> FloatArray:
        """Return the seconds that prompts with these tokens add, one for each."""
        together = tokens * self.prompts_in_step
        full, rest = np.divmod(together, self.room_tokens)
        added = self._added(rest)
        if full.any():
            added += full * self._added(np.array([self.room_tokens]))
        return added / self.prompts_in_step

    def _added(self, tokens: FloatArray) -> FloatArray:
        law, n = self.law, self.sequence_count
        hidden = max(law.hidden_tokens - n, 0.0)
        added: FloatArray = law.prefill_per_token_seconds * np.maximum(tokens - hidden, 0.0)
        if law.loading_tokens > 0.0:
            left = law.loading_seconds * math.exp(-n / law.loading_tokens)
            added -= left * np.expm1(-tokens / law.loading_tokens)
        return added


def prefill_time(
    workload: Workload, law: ServiceLaw, sequence_count: float, budget_tokens: float
) -> PrefillTime:
    """Return the prefill of this workload on an engine that runs so many sequences.

    n/O prompts come in a step; of the steps that hold any, each holds this over the share of such
    steps.
    Source: balance of tokens; Poisson arrivals.
    """
    coming = max(sequence_count / max(workload.output.mean_tokens, 1.0), SMALL_RATIO)
    return PrefillTime(
        law=law,
        sequence_count=sequence_count,
        prompts_in_step=coming / -math.expm1(-coming),
        room_tokens=max(budget_tokens - sequence_count, 1.0),
    )


def request_demand(
    workload: Workload,
    law: ServiceLaw,
    sequence_count: float = 1.0,
    budget_tokens: float = math.inf,
) -> RequestDemand:
    """Return the work of this workload's average request on an engine with this law.

    A law that bends is taken as its tangent where so many sequences run: closed forms of a line
    hold around there. The moments of its prompts are those of their prefill, in tokens at the mean
    seconds of one. A line is its own tangent, wherever it is asked.
    Source: balance of tokens over the steps of a request: Machine Learning Systems (V. J. Reddi),
    appendix "Inference Foundations", equation 1, with T_fixed = O·a.
    """
    output = workload.output.mean_tokens
    prompt, cached_ratio = workload.prefilled
    uncached_ratio = 1.0 - cached_ratio
    uncached = prompt.mean_tokens * uncached_ratio
    held = workload.held_tokens_per_sequence
    attended = law.context_per_token_seconds * held
    fixed, per_sequence = law.step_fixed_seconds, law.step_per_sequence_seconds
    per_token = law.prefill_per_token_seconds
    second = prompt.second_moment_tokens2 * uncached_ratio**2
    third = prompt.third_moment_tokens3 * uncached_ratio**3
    if law.bends:
        n = max(sequence_count, 1.0)
        per_sequence = law.growth_seconds(n)
        fixed = law.step_seconds(n) - per_sequence * n
        if uncached > 0.0:
            weights = np.array(prompt.weights)
            tokens = np.array(prompt.tokens) * uncached_ratio
            seconds = prefill_time(workload, law, n, budget_tokens).seconds(tokens)
            per_token = float(weights @ seconds) / uncached
            unit = max(per_token, TINY_SECONDS)
            second = float(weights @ seconds**2) / unit**2
            third = float(weights @ seconds**3) / unit**3
    return RequestDemand(
        fixed_seconds=output * fixed,
        marginal_seconds=(
            output * per_sequence + uncached * per_token + max(output - 1.0, 0.0) * attended
        ),
        step_fixed_seconds=fixed,
        step_growth_seconds=per_sequence + attended,
        prefill_per_token_seconds=per_token,
        output_mean_tokens=output,
        output_dispersion=workload.output.second_moment_tokens2 / output**2 - 1.0,
        held_tokens=held,
        uncached_mean_tokens=uncached,
        uncached_second_moment_tokens2=second,
        uncached_third_moment_tokens3=third,
    )
