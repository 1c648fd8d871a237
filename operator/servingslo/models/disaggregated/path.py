"""Percentiles of requests that pass a prefill pool and then a decode pool.

The client gets the first token from decode: TTFT is the wait and prefill in the prefill pool, the
transfer of the KV cache, and the time to the first step in the decode pool. Requests that do not
pass the prefill pool are prefilled by decode, next to those that come with their cache.

Law: convolution of the laws of both pools, see `sums`; percentiles are never added.
Source: Y. Zhong et al., DistServe, OSDI 2024, for the parts of the time.
Assumes: the waits of both pools are independent; arrivals at decode are as variable as those of all
requests. The transfer grows with the prompt, as the own prefill does, but for a fixed part.
Fails: a busy prefill pool of a dozen replicas, and prompts that share a token budget: TTFT p95 12
and 17 % late. Transfers that have nothing to do with the prompt: p95 28 % late. Not modelled:
transfers that wait for each other, and a prefill cache full of prompts to be handed over.
Shown by: `make validate`, "two pools": TTFT p95 within 10 %, p99 at most 6 % early, at work ratios
of 0.15 to 0.85, transfers of 5 to 200 ms, and up to half of the requests direct.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.disaggregated.sums import Law, mixed_law, scaled, sum_law
from servingslo.models.engine.service_time import FloatArray
from servingslo.models.fleet.load_laws import (
    EngineLaws,
    LoadLaws,
    RequestLaw,
    evaluate_gaps,
    evaluate_tpot,
    evaluate_ttft,
    first_token_laws_of,
)
from servingslo.models.fleet.objective_metrics import ROW_OF, ROWS
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.numerics import TINY_NUMBER, TINY_TOKENS
from servingslo.models.objectives import LatencyMetric
from servingslo.models.tokens.output_laws import end_to_end_law
from servingslo.models.transform import TabulatedLaw
from servingslo.models.waits.prompt_work import PromptWork

# Metrics whose time passes on both ways through the pools; TPOT is of decode alone.
JOINT_METRICS = frozenset(row.metric for row in ROWS if row.along_path)
# Shares of requests by which the table of an exponential wait is made.
_WAIT_SHARES: FloatArray = 1.0 - np.geomspace(1.0, 1e-6, 64)


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLaw:
    """The time to hand a KV cache over.

    mean_seconds: over requests. fixed_seconds: the part that does not grow with the prompt; the
    rest is proportional to it. Raises: InvalidInputError for a fixed part outside 0 to the mean.
    """

    mean_seconds: float
    fixed_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fixed_seconds <= self.mean_seconds < math.inf:
            allowed = f"0 to mean_seconds ({self.mean_seconds})"
            raise InvalidInputError("fixed_seconds", self.fixed_seconds, allowed)

    def seconds(self, prompts: PromptWork) -> FloatArray:
        """Return the time of each of these prompts."""
        mean = max(float(prompts.weights @ prompts.tokens), TINY_TOKENS)
        growing = self.mean_seconds - self.fixed_seconds
        times: FloatArray = self.fixed_seconds + growing * (prompts.tokens / mean)
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The way of requests through both pools.

    through_ratio: share of requests that pass the prefill pool; decode prefills the others.
    transfer: of those that pass. Raises: InvalidInputError for a share outside 0 to 1.
    """

    through_ratio: float
    transfer: TransferLaw

    def __post_init__(self) -> None:
        if not 0.0 <= self.through_ratio <= 1.0:
            raise InvalidInputError("through_ratio", self.through_ratio, "0 to 1")


class FirstTokens(NamedTuple):
    """Times to first token at decode, as those of `DecodeTimes`."""

    through: TabulatedLaw | None
    direct: TabulatedLaw | None


class DecodeTimes(NamedTuple):
    """A metric at decode: of requests that come with their cache, and of direct ones.

    None where there are no such requests.
    """

    through: Law | None
    direct: Law | None


@dataclass(frozen=True, slots=True)
class PathLaws:
    """The laws of both pools as the path needs them, for one mix of requests.

    prefill, decode: the engines. *_calibration: observed over predicted time of each pool's own
    metric. Prompts by class are prepared once: with their transfer; with their cache; direct ones.
    """

    prefill: EngineLaws
    decode: EngineLaws
    path: Path
    prefill_calibration: Mapping[str, float] = field(default_factory=dict)
    decode_calibration: Mapping[str, float] = field(default_factory=dict)
    _handed: PromptWork = field(init=False, repr=False)
    _through: PromptWork | None = field(init=False, repr=False)
    _direct: PromptWork | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        prompts, ratio = self.prefill.prompts, _ratio(self.prefill_calibration, LatencyMetric.TTFT)
        own = prompts.seconds + self.path.transfer.seconds(prompts) / ratio
        object.__setattr__(self, "_handed", _work(own, prompts.weights, prompts.tokens))
        cut = self.path.through_ratio
        object.__setattr__(self, "_through", _part(self.decode.prompts, 0.0, cut))
        object.__setattr__(self, "_direct", _part(self.decode.prompts, cut, 1.0))

    def prefill_times(self, loads: Sequence[Prediction], metric: LatencyMetric) -> list[Law | None]:
        """Return calibrated laws of the time before decode, by load; None when unstable."""
        return _where_stable(loads, lambda laws: self._prefill_times(laws, metric))

    def decode_first(self, loads: Sequence[Prediction]) -> list[FirstTokens | None]:
        """Return uncalibrated laws of the first token at decode, by load; None when unstable."""
        return _where_stable(loads, self._decode_first)

    def decode_times(
        self,
        loads: Sequence[Prediction],
        metric: LatencyMetric,
        first: Sequence[FirstTokens | None] | None = None,
    ) -> list[DecodeTimes | None]:
        """Return calibrated laws of the time at decode, by load; None when unstable.

        first: `decode_first` of these loads, if it is known.
        """
        known = self.decode_first(loads) if first is None else first
        return [
            None
            if one.laws is None or tokens is None
            else DecodeTimes(*(self._decode_time(one.laws, metric, law) for law in tokens))
            for one, tokens in zip(loads, known, strict=True)
        ]

    def client_law(self, before: Law | None, there: DecodeTimes | None) -> Law | None:
        """Return the law over all requests, from the times in both pools; None when unstable."""
        if there is None or (before is None and there.through is not None):
            return None
        if there.through is None or before is None:
            return there.direct
        joined = sum_law(before, there.through)
        if there.direct is None:
            return joined
        return mixed_law(joined, there.direct, self.path.through_ratio)

    def _prefill_times(self, loads: Sequence[LoadLaws], metric: LatencyMetric) -> list[Law]:
        if ROW_OF[metric].only_waits:
            ratio = _ratio(self.prefill_calibration, metric)
            return [scaled(_wait_law(load), ratio) for load in loads]
        ratio = _ratio(self.prefill_calibration, LatencyMetric.TTFT)
        if self.path.transfer.mean_seconds == 0.0:
            return [scaled(law, ratio) for law in evaluate_ttft(self.prefill, loads)]
        found = first_token_laws_of(self.prefill, loads, self._handed)
        return [scaled(law, ratio) for law in found]

    def _decode_first(self, loads: Sequence[LoadLaws]) -> list[FirstTokens]:
        both = self._first_of(loads, self._through), self._first_of(loads, self._direct)
        return [FirstTokens(*pair) for pair in zip(*both, strict=True)]

    def _first_of(
        self, loads: Sequence[LoadLaws], own: PromptWork | None
    ) -> Sequence[TabulatedLaw | None]:
        """Return laws of the requests with these prompts; None where there are none."""
        if own is None:
            return [None] * len(loads)
        if own is self.decode.prompts:
            return evaluate_ttft(self.decode, loads)
        return first_token_laws_of(self.decode, loads, own)

    def _decode_time(
        self, load: LoadLaws, metric: LatencyMetric, first: TabulatedLaw | None
    ) -> Law | None:
        """Return the calibrated law of a metric of requests with this law of the first token."""
        if first is None:
            return None
        law: Law = first
        if ROW_OF[metric].only_waits:
            law = _wait_law(load)
        elif metric is LatencyMetric.LATENCY:
            (gap,) = evaluate_gaps(self.decode, (load,))
            law = end_to_end_law(
                self.decode.gaps, gap.every, first.cumulants(), self.decode.least_step_seconds
            )
        return scaled(law, _ratio(self.decode_calibration, metric))


def _where_stable(
    loads: Sequence[Prediction], evaluate: Callable[[list[LoadLaws]], Sequence[_T]]
) -> list[_T | None]:
    """Return the values of the stable loads, and None of the others."""
    stable = [one.laws for one in loads if one.laws is not None]
    found = iter(evaluate(stable) if stable else ())
    return [None if one.laws is None else next(found) for one in loads]


def _ratio(calibration: Mapping[str, float], metric: LatencyMetric) -> float:
    return calibration.get(metric, 1.0)


def _work(seconds: FloatArray, weights: FloatArray, tokens: FloatArray) -> PromptWork:
    """Return prompts whose own time is this."""
    return PromptWork(
        seconds=seconds,
        weights=weights,
        tokens=tokens,
        mean_seconds=float(weights @ seconds),
        second_moment_seconds2=float(weights @ seconds**2),
        longest_seconds=float(seconds[-1]),
    )


def _part(prompts: PromptWork, low: float, high: float) -> PromptWork | None:
    """Return the prompts between these shares, shortest first; None if there are none.

    With its cache a request has less to prefill than any direct one.
    """
    if high <= low:
        return None
    if high - low >= 1.0:
        return prompts
    above = np.cumsum(prompts.weights)
    inside = np.clip(above, low, high) - np.clip(above - prompts.weights, low, high)
    kept = inside > TINY_NUMBER
    if not kept.any():  # a share that differs from all or none by rounding alone
        return None
    weights = inside[kept] / inside[kept].sum()
    return _work(prompts.seconds[kept], weights, prompts.tokens[kept])


def _wait_law(load: LoadLaws) -> TabulatedLaw:
    """Return the law of the wait for a slot: none, or an exponential time."""
    waiting, rate = load.running.wait_probability, load.running.wait_rate_per_second
    seconds = -np.log1p(-_WAIT_SHARES) / rate
    return TabulatedLaw(seconds, 1.0 - waiting * (1.0 - _WAIT_SHARES))


def path_law(
    prefill: Prediction, decode: Prediction, path: Path, metric: LatencyMetric
) -> RequestLaw | None:
    """Return the law over all requests of a metric that the client sees; None when unstable.

    prefill, decode: each pool under its own load, with the requests of `workloads`.
    """
    laws = PathLaws(prefill.engine, decode.engine, path)
    if metric is LatencyMetric.TPOT:
        return None if decode.laws is None else evaluate_tpot(decode.engine, (decode.laws,))[0]
    (before,) = laws.prefill_times([prefill], metric)
    (there,) = laws.decode_times([decode], metric)
    return laws.client_law(before, there)


def path_seconds(
    prefill: Prediction,
    decode: Prediction,
    path: Path,
    metric: LatencyMetric,
    percentile: float,
) -> float:
    """Return the time that this percent of requests does not exceed; inf when unstable.

    Raises: InvalidInputError for a percentile outside 0 to 100.
    """
    if not 0.0 < percentile < 100.0:
        raise InvalidInputError("percentile", percentile, "between 0 and 100, in percent")
    law = path_law(prefill, decode, path, metric)
    return math.inf if law is None else law.quantile(percentile / 100.0)


def path_share_within(
    prefill: Prediction,
    decode: Prediction,
    path: Path,
    metric: LatencyMetric,
    seconds: float,
) -> float:
    """Return the share of requests whose metric is at most this, 0 to 1; 0 when unstable."""
    law = path_law(prefill, decode, path, metric)
    return 0.0 if law is None else min(max(law.share_within(seconds), 0.0), 1.0)
