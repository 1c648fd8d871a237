"""Decide which law the planner uses, whether it is trusted, and why.

This is the only place that decides it. A fit is trusted if it predicts windows that it has not
seen, and if it is identifiable: the step time at twice the concurrency seen, or at that one if the
law bends, has a small standard error. Otherwise an earlier fit that still predicts is used, else
the law that the resource states, unless the windows refute it. The law of a server of dynamic
batches must also predict each batch size that ran. GPU metrics, if they are read, must not refute
the law. The model decides if the law is trusted and a prediction could be prepared with it;
otherwise measured saturation decides.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from servingslo.copying import replace
from servingslo.estimation.law.fit import (
    LEAST_SCORED_WINDOWS,
    WRONG_RATIO,
    LawFit,
    LawState,
    ScoredLaw,
    reach_of,
    standard_error_ratio,
)
from servingslo.estimation.law.fit import law as law_of_fit
from servingslo.estimation.law.rows import BatchCounts
from servingslo.estimation.windows.plausible import is_law
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Reason

# Windows before a fit may be trusted: two minutes of one engine at 15 s scrapes.
# Judgement; measured by `make guard` with 4 and with 16.
LEAST_WINDOWS = 8
# Largest mean out-of-sample error of a window's busy time, and largest relative standard error of
# the step time where `standard_error_ratio` judges it: beyond either, sizing would be a guess.
# Judgement; measured by `make guard` with half and twice of each.
TRUSTED_ERROR_RATIO = 0.15
TRUSTED_STANDARD_ERROR_RATIO = 0.20
# Executions of one size, so that its mean is known to a few per cent.
# Judgement; measured by the spread of a size's mean over a recorded Triton's executions.
LEAST_EXECUTIONS = 8
# Least share of an engine's busy time in which its GPU runs kernels: the rest is the host's work.
# Source: vLLM, "vLLM v0.6.0: 2.7x Throughput Improvement and 5x Latency Reduction", 2024-09-05:
# 38 % with Llama 3 8B on an H100 before that release.
LEAST_KERNEL_RATIO = 0.38
# Most that a trusted law is off in a busy time: 15 % as above, and 30 % while one to three
# sequences run (FEW_SEQUENCES of rows.py): 1.15 · 1.3.
LARGEST_BUSY_RATIO = 1.5
# Share from which the busier of the two counts as busy. At less, readings of a second miss most
# work by chance, and the law decides about no replica: one pod at 0.05 requests/s refuted its true
# law in 16 of 239 ticks without this bound, and in none with it (tests/unit/gpu_fleet.py).
LEAST_BUSY_RATIO = 0.5
# Standard errors between chance and a refutation.
# Judgement; measured by the refuted laws of that fleet under its true law: none in 2,397 ticks.
REFUTED_DEVIATIONS = 3.0


class LawSource(StrEnum):
    """The origin of the law that the planner uses.

    FIT: the running fit. LAST_TRUSTED: an earlier fit of this engine that still predicts. STATED:
    the resource. ASSUMED: names of card and model. COUNTERS, STATISTICS: a fit of whole requests,
    to a server's counters or to its statistics by batch size. SATURATION: measured saturation
    decides, whatever law there is.
    """

    FIT = "fit"
    LAST_TRUSTED = "last-trusted"
    STATED = "spec"
    ASSUMED = "assumed"
    COUNTERS = "counters"
    STATISTICS = "statistics"
    SATURATION = "saturation"
    NONE = "none"


# Sources that are no measurement of these engines.
OF_SPEC = frozenset({LawSource.STATED, LawSource.ASSUMED})


@dataclass(frozen=True, slots=True, kw_only=True)
class LawEstimate:
    """The law to plan with, whether it may be used, and why.

    law: None if there is none at all. fit_error: mean out-of-sample error of a window's busy time,
    including the error of assumed limits. standard_error_ratio: of the step time at twice the
    concurrency seen, or at that one if it bends. sample_count: windows behind the fit, or behind
    the error of a stated law. stated_error_ratio: of a law that the resource states, if known.
    seen_sequences: most that ran at once on average of a window. reach_sequences: how many it is
    known for if it bends, None for a line. Use it only when `trusted`.
    """

    law: ServiceLaw | None = None
    trusted: bool = False
    reason: Reason = Reason.MODEL_LEARNING
    source: LawSource = LawSource.NONE
    fit_error: float | None = None
    sample_count: int = 0
    standard_error_ratio: float | None = None
    stated_error_ratio: float | None = None
    seen_sequences: float | None = None
    reach_sequences: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyShares:
    """Shares of the same windows in which engines were busy, each 0 to 1; the law's may exceed 1.

    measured_ratio: in which GPUs ran kernels. law_ratio: that the law predicts for the counted
    work. standard_error_ratio: of measured_ratio. settled: over enough time to judge by.
    """

    measured_ratio: float
    law_ratio: float
    standard_error_ratio: float
    settled: bool = True


def law_in_force(
    law: LawState,
    stated: ServiceLaw | None,
    *,
    assumed: bool = False,
    without_tokens: bool = False,
) -> tuple[LawState, LawEstimate]:
    """Return the law to use: a trusted fit of the configuration in force, else the stated one.

    stated: None without one. assumed: nobody measured it on this engine, so it counts no longer
    than a fit needs to be trusted; from then on measurements decide. without_tokens: the engines
    generate none, so that there is no law. If neither can be used, the estimate is not trusted. The
    reason then names the stated law, which the user can correct.
    """
    if without_tokens:
        return law, LawEstimate(reason=Reason.NO_TOKENS_GENERATED)
    estimate, score = LawEstimate(), None
    if law.fits:
        fit, estimate = judge(law.fits[0])
        law, score = LawState(fits=(fit, *law.fits[1:])), fit.stated
    if stated is None or estimate.trusted:
        return law, estimate
    if score is None or score.law != stated:
        return law, _stated_estimate(stated, None, assumed=assumed)
    enough = score.window_count >= LEAST_SCORED_WINDOWS
    if enough and score.error_ratio > TRUSTED_ERROR_RATIO:
        refused = Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT
        return law, replace(estimate, reason=refused, stated_error_ratio=score.error_ratio)
    if assumed and score.window_count >= LEAST_WINDOWS:
        return law, estimate
    return law, _stated_estimate(stated, score, assumed=assumed)


def _stated_estimate(law: ServiceLaw, score: ScoredLaw | None, *, assumed: bool) -> LawEstimate:
    error_ratio = None if score is None else score.error_ratio
    return LawEstimate(
        law=law,
        trusted=True,
        reason=Reason.LAW_ASSUMED if assumed else Reason.LAW_FROM_SPEC,
        source=LawSource.ASSUMED if assumed else LawSource.STATED,
        fit_error=error_ratio,
        sample_count=0 if score is None else score.window_count,
        stated_error_ratio=error_ratio,
    )


def judge(fit: LawFit) -> tuple[LawFit, LawEstimate]:
    """Return the law to use from this fit, and the fit with its last trusted law updated."""
    found = law_of_fit(fit)
    error = standard_error_ratio(fit)
    reason = _reason(fit, found, error)
    wrong = fit.error_ratio is not None and fit.error_ratio > WRONG_RATIO
    law = None if wrong else found
    estimate = LawEstimate(
        law=law,
        reason=reason,
        source=LawSource.NONE if law is None else LawSource.FIT,
        fit_error=fit.error_ratio,
        sample_count=fit.window_count,
        standard_error_ratio=error,
        seen_sequences=fit.sequences_high,
        reach_sequences=reach_of(fit),
    )
    if reason is Reason.MODEL_TRUSTED and estimate.law is not None:
        trusted = ScoredLaw(
            law=estimate.law, error_ratio=fit.error_ratio or 0.0, window_count=fit.window_count
        )
        return replace(fit, trusted=trusted, inherited=False), replace(estimate, trusted=True)
    last = fit.trusted
    if last is None or reason is Reason.MODEL_DOES_NOT_PREDICT:
        return fit, estimate
    reach = estimate.reach_sequences
    if reach is None and last.law.bends:
        # Windows since it was trusted show no bend, and so nothing of where this one ends.
        reach = fit.sequences_high
    return fit, replace(
        estimate,
        law=last.law,
        reach_sequences=reach,
        trusted=True,
        reason=Reason.CONFIGURATION_CHANGED if fit.inherited else Reason.MODEL_TRUSTED,
        source=LawSource.LAST_TRUSTED,
        fit_error=last.error_ratio,
        sample_count=last.window_count,
    )


def add_assumed_error(estimate: LawEstimate, error_ratios: Sequence[float]) -> LawEstimate:
    """Return the estimate with an error that includes the errors of assumptions outside the law."""
    if estimate.fit_error is None or not error_ratios:
        return estimate
    return replace(estimate, fit_error=math.hypot(estimate.fit_error, *error_ratios))


def distrust_if_size_misfits(found: LawEstimate, counts: Iterable[BatchCounts]) -> LawEstimate:
    """Distrust the law if it misses any batch size that ran.

    The mean over all sizes is not enough. If most batches are small, a law may predict them well on
    average and be wrong about a full batch. The error is that of the worst size.
    """
    law = found.law
    ran: dict[int, tuple[int, int]] = {}
    for size, (count, microseconds) in (item for one in counts for item in one.items()):
        known = ran.get(size, (0, 0))
        ran[size] = known[0] + count, known[1] + microseconds
    means = {size: took / n / 1e6 for size, (n, took) in ran.items() if n >= LEAST_EXECUTIONS}
    if law is None or not means:
        return found
    error = max(abs(law.step_seconds(size) / mean - 1.0) for size, mean in means.items())
    found = replace(found, fit_error=max(found.fit_error or 0.0, error))
    if not found.trusted or error <= TRUSTED_ERROR_RATIO:
        return found
    return replace(found, trusted=False, reason=Reason.MODEL_DOES_NOT_PREDICT)


def distrust_if_gpus_disagree(
    found: LawEstimate, shares: BusyShares | None, *, disagreed: bool
) -> tuple[LawEstimate, bool]:
    """Return the estimate, distrusted if the GPUs refute its law, and whether they do.

    A GPU that is busy for much longer than the law explains runs work that the law leaves out. One
    that is idle for much longer waits for a host whose time the law takes for the GPU's. shares:
    None without a comparison. disagreed: before. Trust returns once the shares agree without the
    allowance for chance, so that it does not change back and forth.
    """
    if found.law is None or shares is None or not shares.settled:
        return found, False
    chance = 0.0 if disagreed else REFUTED_DEVIATIONS * shares.standard_error_ratio
    low = LEAST_KERNEL_RATIO / LARGEST_BUSY_RATIO * min(shares.law_ratio, 1.0)
    high = LARGEST_BUSY_RATIO * shares.law_ratio
    busy = max(shares.measured_ratio, shares.law_ratio) >= LEAST_BUSY_RATIO
    disagrees = busy and not low - chance <= shares.measured_ratio <= high + chance
    if not found.trusted or not disagrees:
        return found, disagrees
    return replace(found, trusted=False, reason=Reason.GPUS_DISAGREE), True


def model_decides(law: LawEstimate, *, prepared: bool) -> bool:
    """Whether the latency model decides; prepared: a prediction could be made with the law."""
    return prepared and law.trusted


def model_reason(law: LawEstimate, *, prepared: bool, limits_known: bool) -> Reason:
    """Return why the latency model decides or not: a law alone is not enough for a prediction.

    limits_known: whether the batch limits in force are known, which a prediction needs.
    """
    if law.law is None or prepared:
        return law.reason
    return Reason.MODEL_LEARNING if limits_known else Reason.LIMITS_UNKNOWN


def _reason(fit: LawFit, law: ServiceLaw | None, error: float | None) -> Reason:
    if fit.error_ratio is not None and fit.error_ratio > TRUSTED_ERROR_RATIO:
        return Reason.MODEL_DOES_NOT_PREDICT
    if law is None or fit.window_count < LEAST_WINDOWS:
        return Reason.CONFIGURATION_CHANGED if fit.inherited else Reason.MODEL_LEARNING
    if error is None or error > TRUSTED_STANDARD_ERROR_RATIO or not is_law(law):
        return Reason.MODEL_NOT_IDENTIFIABLE
    return Reason.MODEL_TRUSTED
