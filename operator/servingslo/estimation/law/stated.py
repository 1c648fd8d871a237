"""The service law that a resource states: what is planned with until one fitted here is trusted.

It is held against the same windows as a fit, by the same bound, and falls out where it does not
predict them: then measured saturation decides, as without any law.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from servingslo.estimation.law import fit as service_law
from servingslo.estimation.law.fit import (
    ERROR_MEMORY_WINDOWS,
    LEAST_SCORED_WINDOWS,
    TRUSTED_ERROR_RATIO,
    LawEstimate,
    LawFit,
    LawSource,
    LawState,
    ScoredLaw,
)
from servingslo.estimation.law.least_squares import Vector
from servingslo.estimation.law.rows import Row
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Reason


def scored(
    fit: LawFit,
    law: ServiceLaw | None,
    rows: Sequence[Row],
    context_tokens: Callable[[], float | None],
) -> LawFit:
    """The fit of a configuration, with how well the stated law predicted one tick's windows.

    Another law starts anew. context_tokens: gives what a running sequence attends on average; a law
    with a term for that is not judged while it is unknown.
    """
    score = fit.stated if fit.stated is not None and fit.stated.law == law else None
    judging = [row for row in rows if row.scored]
    values = None if law is None or not judging else _coefficients(law, context_tokens)
    if law is not None and values is not None:
        for row in judging:
            predicted = sum(x * value for x, value in zip(row.x, values, strict=True))
            score = _with_window(score, law, predicted)
    return fit if score == fit.stated else replace(fit, stated=score)


def _coefficients(law: ServiceLaw, context_tokens: Callable[[], float | None]) -> Vector | None:
    """(a, b + d·k̄, c) of the law, None while the mean context k̄ is needed and unknown."""
    attended = 0.0
    if law.context_per_token_seconds > 0.0:
        context = context_tokens()
        if context is None:
            return None
        attended = law.context_per_token_seconds * context
    per_sequence = law.step_per_sequence_seconds + attended
    return law.step_fixed_seconds, per_sequence, law.prefill_per_token_seconds


def _with_window(score: ScoredLaw | None, law: ServiceLaw, predicted_ratio: float) -> ScoredLaw:
    """The score with one more window, bounded and averaged as the error of a fit is."""
    error = min(abs(predicted_ratio - 1.0), 1.0)
    if score is None:
        return ScoredLaw(law=law, error_ratio=error, window_count=1)
    step = 1.0 / min(score.window_count + 1.0, ERROR_MEMORY_WINDOWS)
    return ScoredLaw(
        law=law,
        error_ratio=score.error_ratio + step * (error - score.error_ratio),
        window_count=score.window_count + 1,
    )


def judged(law: LawState, stated: ServiceLaw | None) -> tuple[LawState, LawEstimate]:
    """The law to use: a trusted fit of the configuration in force, else the stated one.

    stated: None where no law is. Where neither can be used the estimate is not trusted, and says
    so of the stated law, which somebody can correct.
    """
    estimate, score = LawEstimate(), None
    if law.fits:
        fit, estimate = service_law.judge(law.fits[0])
        law, score = LawState(fits=(fit, *law.fits[1:])), fit.stated
    if stated is None or estimate.trusted:
        return law, estimate
    if score is None or score.law != stated:
        return law, _stated_estimate(stated, None)
    enough = score.window_count >= LEAST_SCORED_WINDOWS
    if enough and score.error_ratio > TRUSTED_ERROR_RATIO:
        refused = Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT
        return law, replace(estimate, reason=refused, stated_error_ratio=score.error_ratio)
    return law, _stated_estimate(stated, score)


def _stated_estimate(law: ServiceLaw, score: ScoredLaw | None) -> LawEstimate:
    error_ratio = None if score is None else score.error_ratio
    return LawEstimate(
        law=law,
        trusted=True,
        reason=Reason.LAW_FROM_SPEC,
        source=LawSource.STATED,
        fit_error=error_ratio,
        sample_count=0 if score is None else score.window_count,
        stated_error_ratio=error_ratio,
    )
