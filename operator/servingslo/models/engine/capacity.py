"""Continuous batching in closed form: an engine's capacity, and its means below that.

Fluid laws from the balance of tokens: exact for saturation, a few percent low for the means of a
random system, for which `latency` has the full law.
Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", equations 1 and 2,
with T_fixed = O·a for continuous batching.
Assumes: mean lengths, in equilibrium.
Fails: means below saturation, see `occupancy`.
Shown by: `make validate`, "saturation": within 0.5 %.
"""

import math
from dataclasses import dataclass
from operator import mul

from servingslo.models.engine.service_time import (
    EngineLimits,
    RequestDemand,
    ServiceLaw,
    request_demand,
)
from servingslo.models.workload import LengthDistribution, Workload


def mu_effective_per_second(demand: RequestDemand, sequence_count: float) -> float:
    """Return requests per second that leave an engine running this many: n/(T_fixed + n·t_req).

    Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", equation 1,
    with T_fixed = O·a.
    """
    if sequence_count <= 0:
        return 0.0
    work = demand.fixed_seconds + sequence_count * demand.marginal_seconds
    return sequence_count / work if work > 0 else math.inf


def kv_concurrency(workload: Workload, limits: EngineLimits) -> float:
    """Running sequences whose mean context fills the KV cache, half a block of waste each.

    Source: paged attention wastes half a block per sequence on average, Kwon et al., SOSP 2023.
    """
    per_sequence = workload.held_tokens_per_sequence + limits.kv_block_tokens / 2.0
    return limits.kv_capacity_tokens / per_sequence


def concurrency_cap(workload: Workload, limits: EngineLimits) -> float:
    """Return the most running sequences: the smaller of `max_num_seqs` and the KV cache's limit.

    A real number: the KV share is an average over the lengths in the batch.
    Source: vLLM, `--max-num-seqs`, and `kv_concurrency`.
    """
    return min(float(limits.max_num_seqs), kv_concurrency(workload, limits))


def budget_concurrency(demand: RequestDemand, limits: EngineLimits) -> float:
    """Return the running sequences at which all work fills the token budget, M·O/(I + O).

    Every request takes O decode slots and I prefill tokens out of M a step, so at most this share
    of a full budget decodes; beyond it prompts arrive faster than the budget prefills them.
    Equivalent to the frontier λ·I = (M − n)/(a + b·n + c·(M − n)).
    Source: balance of tokens: in equilibrium λ·O are decoded and λ·I prefilled in a second.
    """
    tokens = demand.uncached_mean_tokens + demand.output_mean_tokens
    return limits.max_num_batched_tokens * demand.output_mean_tokens / tokens if tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """One replica's state when requests always wait.

    sequence_count: running sequences. rate_per_second: requests it completes.
    budget_binds: the token budget, not slots or memory, is the bound.
    """

    sequence_count: float
    rate_per_second: float
    budget_binds: bool


def saturation(workload: Workload, law: ServiceLaw, limits: EngineLimits) -> Saturation:
    """Return the saturation of one replica, bound by `max_num_seqs`, token budget or KV cache.

    λ_sat = N/(T_fixed + N·t_req). If the KV cache binds, there are two losses. The head of the
    queue waits until its whole prompt fits, which leaves E[P²]/(2·E[P]) tokens free on average
    (renewal theory: half of a length-biased prompt). And sequences that grow into a full cache
    preempt the youngest, whose prompt is computed again, see `_preempted_ratio`.
    Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", equation 1;
    losses of the KV cache by renewal theory, within 0.5 % of simulation (docs/lab/findings.md).
    """
    budget = limits.max_num_batched_tokens
    slots = budget_concurrency(request_demand(workload, law), limits)
    slots = min(float(limits.max_num_seqs), slots)
    prompt = workload.prompt
    unused = 0.5 * prompt.second_moment_tokens2 / prompt.mean_tokens if prompt.mean_tokens else 0.0
    room = max(limits.kv_capacity_tokens - unused, 0.5 * limits.kv_capacity_tokens)
    held = room / (workload.held_tokens_per_sequence + 0.5 * limits.kv_block_tokens)
    demand = request_demand(workload, law, min(slots, held), budget)
    if slots <= held:
        return Saturation(
            sequence_count=slots,
            rate_per_second=mu_effective_per_second(demand, slots),
            budget_binds=slots < limits.max_num_seqs,
        )
    preempted = _preempted_ratio(prompt, demand.output_mean_tokens, held)
    again = preempted * demand.prefill_per_token_seconds * prompt.mean_tokens
    work = demand.fixed_seconds + held * (demand.marginal_seconds + again)
    return Saturation(
        sequence_count=held,
        rate_per_second=held / work if work > 0 else math.inf,
        budget_binds=False,
    )


def _preempted_ratio(prompt: LengthDistribution, output: float, sequence_count: float) -> float:
    """Return preemptions per request of a replica whose KV cache is always full.

    After an admission the free tokens F have the density P(prompt > x)/E[P]. Sequences grow by O
    tokens between departures, so F runs out first with probability e^(−F/O), on average O·E[1 −
    e^(−P/O)]/E[P]. Two corrections, because growth comes in steps of n tokens with g = n/O
    departures each. F lasts a whole number of steps, which a departure ends with probability (1 −
    e^−g)/g more often. Departures of the same step make room together, so there are (1 − e^−g)/g
    such intervals per request. Against simulation 0.13 for 0.13 with 48 sequences, 0.080 for 0.077
    with 161.
    """
    if output <= 0 or prompt.mean_tokens <= 0:
        return 0.0
    lasting = [math.expm1(-tokens / output) for tokens in prompt.tokens]
    short: float = -sum(map(mul, prompt.weights, lasting))
    departures = sequence_count / output
    factor = -math.expm1(-departures) / departures if departures > 0 else 1.0
    return factor**2 * output * short / prompt.mean_tokens


def saturation_rate_per_second(workload: Workload, law: ServiceLaw, limits: EngineLimits) -> float:
    """Return the requests per second at which one replica saturates, see `saturation`.

    Source: as `saturation`.
    """
    return saturation(workload, law, limits).rate_per_second


def work_ratio(demand: RequestDemand, rate_per_second: float) -> float:
    """Return λ·t_req of one replica: the parameter of the occupancy law, below 1 when stable.

    Source: definition; the load of a processor-sharing queue.
    """
    return rate_per_second * demand.marginal_seconds
