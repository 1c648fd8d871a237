"""The requests of each pool, where a prefill pool computes prompts for a decode pool.

A prefill engine answers with one token. A decode engine gets the cache with the request and
computes only the end of the prompt; requests that come to it directly are prefilled there.
Source: Y. Zhong et al., DistServe, OSDI 2024; vLLM's connectors.
"""

from dataclasses import replace

from servingslo.errors import InvalidInputError
from servingslo.models.numerics import TINY_TOKENS
from servingslo.models.workload import LengthDistribution, Workload

# Prompt tokens that decode computes of a request with its cache: an engine needs at least one to
# make the next token. Source: vLLM, NIXL connector: all but the last prompt token are external.
UNCACHED_TOKENS = 1.0


def prefill_workload(workload: Workload, through_ratio: float = 1.0) -> Workload:
    """Return the load of the prefill pool: the share of the requests that pass it, with one token.

    workload: prompts of the requests that pass; rate of all. cached_ratio: of the prefill pool.
    """
    return replace(
        workload,
        arrival_rate_per_second=through_ratio * workload.arrival_rate_per_second,
        output=LengthDistribution.constant(1.0),
        context_tokens_per_sequence=None,
    )


def decode_workload(
    workload: Workload,
    through_ratio: float = 1.0,
    *,
    direct: LengthDistribution | None = None,
    uncached_tokens: float = UNCACHED_TOKENS,
) -> Workload:
    """Return the load of the decode pool: all requests, with little to prefill of most.

    workload: prompts, answers and rate of all requests; cached_ratio: of direct requests at decode.
    direct: prompts of requests that do not pass the prefill pool, by default as all are.
    uncached_tokens: prompt tokens that decode computes of the others. Raises: InvalidInputError for
    a share outside 0 to 1.
    """
    if not 0.0 <= through_ratio <= 1.0:
        raise InvalidInputError("through_ratio", through_ratio, "0 to 1")
    prompts = workload.prompt if direct is None else direct
    kept = 1.0 - workload.cached_ratio
    mass = {uncached_tokens: through_ratio} if through_ratio else {}
    if through_ratio < 1.0:
        for tokens, weight in zip(prompts.tokens, prompts.weights, strict=True):
            left = max(tokens * kept, uncached_tokens)
            mass[left] = mass.get(left, 0.0) + (1.0 - through_ratio) * weight
    points, weights = zip(*sorted(mass.items()), strict=True)
    uncached = LengthDistribution(tokens=points, weights=weights)
    return replace(workload, uncached=uncached)


def observed_decode_workload(workload: Workload, through_ratio: float) -> Workload:
    """Return `decode_workload` of the lengths that a decode pool's own counters show.

    workload: prompts of all requests there, and the share of prompt tokens that they did not
    compute, whether handed over or cached. What was computed beyond one token of each request with
    its cache is of direct requests. Raises: as `decode_workload`.
    """
    if through_ratio >= 1.0:
        return decode_workload(workload, through_ratio)
    computed = workload.prompt.mean_tokens * (1.0 - workload.cached_ratio)
    direct = max(computed - through_ratio * UNCACHED_TOKENS, 0.0) / (1.0 - through_ratio)
    kept = direct / max(workload.prompt.mean_tokens, TINY_TOKENS)
    return decode_workload(replace(workload, cached_ratio=1.0 - kept), through_ratio)
