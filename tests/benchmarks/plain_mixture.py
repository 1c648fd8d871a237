"""What one would write first: percentiles by enumerating a mixture with numpy.

Number running: negative binomial, term by term. TTFT: rest of a step, plus a step, plus the prompt,
over every combination, sorted. TPOT: a step by n. No bursts, no cap, no budget, no pooling.
"""

import numpy as np
from scipy.stats import nbinom

from servingslo.models.engine.service_time import ServiceLaw, request_demand
from servingslo.models.workload import Workload

_RESTS = (np.arange(8) + 0.5) / 8


def plain_percentiles(
    workload: Workload, law: ServiceLaw, rate_per_second: float, percentile: float
) -> tuple[float, float]:
    """TTFT and TPOT at this percentile, in seconds, of one replica."""
    demand = request_demand(workload, law)
    ratio = min(rate_per_second * demand.marginal_seconds, 0.98)
    shape = demand.fixed_seconds / demand.marginal_seconds + 1.0
    top = int(nbinom.ppf(0.9999, shape, 1.0 - ratio)) + 1
    running = np.arange(top + 1)
    share = nbinom.pmf(running, shape, 1.0 - ratio)
    slack = 1.0 - min(rate_per_second * demand.prefill_mean_seconds, 0.98)
    step = (demand.step_fixed_seconds + demand.step_growth_seconds * running) / slack
    prompts = np.array(workload.prompt.tokens) * demand.prefill_per_token_seconds
    weights = np.array(workload.prompt.weights)
    first = step[:, None, None] * (1.0 + _RESTS)[None, :, None] + prompts[None, None, :]
    mass = np.broadcast_to(
        share[:, None, None] * weights[None, None, :] / len(_RESTS), first.shape
    ).ravel()
    return (
        _quantile(first.ravel(), mass, percentile),
        _quantile(step, share, percentile),
    )


def _quantile(values: np.ndarray, mass: np.ndarray, percentile: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(mass[order]) / mass.sum()
    return float(values[order][np.searchsorted(reached, percentile / 100.0)])
