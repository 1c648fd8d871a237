"""Fit the service law of one configuration by accounting for engine time.

Over a window in which an engine never idles its time is T = a·steps + b·generated + c·uncached
prompt tokens + d·Σ context, linear in exported counters: a line. Where cells of windows show that
the law bends (`seen`), the bent law that fits those best replaces it. Context per sequence hardly
varies inside one workload, so b and d cannot be separated. The fit returns b + d·k̄ as b and no d,
which is enough for that workload.
Source: accounting identity of continuous batching; step law of Machine Learning Systems (V. J.
Reddi), appendix "Inference Foundations", equation 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from servingslo.copying import replace
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.least_squares import (
    EMPTY_INFORMATION,
    Information,
    Vector,
    add_rows,
    pull,
    residual_variance,
    solve_nonnegative,
    standard_error,
)
from servingslo.estimation.law.rows import Row
from servingslo.estimation.law.seen import (
    Bend,
    Cell,
    add_windows,
    band_ratios,
    bent_law,
    find_bend,
    predicted_ratios,
    reach_sequences,
)
from servingslo.estimation.windows.plausible import MOST_SEQUENCES
from servingslo.models.engine.service_time import ServiceLaw

# Windows before a prediction is scored.
LEAST_SCORED_WINDOWS = 4
JUDGED_CONCURRENCY_FACTOR = 2.0
# Memory of the error average, in windows.
# Judgement; measured by the windows after which a changed engine is noticed, and by false alarms.
ERROR_MEMORY_WINDOWS = 20.0
# Memory of the fit, in windows; long, because a law changes with its configuration, not with time.
FIT_MEMORY_WINDOWS = 2000.0
# Share of the information kept if predictions stay biased, because the engine itself changed.
# Judgement; measured by the error in the hour after another engine begins, on a simulated one.
CHANGED_ENGINE_KEEP_RATIO = 0.05
BIASED_RATIO = 0.10
# A law that is wrong by half is not used: its data are false, for example if a page reported a
# window with twenty times its work.
WRONG_RATIO = 0.5
# Weight, in windows, of what an unchanged engine under new limits inherits.
# Judgement; measured by the windows until a fit under new limits is trusted, and its error then.
INHERITED_WINDOWS = 8.0

# Prior of b and c relative to the mean step time, and its uncertainty: between b = 1/65 (8B model
# on an H100, context included), 1/23 (on an L4) and 1/9 (vLLM 0.32.0 on a CPU) of a; c = 1/217 and
# 1/188 of a on the cards. A few loaded windows outweigh it. Without it a fit at night could say
# that concurrency costs nothing.
PRIOR_SEQUENCE_RATIO = 1 / 40
PRIOR_PREFILL_RATIO = 1 / 200
PRIOR_SPREAD = 1.5

# Residuals beyond this many standard deviations lose weight (Huber 1964).
HUBER_DEVIATIONS = 2.5
# A bend is searched again after a tenth more windows: a search takes ten milliseconds.
SEARCH_RATIO = 1.1
REMEMBERED_CONFIGURATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLaw:
    """A law, trusted earlier or stated, and its prediction error over so many windows."""

    law: ServiceLaw
    error_ratio: float
    window_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """The running fit of one configuration.

    error_ratio, bias_ratio: moving averages of |predicted − observed| / observed and of its signed
    value, out of sample. window_count: windows used. sequences_high: largest concurrency observed
    (slowly forgotten); prefill_per_step_tokens: moving average. stated: the score of the resource's
    stated law on this configuration; None without one. sequence_ratio: prior of b/a. cells: what
    was seen. bend: what they determine, None for a line. searched_count: windows at the last search
    for it.
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
    cells: tuple[Cell, ...] = ()
    bend: Bend | None = None
    searched_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LawState:
    """Fits of the most recent configurations, the current one first."""

    fits: tuple[LawFit, ...] = ()


def select_configuration(state: LawState, configuration: Configuration) -> LawState:
    """Return the state with this configuration's fit first; a new configuration gets a new fit.

    An unchanged engine under a new template or new limits inherits its old fit as a weak prior.
    Another image or card starts from nothing.
    """
    if state.fits and state.fits[0].configuration == configuration:
        return state
    known = next((f for f in state.fits if f.configuration.same_as(configuration)), None)
    others = tuple(f for f in state.fits if f is not known)
    if known is not None and configuration.gpu_product is not None:
        known = replace(known, configuration=configuration)
    fit = known or _new_fit(configuration, others)
    return LawState(fits=(fit, *others)[:REMEMBERED_CONFIGURATIONS])


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
        cells=tuple(cell._replace(weight=keep * cell.weight) for cell in relative.cells),
        searched_count=0,
    )


def learn(fit: LawFit, rows: Sequence[Row]) -> LawFit:
    """Score one tick's windows against the present law, then update the fit with them."""
    fit = _with_bend(_with_rows(fit, rows, law(fit)), rows) if rows else fit
    if fit.scored_count >= ERROR_MEMORY_WINDOWS and abs(fit.bias_ratio) > BIASED_RATIO:
        # Errors stay on one side: the engine itself changed under the same configuration, and the
        # trusted law was of another engine.
        if abs(fit.bias_ratio) > WRONG_RATIO:
            return LawFit(configuration=fit.configuration, stated=fit.stated)
        return replace(
            fit,
            information=fit.information.scaled(CHANGED_ENGINE_KEEP_RATIO),
            scored_count=0,
            bias_ratio=0.0,
            trusted=None,
            cells=(),
            bend=None,
            searched_count=0,
        )
    return fit


def _with_bend(fit: LawFit, rows: Sequence[Row]) -> LawFit:
    """Return the fit with these windows among what was seen, and the bend if it is time to look."""
    cells = add_windows(fit.cells, rows, 1.0 - 1.0 / FIT_MEMORY_WINDOWS)
    fit = replace(fit, cells=cells)
    if fit.window_count < SEARCH_RATIO * fit.searched_count or not cells:
        return fit
    return replace(fit, bend=find_bend(cells, fit.bend), searched_count=fit.window_count)


def _with_rows(fit: LawFit, rows: Sequence[Row], law: ServiceLaw | None) -> LawFit:
    """Return the fit with more windows; a residual that stands out loses weight (Huber).

    law: predicts their busy time out of sample; None before there is a law.
    """
    keep = 1.0 - 1.0 / FIT_MEMORY_WINDOWS
    error_ratio, bias_ratio, scored = fit.error_ratio, fit.bias_ratio, fit.scored_count
    windows, sequences_high = fit.window_count, fit.sequences_high
    prefill_tokens, sequence_ratio = fit.prefill_per_step_tokens, fit.sequence_ratio
    weighted = []
    # Predicted over observed busy times.
    ratios = [None] * len(rows) if law is None else predicted_ratios(law, rows)
    for row, ratio in zip(rows, ratios, strict=True):
        weight = 1.0 / row.error_ratio**2
        if row.scored and ratio is not None and (windows >= LEAST_SCORED_WINDOWS or fit.inherited):
            # One wild window must not decide the trust gate, so its error is bounded.
            error = min(max(ratio - 1.0, -1.0), 1.0)
            step = 1.0 / min(scored + 1.0, ERROR_MEMORY_WINDOWS)
            before = error_ratio if error_ratio is not None else abs(error)
            error_ratio = before + step * (abs(error) - before)
            bias_ratio += step * (error - bias_ratio)
            scored += 1
        if ratio is not None and scored >= LEAST_SCORED_WINDOWS:
            deviation = abs(1.0 - ratio) / row.error_ratio
            weight *= min(1.0, HUBER_DEVIATIONS / deviation) if deviation > 0 else 1.0
        smoothing = 1.0 / min(windows + 1.0, ERROR_MEMORY_WINDOWS)
        prefill_tokens += smoothing * (row.prefill_per_step_tokens - prefill_tokens)
        sequences_high = max(sequences_high * keep, row.sequences)
        sequence_ratio = row.sequence_ratio or sequence_ratio
        windows += row.scored
        weighted.append((row.x, weight))
    return replace(
        fit,
        information=add_rows(fit.information, weighted, keep),
        window_count=windows,
        scored_count=scored,
        error_ratio=error_ratio,
        bias_ratio=bias_ratio,
        sequences_high=sequences_high,
        prefill_per_step_tokens=prefill_tokens,
        sequence_ratio=sequence_ratio,
    )


def law(fit: LawFit) -> ServiceLaw | None:
    """Return the law of the fit: with its bend, if it has one; None before the first window."""
    if (bend := bend_in_force(fit)) is not None:
        return bent_law(fit.cells, bend)
    values = solution(fit)
    return None if values is None else law_of(values)


def bend_in_force(fit: LawFit) -> Bend | None:
    """Return the bend; None for a line, or if later cells leave it steps that take no time."""
    if fit.bend is None or not fit.cells:
        return None
    bent = bent_law(fit.cells, fit.bend)
    return fit.bend if bent.step_fixed_seconds + bent.loading_seconds > 0.0 else None


def solution(fit: LawFit) -> Vector | None:
    """Return (a, b, c) of the best line, None before the first window."""
    return _solved(fit.information, fit.sequence_ratio)


# A tick solves the equations of one fit several times: before and after its windows, and to judge.
@lru_cache(maxsize=8)
def _solved(information: Information, sequence_ratio: float) -> Vector | None:
    return solve_nonnegative(_with_prior(information, sequence_ratio))


def _with_prior(information: Information, sequence_ratio: float) -> Information:
    """Return the equations with weak ones for b and c, in units of the mean step time so far.

    If nothing decodes, steps are mostly prefill and nearly equally full: a and c can hardly be
    separated, and only their combination matters there. So the unit is the part of the step that is
    not prefill, and the added equations weigh as much as all windows together.
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
        information = pull(information, unknown, ratio, strength / deviation**2)
    return information


def standard_error_ratio(fit: LawFit) -> float | None:
    """Return the relative standard error of the step time that judges the fit; None unfitted.

    This is the identifiability check, of a line at twice the concurrency seen. If concurrency
    hardly varied, b is unknown: the present step time is predicted well, but that at a higher
    concurrency has a wide error. If nothing decodes, b is not needed, and load makes steps longer
    through their prompts: then it is the error at twice the prompt tokens per step. Of a law that
    bends it is the band of admissible laws at the concurrency seen: beyond, it is used only as far
    as it reaches.
    """
    values = solution(fit)
    if values is None:
        return None
    sequences = JUDGED_CONCURRENCY_FACTOR * fit.sequences_high
    cap = fit.configuration.max_num_seqs
    sequences = min(sequences, max(float(cap), fit.sequences_high)) if cap else sequences
    if (bend := bend_in_force(fit)) is not None:
        return float(band_ratios(fit.cells, bend, (fit.sequences_high,))[0])
    prefilled = fit.prefill_per_step_tokens * (1.0 if sequences > 0 else JUDGED_CONCURRENCY_FACTOR)
    point = (1.0, sequences, prefilled)
    predicted = sum(p * v for p, v in zip(point, values, strict=True))
    variance = residual_variance(fit.information, values)
    error = standard_error(_with_prior(fit.information, fit.sequence_ratio), point, variance)
    return None if error is None or predicted <= 0 else error / predicted


def reach_of(fit: LawFit) -> float | None:
    """Return up to how many sequences a law that bends is known; None if nothing shows a bend.

    Then it is a line, which predicts twice the concurrency seen or is not trusted.
    """
    bend = bend_in_force(fit)
    if bend is None:
        return None
    return reach_sequences(fit.cells, bend, float(fit.configuration.max_num_seqs or MOST_SEQUENCES))


def law_of(values: Vector) -> ServiceLaw:
    """Return the law of (a, b, c), in seconds."""
    return ServiceLaw(
        step_fixed_seconds=values[0],
        step_per_sequence_seconds=values[1],
        prefill_per_token_seconds=values[2],
    )
