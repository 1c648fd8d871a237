"""The law of a path through two pools, beside the simulation of both."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from tests.validation import step_simulation
from tests.validation.grid import A100, H100, L4, Card, Lengths, lengths_of

from servingslo.models.disaggregated.path import Path, TransferLaw, path_seconds
from servingslo.models.disaggregated.workloads import decode_workload, prefill_workload
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.latency import LatencyModel, Routing, latency_model
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload

PERCENTILES = (50.0, 95.0, 99.0)


# As an H100 with a cache that never binds, so that decode can be busier than 0.8.
ROOMY = replace(H100, name="h200", max_num_seqs=1024, kv_capacity_tokens=1_500_000)


class Transfer(StrEnum):
    """How long a transfer takes: as its prompt, half of it so, always the same, or at random."""

    PROPORTIONAL = "∝"
    HALF = "½∝"
    CONSTANT = "const"
    EXPONENTIAL = "exp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsCase:
    """Two pools; the rate and the second count follow from the wanted work ratios.

    work: work ratios of prefill, and of decode before its count is rounded up. short_direct: the
    requests with the shortest prompts go to decode directly, else any.
    """

    prefill: Card = H100
    decode: Card = H100
    prefill_count: int = 4
    work: tuple[float, float] = (0.5, 0.5)
    transfer_seconds: float = 0.05
    transfer: Transfer = Transfer.PROPORTIONAL
    through_ratio: float = 1.0
    short_direct: bool = False
    least_loaded: bool = True
    lengths: Lengths = Lengths.CONVERSATION
    request_count: int = 200_000
    seed: int = 1

    @property
    def label(self) -> str:
        """The case in a few words."""
        words = [
            f"{self.prefill.name}x{self.prefill_count}→{self.decode.name}",
            f"{1000 * self.transfer_seconds:g}ms {self.transfer}",
            f"through {self.through_ratio:g}",
        ]
        if self.short_direct:
            words.append("short direct")
        if not self.least_loaded:
            words.append("random")
        if self.lengths is not Lengths.CONVERSATION:
            words.append(self.lengths)
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsComparison:
    """Predictions of both pools, and the simulation of a case."""

    case: PoolsCase
    prefill: Prediction
    decode: Prediction
    decode_count: int
    path: Path
    outcome: step_simulation.PathOutcome

    def ratio(self, metric: LatencyMetric, percentile: float) -> float:
        """Predicted over simulated percentile."""
        predicted = path_seconds(self.prefill, self.decode, self.path, metric, percentile)
        return float(predicted / np.percentile(getattr(self.outcome, metric), percentile))


def _model(workload: Workload, card: Card) -> LatencyModel:
    law = ServiceLaw(
        step_fixed_seconds=card.a,
        step_per_sequence_seconds=card.b,
        prefill_per_token_seconds=card.c,
        context_per_token_seconds=card.d,
    )
    limits = EngineLimits(
        max_num_seqs=card.max_num_seqs,
        max_num_batched_tokens=card.max_num_batched_tokens,
        kv_capacity_tokens=card.kv_capacity_tokens,
    )
    return latency_model(workload, law, limits)


def _fleet(card: Card, count: int, case: PoolsCase) -> step_simulation.Fleet:
    return step_simulation.Fleet(
        a=card.a, b=card.b, c=card.c, d=card.d, max_num_seqs=card.max_num_seqs,
        max_num_batched_tokens=card.max_num_batched_tokens,
        kv_capacity_tokens=card.kv_capacity_tokens, replica_count=count,
        least_loaded=case.least_loaded,
    )  # fmt: skip


def compare_pools(case: PoolsCase) -> PoolsComparison:
    """Simulate and predict one case."""
    rng = np.random.default_rng(case.seed)
    pool = lengths_of(case.lengths)
    copies = math.ceil(case.request_count / len(pool[0]))
    drawn = rng.permutation(np.tile(np.arange(len(pool[0])), copies))[: case.request_count]
    prompts, outputs = pool[0][drawn], pool[1][drawn]
    if case.short_direct:
        places = np.argsort(np.argsort(prompts, kind="stable"), kind="stable")
        through = places >= (1.0 - case.through_ratio) * len(prompts)
    else:
        through = rng.random(len(prompts)) < case.through_ratio
    passing, direct = prompts[through], prompts[~through]
    whole = Workload(
        arrival_rate_per_second=1.0,
        prompt=_law(prompts),
        output=_law(outputs),
        context_tokens_per_sequence=float((outputs * (prompts + outputs / 2)).mean())
        / float(outputs.mean()),
    )
    passed = Workload(arrival_rate_per_second=1.0, prompt=_law(passing), output=_law(outputs))
    share = float(through.mean())
    before = _model(prefill_workload(passed, share), case.prefill)
    there = _model(
        decode_workload(whole, share, direct=_law(direct) if len(direct) else None), case.decode
    )
    rate = case.work[0] * case.prefill_count / before.demand.marginal_seconds / share
    decode_count = math.ceil(rate * there.demand.marginal_seconds / case.work[1] - 0.05)
    arrivals = step_simulation.poisson_arrivals(rate, case.request_count, rng)
    law = _transfer_law(case)
    outcome = step_simulation.simulate_pools(
        _fleet(case.prefill, case.prefill_count, case),
        _fleet(case.decode, decode_count, case),
        arrivals,
        (prompts, outputs),
        through,
        _transfers(case, law, prompts, float(passing.mean()), rng),
        rng,
    )
    routing = Routing.POOLED if case.least_loaded else Routing.RANDOM
    return PoolsComparison(
        case=case,
        prefill=before.predict(share * rate, case.prefill_count, routing),
        decode=there.predict(rate, decode_count, routing),
        decode_count=decode_count,
        path=Path(through_ratio=share, transfer=law),
        outcome=outcome,
    )


def _law(tokens: np.ndarray) -> LengthDistribution:
    return LengthDistribution.from_samples(tokens.tolist()).compact(200)


def _transfer_law(case: PoolsCase) -> TransferLaw:
    fixed = {Transfer.CONSTANT: 1.0, Transfer.HALF: 0.5}.get(case.transfer, 0.0)
    return TransferLaw(
        mean_seconds=case.transfer_seconds, fixed_seconds=fixed * case.transfer_seconds
    )


def _transfers(
    case: PoolsCase,
    law: TransferLaw,
    prompts: np.ndarray,
    mean_tokens: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Transfer times of these requests, in seconds."""
    if case.transfer is Transfer.EXPONENTIAL:
        return rng.exponential(case.transfer_seconds, len(prompts))
    growing = case.transfer_seconds - law.fixed_seconds
    return law.fixed_seconds + growing * prompts / mean_tokens


def pool_cases() -> list[PoolsCase]:
    """Work ratios of 0.2 to 0.85, transfers of 5 to 200 ms, 0 to half of the requests direct."""
    cases = [
        PoolsCase(work=(0.2, 0.2)),
        PoolsCase(work=(0.2, 0.6), prefill_count=3),
        PoolsCase(work=(0.5, 0.62)),
        PoolsCase(work=(0.7, 0.7), prefill_count=8),
        PoolsCase(work=(0.85, 0.55)),
        PoolsCase(work=(0.85, 0.3)),
        PoolsCase(work=(0.5, 0.85), prefill_count=8, decode=ROOMY),
        PoolsCase(work=(0.83, 0.85), prefill_count=5, decode=ROOMY),
        PoolsCase(work=(0.85, 0.85), prefill_count=13, decode=ROOMY),
    ]
    cases += [
        PoolsCase(work=work, transfer_seconds=seconds, transfer=kind)
        for work in ((0.5, 0.62), (0.8, 0.66))
        for seconds in (0.005, 0.2)
        for kind in (Transfer.PROPORTIONAL, Transfer.HALF, Transfer.CONSTANT)
    ]
    cases += [
        PoolsCase(work=work, through_ratio=share, short_direct=short)
        for work in ((0.5, 0.5), (0.8, 0.7))
        for share in (0.9, 0.75, 0.5)
        for short in (False, True)
    ]
    cases += [
        PoolsCase(prefill_count=1, work=(0.5, 0.35)),
        PoolsCase(prefill_count=1, work=(0.8, 0.5)),
        PoolsCase(prefill_count=12, work=(0.8, 0.7)),
        PoolsCase(least_loaded=False, work=(0.6, 0.74)),
        PoolsCase(least_loaded=False, work=(0.8, 0.5), through_ratio=0.7),
        PoolsCase(prefill=A100, decode=L4, prefill_count=2, work=(0.5, 0.5)),
        PoolsCase(lengths=Lengths.SHORT_OUTPUTS, work=(0.5, 0.2)),
        PoolsCase(lengths=Lengths.SHORT_OUTPUTS, work=(0.8, 0.25)),
        PoolsCase(lengths=Lengths.SHORT_OUTPUTS, work=(0.6, 0.35), through_ratio=0.6),
    ]
    return cases


def bound_cases() -> list[PoolsCase]:
    """Prompts that share the token budget of prefill steps: the law is a bound, as for one pool."""
    return [
        PoolsCase(prefill=A100, work=(0.7, 0.55)),
        PoolsCase(prefill=L4, decode=A100, work=(0.4, 0.4)),
        PoolsCase(prefill=L4, decode=A100, work=(0.6, 0.6)),
        PoolsCase(prefill=L4, decode=A100, work=(0.6, 0.6), transfer_seconds=0.2),
    ]


def exponential_cases() -> list[PoolsCase]:
    """Transfers whose time has nothing to do with the prompt."""
    return [
        PoolsCase(work=work, transfer_seconds=seconds, transfer=Transfer.EXPONENTIAL)
        for work in ((0.5, 0.5), (0.8, 0.7))
        for seconds in (0.005, 0.2)
    ]


HEADER = (
    "two pools                                                    work    | TTFT p50    p95    p99"
    "  ±p99 | latency p50  p95 | TPOT p95"
)


def lines(
    cases: list[PoolsCase], seeds: tuple[int, ...]
) -> Iterator[tuple[str, str, dict[float, float]]]:
    """A line and a name of each case, with errors of TTFT by percentile in percent, over seeds."""
    for case in cases:
        found = [compare_pools(replace(case, seed=seed)) for seed in seeds]
        errors = {
            percentile: 100.0 * (_mean(found, LatencyMetric.TTFT, percentile) - 1.0)
            for percentile in PERCENTILES
        }
        high = [float(np.percentile(one.outcome.ttft, 99.0)) for one in found]
        spread = 100.0 * np.std(high) / np.mean(high) / math.sqrt(len(high))
        latency = [100.0 * (_mean(found, LatencyMetric.LATENCY, p) - 1.0) for p in (50.0, 95.0)]
        token = 100.0 * (_mean(found, LatencyMetric.TPOT, 95.0) - 1.0)
        first = found[0]
        work = f"{first.prefill.work_ratio:.2f} {first.decode.work_ratio:.2f}"
        name = f"{case.label} x{first.decode_count}"
        words = (
            f"{name:60s} {work}"
            f" | {errors[50.0]:+8.1f} {errors[95.0]:+6.1f} {errors[99.0]:+6.1f} {spread:5.1f}"
            f" | {latency[0]:+10.1f} {latency[1]:+5.1f} | {token:+6.1f}"
        )
        yield words, f"{name} at {work}", errors


def _mean(found: list[PoolsComparison], metric: LatencyMetric, percentile: float) -> float:
    return float(np.mean([one.ratio(metric, percentile) for one in found]))
