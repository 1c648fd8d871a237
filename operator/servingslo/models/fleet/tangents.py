"""The tangents of a service law that bends, where the closed forms of a line hold.

Law: balance of tokens, λ = n/(O·τ(n) + n·W): at the rate λ so many sequences n run on average.
Source: as `capacity.mu_effective_per_second`, which is exact there: a tangent touches the law.
Assumes: sequences stay near their mean, where the tangent holds.
Fails: next to no load, where the first sequences load most of the weights.
Shown by: `tests/unit/test_models_bent_law.py`, against step times of measured kernels.
"""

import math
from typing import NamedTuple

from servingslo.models.engine.capacity import mu_effective_per_second
from servingslo.models.engine.service_time import (
    EngineLimits,
    RequestDemand,
    ServiceLaw,
    prefill_time,
    request_demand,
)
from servingslo.models.waits.prompt_work import PromptWork, prompt_work
from servingslo.models.workload import Workload

# Ratio of the running sequences of neighbouring tangents. Measured: half and twice of it move no
# percentile by more than 0.5 %.
RATIO = 2.0**0.125


class Tangent(NamedTuple):
    """The work of a request, and the prefill of prompts, where so many sequences run."""

    demand: RequestDemand
    prompts: PromptWork


class Tangents:
    """Tangents of one law, made on first use and kept: prompts have tables of their own."""

    __slots__ = ("_found", "_last", "_limits", "_rates", "law", "workload")

    def __init__(
        self, workload: Workload, law: ServiceLaw, limits: EngineLimits, cap: float
    ) -> None:
        self.workload, self.law, self._limits = workload, law, limits
        self._last = max(math.ceil(math.log(max(cap, 1.0)) / math.log(RATIO)), 0)
        self._found: dict[int, Tangent] = {}
        self._rates: dict[int, float] = {}

    def at_sequences(self, sequence_count: float) -> Tangent:
        """Return the tangent next to this many running sequences."""
        place = round(math.log(max(sequence_count, 1.0)) / math.log(RATIO))
        return self._at(min(place, self._last))

    def at_rate(self, rate_per_second: float) -> Tangent:
        """Return the tangent next to the sequences that run at this rate of one engine."""
        low, high = 0, self._last
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (middle + 1, high) if self._rate(middle) < rate_per_second else (low, middle)
            )
        return self._at(low)

    def _at(self, place: int) -> Tangent:
        if place not in self._found:
            count, budget = RATIO**place, float(self._limits.max_num_batched_tokens)
            demand = request_demand(self.workload, self.law, count, budget)
            spent = prefill_time(self.workload, self.law, count, budget)
            prompts = prompt_work(*self.workload.prefilled, spent)
            self._found[place] = Tangent(demand, prompts)
        return self._found[place]

    def _rate(self, place: int) -> float:
        """Return the greatest rate of the loads of this tangent."""
        if place not in self._rates:
            edge = RATIO ** (place + 0.5)
            budget = float(self._limits.max_num_batched_tokens)
            demand = request_demand(self.workload, self.law, edge, budget)
            self._rates[place] = mu_effective_per_second(demand, edge)
        return self._rates[place]
