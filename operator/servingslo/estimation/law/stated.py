"""The service law that a resource states or names, used until a law fitted here is trusted.

It is scored on the same windows as a fit, with the same bound. If it does not predict them it is
dropped: measured saturation then decides, as without any law.
"""

from collections.abc import Callable, Sequence

from servingslo.copying import replace
from servingslo.estimation.law.fit import (
    ERROR_MEMORY_WINDOWS,
    LawFit,
    ScoredLaw,
)
from servingslo.estimation.law.rows import Row
from servingslo.estimation.law.seen import predicted_ratios
from servingslo.models.engine.service_time import ServiceLaw


def score_stated(
    fit: LawFit,
    law: ServiceLaw | None,
    rows: Sequence[Row],
    context_tokens: Callable[[], float | None],
) -> LawFit:
    """Return the fit with the stated law's score after one tick's windows.

    Another law starts a new score. context_tokens: returns the mean tokens that a running sequence
    attends; a law with a term for that is not scored while it is unknown.
    """
    score = fit.stated if fit.stated is not None and fit.stated.law == law else None
    judging = [row for row in rows if row.scored]
    here = None if law is None or not judging else at_context(law, context_tokens)
    if law is not None and here is not None:
        for predicted in predicted_ratios(here, judging):
            score = _with_window(score, law, predicted)
    return fit if score == fit.stated else replace(fit, stated=score)


def at_context(law: ServiceLaw, context_tokens: Callable[[], float | None]) -> ServiceLaw | None:
    """Return the law with b + d·k̄ as b, None while the mean context k̄ is needed and unknown."""
    if law.context_per_token_seconds <= 0.0:
        return law
    context = context_tokens()
    if context is None:
        return None
    attended = law.context_per_token_seconds * context
    return replace(
        law,
        step_per_sequence_seconds=law.step_per_sequence_seconds + attended,
        context_per_token_seconds=0.0,
    )


def _with_window(score: ScoredLaw | None, law: ServiceLaw, predicted_ratio: float) -> ScoredLaw:
    """Return the score with one more window, bounded and averaged as the error of a fit is."""
    error = min(abs(predicted_ratio - 1.0), 1.0)
    if score is None:
        return ScoredLaw(law=law, error_ratio=error, window_count=1)
    step = 1.0 / min(score.window_count + 1.0, ERROR_MEMORY_WINDOWS)
    return ScoredLaw(
        law=law,
        error_ratio=score.error_ratio + step * (error - score.error_ratio),
        window_count=score.window_count + 1,
    )
