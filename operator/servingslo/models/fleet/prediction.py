"""Percentiles of one fleet under one load, and their evaluation for many loads at once."""

import math

from servingslo.errors import InvalidInputError
from servingslo.models.engine import capacity
from servingslo.models.engine.kv_cache import kv_usage_quantile
from servingslo.models.fleet.load_laws import (
    EngineLaws,
    LoadLaws,
    evaluate_gaps,
    evaluate_latency,
    evaluate_tpot,
    evaluate_ttft,
)
from servingslo.models.objectives import LatencyMetric


class Prediction:
    """Percentiles of a group under a load; laws are evaluated on first use.

    metrics: those that have percentiles. engine: its engine. laws: those of the load; None at or
    above saturation, and every time is then math.inf. `prepare` evaluates the laws of many loads at
    once.
    """

    __slots__ = ("_rate", "engine", "laws")
    metrics = frozenset(LatencyMetric)

    def __init__(self, engine: EngineLaws, rate_per_second: float, laws: LoadLaws | None) -> None:
        self.engine = engine
        self._rate = rate_per_second
        self.laws = laws

    @property
    def stable(self) -> bool:
        """Whether the load is below saturation."""
        return self.laws is not None

    @property
    def work_ratio(self) -> float:
        """λ·t_req of a replica."""
        return capacity.work_ratio(self.engine.at_rate(self._rate).demand, self._rate)

    @property
    def utilization(self) -> float:
        """Arrival rate over saturation rate, of a replica."""
        return self._rate / self.engine.saturation_rate_per_second

    @property
    def running_mean(self) -> float:
        """Mean running sequences of one replica; inf when unstable.

        By Little's law from the time that a request runs, prefill and gaps, and at most the cap.
        """
        if self.laws is None:
            return math.inf
        engine = self.engine
        (moments,), gaps = evaluate_gaps(engine, (self.laws,)), engine.gaps
        decoding = float(gaps.weighted @ moments.every.mean) * (1.0 - gaps.single_share)
        return min(self._rate * (moments.prefill_seconds + decoding), self.engine.cap)

    @property
    def running_floor(self) -> float:
        """A cheap lower bound of `running_mean`: no token takes less than a bare step."""
        if self.laws is None:
            return math.inf
        gaps, step = self.engine.gaps, self.laws.demand.step_fixed_seconds
        decoding = step * float(gaps.weighted.sum()) * (1.0 - gaps.single_share)
        return min(self._rate * decoding, self.engine.cap)

    @property
    def running_variance(self) -> float:
        """Variance over time of the running sequences of one replica; inf when unstable."""
        return self.laws.running.variance if self.laws else math.inf

    @property
    def kv_usage_ratio(self) -> float:
        """Mean share of the KV cache in use, 0 to 1; inf when unstable."""
        if self.laws is None:
            return math.inf
        return min(
            self.laws.running.mean * self.engine.held.mean / self.engine.kv_capacity_tokens, 1.0
        )

    def kv_usage_quantile(self, percentile: float) -> float:
        """Share of the KV cache not exceeded this percent of the time; inf when unstable."""
        if self.laws is None:
            return math.inf
        return kv_usage_quantile(
            self.engine.held,
            self.laws.running.mean,
            self.laws.running.variance,
            self.engine.cap,
            self.engine.kv_capacity_tokens,
            percentile,
        )

    @property
    def itl_mean_seconds(self) -> float:
        """Mean time between tokens over all gaps; inf when unstable.

        A gap is sampled in proportion to the sequences that run in its step.
        """
        if self.laws is None:
            return math.inf
        (moments,) = evaluate_gaps(self.engine, (self.laws,))
        per_gap = self.engine.gaps.weighted
        return float(per_gap @ moments.every.mean / per_gap.sum())

    def ttft_seconds(self, percentile: float) -> float:
        """Time to first token not exceeded by this percent of requests; inf when unstable."""
        share = _share(percentile)
        if self.laws is None:
            return math.inf
        (law,) = evaluate_ttft(self.engine, (self.laws,))
        return law.quantile(share)

    def tpot_seconds(self, percentile: float) -> float:
        """Time per output token not exceeded by this percent of requests; inf when unstable.

        Over requests with at least two tokens.
        """
        share = _share(percentile)
        if self.laws is None:
            return math.inf
        (law,) = evaluate_tpot(self.engine, (self.laws,))
        return law.quantile(share)

    def mean_seconds(self, metric: LatencyMetric) -> float | None:  # noqa: ARG002 - of the protocol
        """Return None: clients' latencies are in histograms, so no mean is needed."""
        return None

    def queue_seconds(self, percentile: float) -> float:
        """Wait for a slot not exceeded by this percent of requests; inf when unstable.

        The rest of the step in progress is no wait for a slot; it is part of TTFT.
        """
        if self.laws is None:
            return math.inf
        beyond, running = 1.0 - _share(percentile), self.laws.running
        if running.wait_probability <= beyond:
            return 0.0
        return math.log(running.wait_probability / beyond) / running.wait_rate_per_second

    def latency_seconds(self, percentile: float) -> float:
        """End-to-end latency not exceeded by this percent of requests; inf when unstable."""
        share = _share(percentile)
        if self.laws is None:
            return math.inf
        (law,) = evaluate_latency(self.engine, (self.laws,))
        return law.quantile(share)


def _share(percentile: float) -> float:
    if not 0 < percentile < 100:
        raise InvalidInputError("percentile", percentile, "between 0 and 100, in percent")
    return percentile / 100.0
