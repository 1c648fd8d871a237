"""The percentile laws of loads, evaluated on first use, for many loads at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from servingslo.models.engine.kv_cache import HeldTokens
from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.fleet.tangents import Tangent, Tangents
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaws:
    """One engine configuration and one mix of requests, as the percentile laws need them.

    demand: of a request; of a law that bends, at saturation. tangents: of such a law, else None.
    fleet: properties common to all loads. gaps, prompts: lengths, compacted
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
    tangents: Tangents | None = None

    def at_rate(self, rate_per_second: float) -> Tangent:
        """Return demand and prompts at this rate of one replica."""
        if self.tangents is None:
            return Tangent(self.demand, self.prompts)
        return self.tangents.at_rate(rate_per_second)

    def at_sequences(self, sequence_count: float) -> RequestDemand:
        """Return the demand where so many sequences run."""
        return self.tangents.at_sequences(sequence_count).demand if self.tangents else self.demand


class LoadLaws:
    """Known laws of one load below saturation; laws are None until evaluated.

    demand, prompts: of the engine at this load. rate_per_second: of one replica. running: its
    running sequences. gaps: moments of the time per output token. ttft, tpot, latency: laws over
    requests.
    """

    __slots__ = (
        "demand",
        "gaps",
        "latency",
        "prompts",
        "rate_per_second",
        "running",
        "tpot",
        "ttft",
    )

    def __init__(self, tangent: Tangent, rate_per_second: float, running: Occupancy) -> None:
        self.demand, self.prompts = tangent
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
    tangents = [engine.at_rate(rate) if rate < most else None for rate, _ in pairs]
    found: dict[int, LoadLaws] = {}
    for tangent, places in _alike(tangents):
        demand = tangent.demand
        loads = [replica_load(demand, engine.fleet, *pairs[i], pooled) for i in places]
        for i, running in zip(places, occupancies(demand, loads), strict=True):
            found[i] = LoadLaws(tangent, pairs[i][0], running)
    return [found.get(i) for i in range(len(pairs))]


def _alike(tangents: Sequence[Tangent | None]) -> Iterable[tuple[Tangent, list[int]]]:
    """Return each tangent with its places, so that loads are evaluated together."""
    groups: dict[int, tuple[Tangent, list[int]]] = {}
    for place, tangent in enumerate(tangents):
        if tangent is not None:
            groups.setdefault(id(tangent.demand), (tangent, []))[1].append(place)
    return groups.values()


def evaluate_ttft(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[TabulatedLaw]:
    """Evaluate laws of the time to first token, in seconds, by load."""
    lacking = [load for load in loads if load.ttft is None]
    for load, law in zip(lacking, _first_token_laws(engine, lacking), strict=True):
        load.ttft = law
    return [load.ttft for load in loads if load.ttft is not None]


def _first_token_laws(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[TabulatedLaw]:
    found: dict[int, TabulatedLaw] = {}
    for (demand, prompts), places in _alike([Tangent(one.demand, one.prompts) for one in loads]):
        laws = time_to_first_token_laws(
            demand,
            prompts,
            [loads[i].running for i in places],
            [loads[i].rate_per_second for i in places],
            engine.budget_tokens,
        )
        found.update(zip(places, laws, strict=True))
    return [found[i] for i in range(len(loads))]


def evaluate_gaps(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[GapMoments]:
    """Evaluate moments of the time per output token by output length, by load."""
    for load in loads:
        if load.gaps is None:
            seen = [_gap_load(engine, load)]
            (load.gaps,) = gap_moments(load.demand, engine.gaps, seen, engine.budget_tokens)
    return [load.gaps for load in loads if load.gaps is not None]


def evaluate_tpot(engine: EngineLaws, loads: Sequence[LoadLaws]) -> list[RequestLaw]:
    """Evaluate laws of the time per output token over requests, in seconds, by load."""
    bounds = engine.least_step_seconds, engine.most_step_seconds
    for load, moments in zip(loads, evaluate_gaps(engine, loads), strict=True):
        if load.tpot is None:
            seen = _gap_load(engine, load)
            parts = parts_seen(load.demand, engine.gaps, seen, moments, engine.budget_tokens)
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
        prefill_steps=mean_steps(load.prompts, engine.budget_tokens - running.mean),
    )
