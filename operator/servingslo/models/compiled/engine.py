"""The laws of an engine configuration and a mix of requests, each by one call of compiled code."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from servingslo.models.compiled.entry import Entries
from servingslo.models.compiled.judging import limit_numbers, percentile_numbers
from servingslo.models.compiled.lengths import gaps_of, work_of
from servingslo.models.compiled.prompts import prompt_constants
from servingslo.models.compiled.running import LAW_COUNT, fleet_numbers, law_of
from servingslo.models.compiled.tokens import length_numbers
from servingslo.models.judging import LoadLimits
from servingslo.models.load_laws import EngineLaws
from servingslo.models.objectives import LatencyMetric
from servingslo.models.occupancy import Occupancy
from servingslo.models.output_laws import GapMoments, OutputGaps
from servingslo.models.prompt_work import PromptWork
from servingslo.models.service_time import FloatArray
from servingslo.models.transform import TabulatedLaw, sine_table
from servingslo.models.workload import Workload


class PointLaw(NamedTuple):
    """A law given by weighted points in any order; as `AtomLaw`.

    points: seconds, and weights. least_seconds, most_seconds: that no point counts as outside of.
    """

    points: FloatArray
    least_seconds: float
    most_seconds: float
    entries: Entries

    def quantile(self, probability: float) -> float:
        """Time in seconds that this share of requests does not exceed; probability in (0, 1)."""
        return self.entries.quantile(
            self.points, self.least_seconds, self.most_seconds, probability
        )

    def share_within(self, seconds: float) -> float:
        """P(T ≤ t) for t in seconds."""
        return self.entries.share_within(
            self.points, self.least_seconds, self.most_seconds, seconds
        )


@dataclass(frozen=True, slots=True, eq=False)
class CompiledMaker:
    """A `Maker` of compiled kernels."""

    entries: Entries

    def lengths(
        self, workload: Workload, prefill_per_token_seconds: float
    ) -> tuple[OutputGaps, PromptWork]:
        """As `Maker`."""
        output, prompt = workload.output, workload.prompt
        gaps = self.entries.gap_rows(np.array(output.tokens), np.array(output.weights))
        prompts = self.entries.prompt_rows(
            np.array(prompt.tokens),
            np.array(prompt.weights),
            1.0 - workload.cached_ratio,
            prefill_per_token_seconds,
        )
        return gaps_of(*gaps), work_of(*prompts)

    def kernel(self, engine: EngineLaws) -> "CompiledKernel":
        """As `Maker`."""
        return CompiledKernel(engine, self.entries)


class CompiledKernel:
    """A `Kernel` whose constants are plain arrays."""

    __slots__ = (
        "_constants",
        "_engine",
        "_entries",
        "_lengths",
        "_limits",
        "_numbers",
        "_prompts",
        "_sines",
    )

    def __init__(self, engine: EngineLaws, entries: Entries) -> None:
        self._engine = engine
        self._entries = entries
        self._numbers: FloatArray = np.array(
            [
                *fleet_numbers(engine.demand, engine.fleet),
                engine.budget_tokens,
                engine.least_step_seconds,
                engine.most_step_seconds,
                engine.gaps.single_share,
            ]
        )
        self._lengths = length_numbers(engine.gaps)
        self._prompts = prompt_constants(engine.prompts)
        self._sines = sine_table()
        self._constants = self._numbers, self._lengths, self._prompts, self._sines
        # Those last asked for: a search asks for the same at every rate.
        self._limits: tuple[LoadLimits, FloatArray] | None = None

    def running(
        self, rate_per_second: float, replica_count: int, *, pooled: bool
    ) -> tuple[Occupancy, FloatArray]:
        """As `Kernel`."""
        numbers = self._entries.running_law(self._numbers, rate_per_second, replica_count, pooled)
        return law_of(numbers[:LAW_COUNT].tolist(), numbers[LAW_COUNT:]), numbers

    def first_token(self, rate_per_second: float, numbers: FloatArray) -> TabulatedLaw:
        """As `Kernel`."""
        return TabulatedLaw(
            *self._entries.first_token(
                self._numbers, self._prompts, self._sines, numbers, rate_per_second
            )
        )

    def gaps(self, rate_per_second: float, numbers: FloatArray) -> GapMoments:
        """As `Kernel`."""
        rows = self._entries.gaps(
            self._numbers, self._lengths, self._prompts, numbers, rate_per_second
        )
        count = self._lengths.shape[1]
        return GapMoments(
            rows[0, :count], rows[1, :count], rows[2, :count], float(rows[3, 0]), float(rows[3, 1])
        )

    def per_token(self, rate_per_second: float, numbers: FloatArray) -> PointLaw:
        """As `Kernel`."""
        points = self._entries.per_token(
            self._numbers, self._lengths, self._prompts, numbers, rate_per_second
        )
        engine = self._engine
        return PointLaw(points, engine.least_step_seconds, engine.most_step_seconds, self._entries)

    def judged(
        self,
        rate_per_second: float,
        replica_count: int,
        limits: LoadLimits,
        *,
        pooled: bool,
    ) -> list[float]:
        """As `Kernel`."""
        if self._limits is None or self._limits[0] is not limits:
            self._limits = limits, limit_numbers(self._engine, limits)
        entries = self._entries
        law = entries.running_law(self._numbers, rate_per_second, replica_count, pooled)
        found: list[float] = entries.judged(
            self._constants, law, rate_per_second, self._limits[1]
        ).tolist()
        return found

    def percentile(
        self, metric: LatencyMetric, share: float, rate_per_second: float, numbers: FloatArray
    ) -> float:
        """As `Kernel`."""
        rows = percentile_numbers(metric, share)
        return float(self._entries.judged(self._constants, numbers, rate_per_second, rows)[0])

    def full_batch(self, tpot_seconds: float, most_sequences: int) -> int:
        """As `Kernel`."""
        return self._entries.full_batch(self._numbers, self._lengths, tpot_seconds, most_sequences)

    def end_to_end(
        self, rate_per_second: float, numbers: FloatArray, first: TabulatedLaw
    ) -> PointLaw:
        """As `Kernel`."""
        table = np.array(first)
        points = self._entries.end_to_end(
            self._numbers, self._lengths, self._prompts, numbers, rate_per_second, table
        )
        return PointLaw(points, -np.inf, np.inf, self._entries)
