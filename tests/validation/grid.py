"""The cases that the models are held against, and the comparison of one case.

Lengths are those of the Azure conversation trace (examples/traces). A case compares the model with
an independent step-level simulation on the same lengths, rates and limits.
"""

import csv
import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
from tests.model_fleets import ReplicaGroup, predict
from tests.validation import step_simulation

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.latency import Routing
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.running.bursts import correlation_seconds
from servingslo.models.workload import LengthDistribution, Workload

TRACE = Path(__file__).parents[2] / "examples/traces/azure_llm_2023_conversation.csv"
PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Law (seconds) and limits of one engine."""

    name: str
    a: float
    b: float
    c: float
    d: float
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_capacity_tokens: int


H100 = Card(
    name="h100", a=6.5e-3, b=4e-5, c=3e-5, d=5e-8, max_num_seqs=256, max_num_batched_tokens=8192,
    kv_capacity_tokens=400_000,
)  # fmt: skip
A100 = Card(
    name="a100", a=11e-3, b=8e-5, c=5e-5, d=1e-7, max_num_seqs=256, max_num_batched_tokens=4096,
    kv_capacity_tokens=200_000,
)  # fmt: skip
L4 = Card(
    name="l4", a=15e-3, b=15e-5, c=8e-5, d=4e-7, max_num_seqs=64, max_num_batched_tokens=2048,
    kv_capacity_tokens=60_000,
)  # fmt: skip


class Lengths(StrEnum):
    """Which prompts and outputs: those of the trace, or generated ones (functions below)."""

    CONVERSATION = "conversation"
    SHORT_OUTPUTS = "short"
    LONG_PROMPTS = "long prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of the grid; rate_per_second is per replica.

    burst: swing and dwell time of a two-state arrival process, None for Poisson.
    memory_known: the model is told how long a bursty rate remembers, measured on the
    arrivals as their dispersion is; otherwise it takes bursts as long as a residence.
    request_count: of the whole fleet.
    """

    card: Card
    rate_per_second: float
    replica_count: int = 1
    least_loaded: bool = True
    cached_ratio: float = 0.0
    budget_tokens: int | None = None
    burst: tuple[float, float] | None = None
    lengths: Lengths = Lengths.CONVERSATION
    memory_known: bool = True
    request_count: int = 400_000
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Prediction and simulation of a case."""

    case: Case
    prediction: Prediction
    outcome: step_simulation.Outcome

    def ratio(self, metric: str, percentile: float) -> float:
        """Predicted over simulated percentile of `ttft`, `tpot` or `latency`."""
        predicted = getattr(self.prediction, f"{metric}_seconds")(percentile)
        return float(predicted / np.percentile(getattr(self.outcome, metric), percentile))

    @property
    def running_ratio(self) -> float:
        """Predicted over simulated mean of running sequences."""
        return self.prediction.running_mean / self.outcome.running_mean

    @property
    def itl_ratio(self) -> float:
        """Predicted over simulated mean inter-token latency."""
        return self.prediction.itl_mean_seconds / self.outcome.itl_mean

    @property
    def saturation_ratio(self) -> float:
        """Predicted saturation over simulated departures, for a case that is overloaded."""
        departures = self.outcome.departed_per_second / self.case.replica_count
        return self.prediction.engine.saturation_rate_per_second / departures


@cache
def conversation_lengths() -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens of the trace."""
    with TRACE.open(newline="") as handle:
        rows = [(int(r["prompt_tokens"]), int(r["output_tokens"])) for r in csv.DictReader(handle)]
    table = np.array(rows)
    return table[:, 0], table[:, 1]


@cache
def short_output_lengths() -> tuple[np.ndarray, np.ndarray]:
    """Prompts of about 2,000 and outputs of about 30 tokens, gamma of shape 4."""
    rng = np.random.default_rng(8)
    prompts = np.maximum(rng.gamma(4, 500, 20_000).astype(int), 20)
    return prompts, np.maximum(rng.gamma(4, 7.5, 20_000).astype(int), 2)


@cache
def long_prompt_lengths() -> tuple[np.ndarray, np.ndarray]:
    """Prompts of 2,000 to 16,000 and outputs of 4 to 60 tokens, as the benchmark has them."""
    rng = np.random.default_rng(8)
    return rng.integers(2_000, 16_001, 20_000), rng.integers(4, 61, 20_000)


_LENGTHS = {
    Lengths.CONVERSATION: conversation_lengths,
    Lengths.SHORT_OUTPUTS: short_output_lengths,
    Lengths.LONG_PROMPTS: long_prompt_lengths,
}


def lengths_of(lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens of these requests."""
    return _LENGTHS[lengths]()


def compare(case: Case) -> Comparison:
    """Simulate and predict one case."""
    rng = np.random.default_rng(case.seed)
    pool = lengths_of(case.lengths)
    rate = case.rate_per_second * case.replica_count
    if case.burst is None:
        arrivals = step_simulation.poisson_arrivals(rate, case.request_count, rng)
    else:
        arrivals = step_simulation.bursty_arrivals(rate, case.request_count, *case.burst, rng)
    # Every length is drawn equally often, so that the simulated means are those predicted from.
    copies = math.ceil(len(arrivals) / len(pool[0]))
    drawn = rng.permutation(np.tile(np.arange(len(pool[0])), copies))[: len(arrivals)]
    prompts, outputs = pool[0][drawn], pool[1][drawn]
    card, budget = case.card, case.budget_tokens or case.card.max_num_batched_tokens
    fleet = step_simulation.Fleet(
        a=card.a, b=card.b, c=card.c, d=card.d, max_num_seqs=card.max_num_seqs,
        max_num_batched_tokens=budget, kv_capacity_tokens=card.kv_capacity_tokens,
        replica_count=case.replica_count, least_loaded=case.least_loaded,
    )  # fmt: skip
    outcome = step_simulation.simulate(
        fleet, arrivals, prompts, outputs, rng, cached_ratio=case.cached_ratio
    )
    dispersion, memory = 1.0, None
    if case.burst is not None:
        residence = float(outcome.latency.mean())
        short, long = (
            step_simulation.dispersion_index(arrivals, share * residence) for share in (0.25, 1.0)
        )
        dispersion = long
        if case.memory_known:
            memory = correlation_seconds(short - 1.0, 0.25 * residence, long - 1.0, residence)
    workload = Workload(
        arrival_rate_per_second=rate,
        prompt=LengthDistribution.from_samples(pool[0].tolist()).compact(200),
        output=LengthDistribution.from_samples(pool[1].tolist()).compact(200),
        cached_ratio=case.cached_ratio,
        arrival_dispersion=dispersion,
        arrival_correlation_seconds=memory,
        context_tokens_per_sequence=float((pool[1] * (pool[0] + pool[1] / 2)).mean())
        / float(pool[1].mean()),
    )
    group = ReplicaGroup(
        law=ServiceLaw(
            step_fixed_seconds=card.a,
            step_per_sequence_seconds=card.b,
            prefill_per_token_seconds=card.c,
            context_per_token_seconds=card.d,
        ),
        limits=EngineLimits(
            max_num_seqs=card.max_num_seqs,
            max_num_batched_tokens=budget,
            kv_capacity_tokens=card.kv_capacity_tokens,
        ),
        replica_count=case.replica_count,
        routing=Routing.POOLED if case.least_loaded else Routing.RANDOM,
    )
    return Comparison(case=case, prediction=predict(workload, group), outcome=outcome)
