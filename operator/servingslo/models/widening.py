"""How clusters of arrivals widen the law of running sequences, where prompts queue for room.

Source: memory and stationary law of a reflected Brownian motion, J. M. Harrison, Brownian Motion
and Stochastic Flow Systems (1985); docs/designs/0002-models.md, "What was added".
"""

from typing import Any, NamedTuple

import numpy as np

from servingslo.models.service_time import FloatArray, RequestDemand

# A queue fuller than 1 less this is taken as this full: its memory stays finite. Measured: 1e-2 and
# 1e-4 move no mean or percentile by more than 0.1 %.
_LEAST_QUEUE_SLACK = 1e-3


class BudgetQueue(NamedTuple):
    """Prompts that wait for room in the steps of one replica.

    rate_per_second: arrivals of one replica. factor: F of clusters that nothing holds up.
    pool_count: replicas that share arrivals. budget_tokens: of a step. running_mean: of the law of
    running sequences with that factor.
    """

    rate_per_second: float
    factor: float
    pool_count: int
    budget_tokens: float
    running_mean: float


def factors_by_running(
    demand: RequestDemand, queue: BudgetQueue, running: FloatArray
) -> FloatArray:
    """F by the number of running sequences of a replica.

    A queue for room with memory τ = λ·E[W²]/(1 − u)², of work W = I·(c + s/room), passes clusters
    on as a filter does. Running sequences, which relax at κ, see of clusters with the dispersion C
    C/(1 + κτ), and of the service, which gives out prompts at the rate of the room, the rest:
    κτ/(1 + κτ) of the dispersion of prompts. s and u grow with n, so that the law, a diffusion
    whose variability depends on its state, is tight where u comes to 1. Without a limit, as
    room → ∞, the prompts of a cluster come together: that memory is taken off. The queue of a pool
    forgets c times as fast.
    """
    rate, tokens = queue.rate_per_second, demand.uncached_mean_tokens
    fixed, growth = demand.step_fixed_seconds, demand.step_growth_seconds
    step = fixed + growth * running
    square = demand.uncached_second_moment_tokens2
    work = demand.prefill_per_token_seconds
    per_token = work + step / np.maximum(queue.budget_tokens - running, 1.0)
    memory = memory_seconds(rate, per_token, tokens, square)
    memory -= memory_seconds(rate, work, tokens, square)
    mean = queue.running_mean
    relaxing = fixed * rate / ((fixed + growth * mean) * mean)
    passed = 1.0 / (1.0 + memory * (relaxing / queue.pool_count))
    lengths = demand.output_dispersion
    clusters = queue.factor * (1.0 + lengths) - lengths
    service = square / tokens**2 - 1.0
    factors: FloatArray = (service + (clusters - service) * passed + lengths) / (1.0 + lengths)
    return factors


def memory_seconds(rate: float, per_token: Any, tokens: float, square: float) -> Any:
    """λ·E[W²]/(1 − u)² of work W = I·per_token, that of a reflected Brownian motion."""
    slack = np.maximum(1.0 - rate * tokens * per_token, _LEAST_QUEUE_SLACK)
    return rate * square * (per_token / slack) ** 2


def widened(logs: FloatArray, factor: float, factors: FloatArray | None) -> list[float]:
    """Take a density, given by logarithms at even nodes, to the power 1/F in place; F by node.

    factors: F by node where it changes. The density of a diffusion with variability F is that of
    one with 1, its growth divided by F, over F.
    """
    if factors is None:
        logs *= 1.0 / factor
        return [factor] * len(logs)
    growth = np.diff(logs) / (0.5 * (factors[1:] + factors[:-1]))
    logs[0] = 0.0
    np.cumsum(growth, out=logs[1:])
    logs -= np.log(factors)
    return factors.tolist()  # type: ignore[no-any-return]
