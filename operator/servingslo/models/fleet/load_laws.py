"""The percentile laws of loads, evaluated on first use, for many loads at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from servingslo.models.engine.kv_cache import HeldTokens
from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.running.occupancy import Occupancy, occupancies
from servingslo.models.running.replica_load import FleetLaw, replica_load
from servingslo.models.tokens.gap_loads import GapLoad
from servingslo.models.tokens.inter_token import gap_moments, parts_seen
from servingslo.models.tokens.output_laws import (
    GapMoments,
    OutputGaps,
    end_to_end_law,
    time_per_output_token_law,
)
from servingslo.models.transform import TabulatedLaw
from servingslo.models.waits.prompt_work import PromptWork, mean_steps
from servingslo.models.waits.slot_wait import time_to_first_token_laws


class RequestLaw(Protocol):
    """A law over requests, in seconds."""

    def quantile(self, probability: float) -> float:
        """Time in seconds that this share of requests does not exceed; probability in (0, 1)."""

    def share_within(self, seconds: float) -> float:
        """Return P(T ≤ t) for t in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaws:
    """One engine configuration and one mix of requests, as the percentile laws need them.

    demand: of a request. fleet: properties common to all loads. gaps, prompts: lengths, compacted
    to a few points. budget_tokens: of a step. least_step_seconds, most_step_seconds: an idle step,
    and one that is full of prefill. cap: running sequences at saturation.
    saturation_rate_per_second: of one replica. held: KV tokens of a running sequence.
    kv_capacity_tokens: size of the cache.
    """

    demand: RequestDemand
    fleet: FleetLaw
    gaps: OutputGaps
    prompts: PromptWork
    budget_tokens: float
    least_step_seconds: float
    most_step_seconds: float
    cap: float
    saturation_rate_per_second: float
    held: HeldTokens
    kv_capacity_tokens: float


class LoadLaws:
    """Known laws of one load below saturation; laws are None until evaluated.

    rate_per_second: of one replica. running: its running sequences. gaps: moments of the time per
    output token. ttft, tpot, latency: laws over requests.
    """

    __slots__ = (
        "gaps",
        "latency",
        "rate_per_second",
        "running",
        "tpot",
        "ttft",
    )

    def __init__(self, rate_per_second: float, running: Occupancy) -> None:
        self.rate_per_second = rate_per_second
        self.running = running
        self.gaps: GapMoments | None = None
        self.ttft: TabulatedLaw | None = None
        self.tpot: RequestLaw | None = None
        self.latency: RequestLaw | None = None


def load_laws(
    engine: EngineLaws,
    rates_per_second: Sequence[float],
    replica_counts: Sequence[int],
    *,
    pooled: bool,
) -> list[LoadLaws | None]:
    """Return loads by one replica's rate and the replica count; None at saturation and above."""
    most = engine.saturation_rate_per_second
    pairs = list(zip(rates_per_second, replica_counts, strict=True))
    demand, fleet = engine.demand, engine.fleet
    loads = [replica_load(demand, fleet, *pair, pooled) for pair in pairs if pair[0] < most]
    laws = iter(occupancies(demand, loads) if loads else ())
    return [LoadLaws(rate, next(laws)) if rate < most else None for rate, _ in pairs]


def evaluate_ttft(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[TabulatedLaw]:
    """Evaluate laws of the time to first token, in seconds, by load."""
    lacking = [load for load in loads if load.ttft is None]
    if lacking:
        laws = time_to_first_token_laws(
            engine.demand,
            engine.prompts,
            [load.running for load in lacking],
            [load.rate_per_second for load in lacking],
            engine.budget_tokens,
        )
        for load, law in zip(lacking, laws, strict=True):
            load.ttft = law
    return [load.ttft for load in loads if load.ttft is not None]


def first_token_laws_of(
    engine: EngineLaws, loads: Sequence[LoadLaws], own: PromptWork
) -> list[TabulatedLaw]:
    """Return laws of the time to first token of requests with these prompts among all, by load.

    own: of the same engine; its seconds may hold more than prefill. Nothing is kept.
    """
    return time_to_first_token_laws(
        engine.demand,
        engine.prompts,
        [load.running for load in loads],
        [load.rate_per_second for load in loads],
        engine.budget_tokens,
        own,
    )


def evaluate_gaps(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[GapMoments]:
    """Evaluate moments of the time per output token by output length, by load."""
    lacking = [load for load in loads if load.gaps is None]
    if lacking:
        seen = [_gap_load(engine, load) for load in lacking]
        moments = gap_moments(engine.demand, engine.gaps, seen, engine.budget_tokens)
        for load, gaps in zip(lacking, moments, strict=True):
            load.gaps = gaps
    return [load.gaps for load in loads if load.gaps is not None]


def evaluate_tpot(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[RequestLaw]:
    """Evaluate laws of the time per output token over requests, in seconds, by load."""
    bounds = engine.least_step_seconds, engine.most_step_seconds
    for load, moments in zip(loads, evaluate_gaps(engine, loads), strict=True):
        if load.tpot is None:
            seen = _gap_load(engine, load)
            parts = parts_seen(engine.demand, engine.gaps, seen, moments, engine.budget_tokens)
            load.tpot = time_per_output_token_law(engine.gaps, parts, bounds)
    return [load.tpot for load in loads if load.tpot is not None]


def evaluate_latency(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[RequestLaw]:
    """Evaluate laws of the end-to-end latency over requests, in seconds, by load."""
    known = zip(loads, evaluate_gaps(engine, loads), evaluate_ttft(engine, loads), strict=True)
    for load, gap, first in known:
        if engine.gaps.single_share >= 1.0:
            # The first token is the last one.
            load.latency = first
        elif load.latency is None:
            load.latency = end_to_end_law(
                engine.gaps, gap.every, first.cumulants(), engine.least_step_seconds
            )
    return [load.latency for load in loads if load.latency is not None]


def _gap_load(engine: EngineLaws, load: LoadLaws) -> GapLoad:
    running = load.running
    return GapLoad(
        rate_per_second=load.rate_per_second,
        mean=running.mean,
        variance=running.variance,
        pool_count=running.pool_count,
        bursts=running.bursts,
        prefill_steps=mean_steps(engine.prompts, engine.budget_tokens - running.mean),
    )
