"""The service law of one configuration, fitted by accounting for engine time.

Over a window in which an engine never idles its time is
T = a·steps + b·generated + c·uncached prompt tokens + d·Σ context, linear in exported counters.
Context per sequence hardly varies inside one workload, so b and d cannot be told apart: the fit
returns b + d·k̄ as b and no d, which is all that is needed for that workload.
Source: accounting identity of continuous batching; step law of Machine Learning Systems
(V. J. Reddi), appendix "Inference Foundations", equation 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from servingslo.estimation.law.least_squares import (
    EMPTY_INFORMATION,
    Information,
    Vector,
    add_row,
    pulled,
    residual_variance,
    solve_nonnegative,
    standard_error,
)
from servingslo.estimation.law.rows import Row
from servingslo.estimation.windows.plausible import is_law
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Reason

# Windows before a fit may be trusted: two minutes of one engine at 15 s scrapes.
LEAST_WINDOWS = 8
# Windows before a prediction is scored.
LEAST_SCORED_WINDOWS = 4
# Largest mean out-of-sample error of a window's busy time, and largest relative standard error of
# the step time extrapolated to twice the concurrency seen: beyond either, sizing would be a guess.
TRUSTED_ERROR_RATIO = 0.15
TRUSTED_STANDARD_ERROR_RATIO = 0.20
EXTRAPOLATION_FACTOR = 2.0
# Memory of the error average, in windows.
ERROR_MEMORY_WINDOWS = 20.0
# Memory of the fit, in windows; long, because a law changes with its configuration, not with time.
FIT_MEMORY_WINDOWS = 2000.0
# Share of the information that survives when predictions stay biased: the engine itself changed.
CHANGED_ENGINE_KEEP_RATIO = 0.05
BIASED_RATIO = 0.10
# A law that is wrong by half gives nothing away: what it rests on did not happen, as where a page
# told a window of twenty times its work.
WRONG_RATIO = 0.5
# Weight, in windows, of what an unchanged engine under new limits inherits.
INHERITED_WINDOWS = 8.0

# What b and c are where nothing tells, relative to the mean step time, and how uncertain: between
# b = 1/65 (8B model on an H100, context included), 1/23 (on an L4) and 1/9 (vLLM 0.32.0 on a CPU)
# of a; c = 1/217 and 1/188 of a on the cards. A few loaded windows outweigh it; without it a fit at
# night could say that concurrency costs nothing.
PRIOR_SEQUENCE_RATIO = 1 / 40
PRIOR_PREFILL_RATIO = 1 / 200
PRIOR_SPREAD = 1.5

# Residuals beyond this many standard deviations lose weight (Huber 1964).
HUBER_DEVIATIONS = 2.5
REMEMBERED_CONFIGURATIONS = 4
# Between the products of a fleet on several kinds of cards.
CARD_SEPARATOR = " + "


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a law belongs to: another template, image, card or limit may mean another law.

    gpu_product: of all cards, joined where they differ; None while no exporter tells.
    """

    template_hash: str | None = None
    image: str | None = None
    gpu_product: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def same_engine(self, other: "Configuration") -> bool:
        """Whether step times carry over: the same image, and a card in common as far as known."""
        mine, theirs = _cards(self), _cards(other)
        return self.image == other.image and (not mine or not theirs or bool(mine & theirs))

    def same_as(self, other: "Configuration") -> bool:
        """Whether nothing that is known of both differs: a card that is not told is no other."""
        unknown = self.gpu_product is None or other.gpu_product is None
        return self == other or (unknown and replace(self, gpu_product=other.gpu_product) == other)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLaw:
    """A law and how well it predicted so many windows: one that was trusted, or is stated."""

    law: ServiceLaw
    error_ratio: float
    window_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """The running fit of one configuration.

    error_ratio, bias_ratio: moving averages of |predicted − observed| / observed and of its signed
    value, out of sample. window_count: windows that entered. sequences_high: largest concurrency
    seen (slowly forgotten); prefill_per_step_tokens: moving average. stated: the score of the law
    that the resource states, on this configuration; None where it has none yet.
    sequence_ratio: what b/a is where nothing tells.
    """

    configuration: Configuration
    information: Information = EMPTY_INFORMATION
    window_count: int = 0
    scored_count: int = 0
    error_ratio: float | None = None
    bias_ratio: float = 0.0
    sequences_high: float = 0.0
    prefill_per_step_tokens: float = 0.0
    trusted: ScoredLaw | None = None
    inherited: bool = False
    stated: ScoredLaw | None = None
    sequence_ratio: float = PRIOR_SEQUENCE_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class LawState:
    """Fits of the configurations seen last, the current one first."""

    fits: tuple[LawFit, ...] = ()


class LawSource(StrEnum):
    """Where the law that is planned with comes from.

    FIT: the running fit. LAST_TRUSTED: an earlier fit of this engine that still predicts. STATED:
    the resource. COUNTERS, STATISTICS: a fit of whole requests, to a server's counters or to what
    it tells by size of a batch. SATURATION: measured saturation decides, whatever law there is.
    """

    FIT = "fit"
    LAST_TRUSTED = "last-trusted"
    STATED = "spec"
    COUNTERS = "counters"
    STATISTICS = "statistics"
    SATURATION = "saturation"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LawEstimate:
    """The law to plan with, whether it may be used, and why.

    law: None when there is none at all.
    fit_error: mean out-of-sample error of a window's busy time, with that of limits which are
    assumed. standard_error_ratio: of the
    step time at twice the concurrency seen. sample_count: windows behind the fit, or behind the
    error of a stated law. stated_error_ratio: of a law that the resource states, where it is known.
    Use it only when `trusted`.
    """

    law: ServiceLaw | None = None
    trusted: bool = False
    reason: Reason = Reason.MODEL_LEARNING
    source: LawSource = LawSource.NONE
    fit_error: float | None = None
    sample_count: int = 0
    standard_error_ratio: float | None = None
    stated_error_ratio: float | None = None


def select_configuration(state: LawState, configuration: Configuration) -> LawState:
    """The state with this configuration's fit first, started where it is new.

    An unchanged engine under a new template or new limits inherits what was learnt as a weak prior;
    another image or card starts from nothing.
    """
    if state.fits and state.fits[0].configuration == configuration:
        return state
    known = next((f for f in state.fits if f.configuration.same_as(configuration)), None)
    others = tuple(f for f in state.fits if f is not known)
    if known is not None and configuration.gpu_product is not None:
        known = replace(known, configuration=configuration)
    fit = known or _new_fit(configuration, others)
    return LawState(fits=(fit, *others)[:REMEMBERED_CONFIGURATIONS])


def _cards(configuration: Configuration) -> frozenset[str]:
    product = configuration.gpu_product
    return frozenset(product.split(CARD_SEPARATOR)) if product else frozenset()


def _new_fit(configuration: Configuration, others: tuple[LawFit, ...]) -> LawFit:
    relative = next(
        (f for f in others if f.trusted and f.configuration.same_engine(configuration)), None
    )
    if relative is None:
        return LawFit(configuration=configuration, inherited=bool(others))
    weight = relative.information.weight
    keep = min(1.0, INHERITED_WINDOWS / weight) if weight > 0 else 1.0
    return replace(
        relative,
        configuration=configuration,
        information=relative.information.scaled(keep),
        window_count=0,
        scored_count=0,
        error_ratio=None,
        bias_ratio=0.0,
        inherited=True,
        stated=None,
    )


def learn(fit: LawFit, rows: Sequence[Row]) -> LawFit:
    """The fit after one tick's windows: scored against the law before them, then updated."""
    law = solution(fit) if rows else None
    for row in rows:
        predicted = (
            None if law is None else sum(x * value for x, value in zip(row.x, law, strict=True))
        )
        fit = _updated(fit, row, predicted)
    if fit.scored_count >= ERROR_MEMORY_WINDOWS and abs(fit.bias_ratio) > BIASED_RATIO:
        # Errors stay on one side: the engine itself changed under the same configuration, and what
        # was trusted was the law of another one.
        if abs(fit.bias_ratio) > WRONG_RATIO:
            return LawFit(configuration=fit.configuration, stated=fit.stated)
        return replace(
            fit,
            information=fit.information.scaled(CHANGED_ENGINE_KEEP_RATIO),
            scored_count=0,
            bias_ratio=0.0,
            trusted=None,
        )
    return fit


def _updated(fit: LawFit, row: Row, predicted_ratio: float | None) -> LawFit:
    """The fit with one more window; a residual that stands out loses weight (Huber).

    predicted_ratio: predicted over observed busy time, out of sample; None before there is a law.
    """
    weight = 1.0 / row.error_ratio**2
    error_ratio, bias_ratio, scored = fit.error_ratio, fit.bias_ratio, fit.scored_count
    if (
        row.scored
        and predicted_ratio is not None
        and (fit.window_count >= LEAST_SCORED_WINDOWS or fit.inherited)
    ):
        # One wild window must not decide over the gate, so its part is bounded.
        error = min(max(predicted_ratio - 1.0, -1.0), 1.0)
        step = 1.0 / min(scored + 1.0, ERROR_MEMORY_WINDOWS)
        before = error_ratio if error_ratio is not None else abs(error)
        error_ratio = before + step * (abs(error) - before)
        bias_ratio += step * (error - bias_ratio)
        scored += 1
    if predicted_ratio is not None and scored >= LEAST_SCORED_WINDOWS:
        deviation = abs(1.0 - predicted_ratio) / row.error_ratio
        weight *= min(1.0, HUBER_DEVIATIONS / deviation) if deviation > 0 else 1.0
    keep = 1.0 - 1.0 / FIT_MEMORY_WINDOWS
    smoothing = 1.0 / min(fit.window_count + 1.0, ERROR_MEMORY_WINDOWS)
    return replace(
        fit,
        information=add_row(fit.information, row.x, weight, keep),
        window_count=fit.window_count + row.scored,
        scored_count=scored,
        error_ratio=error_ratio,
        bias_ratio=bias_ratio,
        sequences_high=max(fit.sequences_high * keep, row.sequences),
        prefill_per_step_tokens=fit.prefill_per_step_tokens
        + smoothing * (row.prefill_per_step_tokens - fit.prefill_per_step_tokens),
        sequence_ratio=row.sequence_ratio or fit.sequence_ratio,
    )


def judge(fit: LawFit) -> tuple[LawFit, LawEstimate]:
    """The law to use from this fit, and the fit with its last trusted law brought up to date."""
    values = solution(fit)
    error = standard_error_ratio(fit)
    reason = _reason(fit, values, error)
    wrong = fit.error_ratio is not None and fit.error_ratio > WRONG_RATIO
    law = None if values is None or wrong else _law(values)
    estimate = LawEstimate(
        law=law,
        reason=reason,
        source=LawSource.NONE if law is None else LawSource.FIT,
        fit_error=fit.error_ratio,
        sample_count=fit.window_count,
        standard_error_ratio=error,
    )
    if reason is Reason.MODEL_TRUSTED and estimate.law is not None:
        trusted = ScoredLaw(
            law=estimate.law, error_ratio=fit.error_ratio or 0.0, window_count=fit.window_count
        )
        return replace(fit, trusted=trusted, inherited=False), replace(estimate, trusted=True)
    last = fit.trusted
    if last is None or reason is Reason.MODEL_DOES_NOT_PREDICT:
        return fit, estimate
    return fit, replace(
        estimate,
        law=last.law,
        trusted=True,
        reason=Reason.CONFIGURATION_CHANGED if fit.inherited else Reason.MODEL_TRUSTED,
        source=LawSource.LAST_TRUSTED,
        fit_error=last.error_ratio,
        sample_count=last.window_count,
    )


def with_assumed(estimate: LawEstimate, error_ratios: Sequence[float]) -> LawEstimate:
    """The estimate with a stated error that tells of what is assumed beside the law."""
    if estimate.fit_error is None or not error_ratios:
        return estimate
    return replace(estimate, fit_error=math.hypot(estimate.fit_error, *error_ratios))


def _reason(fit: LawFit, values: tuple[float, float, float] | None, error: float | None) -> Reason:
    if fit.error_ratio is not None and fit.error_ratio > TRUSTED_ERROR_RATIO:
        return Reason.MODEL_DOES_NOT_PREDICT
    if values is None or fit.window_count < LEAST_WINDOWS:
        return Reason.CONFIGURATION_CHANGED if fit.inherited else Reason.MODEL_LEARNING
    if error is None or error > TRUSTED_STANDARD_ERROR_RATIO or not is_law(_law(values)):
        return Reason.MODEL_NOT_IDENTIFIABLE
    return Reason.MODEL_TRUSTED


def solution(fit: LawFit) -> Vector | None:
    """(a, b, c) of the fit, None before the first window."""
    return solve_nonnegative(_with_prior(fit.information, fit.sequence_ratio))


def _with_prior(information: Information, sequence_ratio: float) -> Information:
    """The equations with weak ones for b and c, in units of the mean step time so far.

    Where nothing decodes, steps are mostly prefill, and nearly all as full as each other: a and c
    are hardly told apart, and what they have in common is all that matters there. So the unit is
    what of the step is not prefill, and the equations weigh as much as all windows together.
    """
    if information.normal[0] <= 0:
        return information
    step_seconds, strength = information.moment[0] / information.normal[0], 1.0
    if information.normal[3] == 0.0:
        prefilled = information.normal[2] / information.normal[0]
        step_seconds /= 1.0 + prefilled * PRIOR_PREFILL_RATIO
        strength = max(information.weight, 1.0)
    for unknown, ratio in ((1, sequence_ratio), (2, PRIOR_PREFILL_RATIO)):
        deviation = PRIOR_SPREAD * ratio * step_seconds
        information = pulled(information, unknown, ratio, strength / deviation**2)
    return information


def standard_error_ratio(fit: LawFit) -> float | None:
    """Relative standard error of the step time at twice the concurrency seen, None without a fit.

    This is the identifiability check: where concurrency hardly varied, b is not known, and the step
    time at a higher concurrency has a wide error although the present one is predicted well. Where
    nothing decodes, b is not needed, and load makes steps longer by their prompts: it is the error
    at twice the tokens that they have.
    """
    values = solution(fit)
    if values is None:
        return None
    sequences = EXTRAPOLATION_FACTOR * fit.sequences_high
    cap = fit.configuration.max_num_seqs
    sequences = min(sequences, max(float(cap), fit.sequences_high)) if cap else sequences
    prefilled = fit.prefill_per_step_tokens * (1.0 if sequences > 0 else EXTRAPOLATION_FACTOR)
    point = (1.0, sequences, prefilled)
    predicted = sum(p * v for p, v in zip(point, values, strict=True))
    variance = residual_variance(fit.information, values)
    error = standard_error(_with_prior(fit.information, fit.sequence_ratio), point, variance)
    return None if error is None or predicted <= 0 else error / predicted


def _law(values: tuple[float, float, float]) -> ServiceLaw:
    return ServiceLaw(
        step_fixed_seconds=values[0],
        step_per_sequence_seconds=values[1],
        prefill_per_token_seconds=values[2],
    )
