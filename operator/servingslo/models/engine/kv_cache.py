"""KV cache: bytes of a token, sequences that fit, and the spread of the tokens held.

Law: variance of a random sum of random contexts, normal.
Source: D. Blackwell and M. A. Girshick (1947), in W. Feller, volume I (1968), chapter XII.
Assumes: contexts independent of their number.
Fails: a few sequences; waiting requests if the KV cache binds.
Shown by: `make validate`, "KV-bound".
"""

import math
from dataclasses import dataclass

from scipy.special import ndtri

from servingslo.models.workload import Workload

# Two tensors for each layer. Source: Vaswani et al., Attention Is All You Need (2017), section 3.2.
_KEY_AND_VALUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTokens:
    """Mean and variance of the KV tokens that one running sequence holds, over time."""

    mean: float
    variance: float


def kv_bytes_per_token(
    layer_count: int, kv_head_count: int, head_dimension: int, element_bytes: float
) -> float:
    """Return the bytes of keys and values of one token: 2·layers·kv_heads·head_dim·element.

    Without grouped-query attention kv_heads·head_dim is the hidden size.
    Source: Machine Learning Systems, appendix "Inference Foundations", equation 3.
    """
    return _KEY_AND_VALUE * layer_count * kv_head_count * head_dimension * element_bytes


def kv_capacity_tokens(
    memory_bytes: float, weight_bytes: float, reserve_bytes: float, bytes_per_token: float
) -> float:
    """Return the tokens that fit in the memory left by weights and reserve; 0 if none is left.

    Source: "Serving and Systems Tradeoffs", KV memory: card less weights less reserve.
    """
    return max(memory_bytes - weight_bytes - reserve_bytes, 0.0) / bytes_per_token


def held_tokens(workload: Workload, block_tokens: int) -> HeldTokens:
    """Return moments of the tokens held by a running sequence at a random time, with block waste.

    A sequence is met in proportion to its output length and at a uniform point of it, so the
    generated part has mean E[O²]/(2·E[O]) and second moment E[O³]/(3·E[O]). For the variance,
    prompt and output lengths are assumed independent. The whole prompt is held, cached or not.
    Source: renewal theory, length-biased sampling: W. Feller, An Introduction to Probability Theory
    and Its Applications II, chapter XI. The independence is an approximation.
    """
    prompt, output = workload.prompt, workload.output
    output_mean = max(output.mean_tokens, 1.0)
    part = output.second_moment_tokens2 / (2.0 * output_mean)
    part_variance = output.third_moment_tokens3 / (3.0 * output_mean) - part**2
    prompt_variance = prompt.second_moment_tokens2 - prompt.mean_tokens**2
    return HeldTokens(
        mean=workload.held_tokens_per_sequence + 0.5 * block_tokens,
        variance=max(part_variance + prompt_variance, 0.0),
    )


def kv_usage_quantile(
    held: HeldTokens,
    running_mean: float,
    running_variance: float,
    running_cap: float,
    capacity_tokens: float,
    percentile: float,
) -> float:
    """Return the share of the KV cache not exceeded this percent of the time, 0 to 1.

    A sum of a random number of random lengths: mean n·k, variance n·Var k + k²·Var n, normal, and
    at most that of running_cap sequences.
    percentile: in percent, between 0 and 100.
    Source: variance of a random sum, Blackwell and Girshick; normal by the central limit theorem,
    rough for a few sequences.
    """
    running = running_mean, running_variance, running_cap
    deviate = float(ndtri(percentile / 100.0))
    return kv_usage_at(held.mean, held.variance, running, capacity_tokens, deviate)


def kv_usage_at(
    held_mean: float,
    held_variance: float,
    running: tuple[float, float, float],
    capacity_tokens: float,
    deviate: float,
) -> float:
    """Return `kv_usage_quantile` at a normal deviate; running: mean, variance and cap.

    Source: as `kv_usage_quantile`.
    """
    running_mean, running_variance, running_cap = running
    mean = running_mean * held_mean
    variance = running_mean * held_variance + held_mean**2 * running_variance
    quantile = mean + deviate * math.sqrt(variance)
    full = running_cap * held_mean + deviate * math.sqrt(running_cap * held_variance)
    return min(max(min(quantile, full), 0.0) / capacity_tokens, 1.0)
