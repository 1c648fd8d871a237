"""The requests of a decode pool, for which a prefill pool computes prompts.

A decode engine gets the cache with the request and computes only the end of the prompt; requests
that come to it directly are prefilled there.
Source: Y. Zhong et al., DistServe, OSDI 2024; vLLM's connectors.
"""

from dataclasses import replace

from servingslo.models.numerics import TINY_TOKENS
from servingslo.models.workload import LengthDistribution, Workload

# Prompt tokens that decode computes of a request with its cache: an engine needs at least one to
# make the next token. Source: vLLM, NIXL connector: all but the last prompt token are external.
UNCACHED_TOKENS = 1.0


def decode_workload(workload: Workload, through_ratio: float) -> Workload:
    """Return the load of a decode pool, of which the other share of requests comes directly.

    workload: prompts of all requests there, and the share of prompt tokens that they did not
    compute, whether handed over or cached, as the pool's own counters show them. What was computed
    beyond one token of each request with its cache is of direct requests. through_ratio: 0 to 1.
    """
    computed = workload.prompt.mean_tokens * (1.0 - workload.cached_ratio)
    mass = {UNCACHED_TOKENS: through_ratio} if through_ratio else {}
    if through_ratio < 1.0:
        direct = max(computed - through_ratio * UNCACHED_TOKENS, 0.0) / (1.0 - through_ratio)
        kept = direct / max(workload.prompt.mean_tokens, TINY_TOKENS)
        for tokens, weight in zip(workload.prompt.tokens, workload.prompt.weights, strict=True):
            left = max(tokens * kept, UNCACHED_TOKENS)
            mass[left] = mass.get(left, 0.0) + (1.0 - through_ratio) * weight
    points, weights = zip(*sorted(mass.items()), strict=True)
    return replace(workload, uncached=LengthDistribution(tokens=points, weights=weights))
