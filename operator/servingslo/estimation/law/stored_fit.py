"""The fit of one configuration as JSON values, and back; None for what cannot be read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servingslo.estimation.law.fit import ERROR_MEMORY_WINDOWS, Configuration, LawFit, ScoredLaw
from servingslo.estimation.law.least_squares import Information
from servingslo.estimation.stored_fields import (
    is_count,
    is_number,
    items_of,
    numbers_of,
    rounded,
    text_of,
)
from servingslo.estimation.windows.plausible import is_law
from servingslo.models.engine.service_time import ServiceLaw

# Normal equations lose digits where columns are nearly alike, as steps and tokens are.
SIGNIFICANT_DIGITS = 9


def dump_fit(fit: LawFit) -> dict[str, Any]:
    """The fit as JSON values."""
    c = fit.configuration
    information = fit.information
    trusted, stated = fit.trusted, fit.stated
    return {
        **({} if stated is None else {"stated": _dump_stated(stated)}),
        "of": [c.template_hash, c.image, c.gpu_product, c.max_num_seqs, c.max_num_batched_tokens],
        "information": rounded(
            (*information.normal, *information.moment, information.squares, information.weight),
            SIGNIFICANT_DIGITS,
        ),
        "windows": fit.window_count,
        "error": None if fit.error_ratio is None else round(fit.error_ratio, 4),
        "bias": round(fit.bias_ratio, 4),
        "reach": rounded((fit.sequences_high, fit.prefill_per_step_tokens), 4),
        "trusted": None if trusted is None else rounded(_numbers(trusted), 6),
    }


def load_fit(stored: object) -> LawFit | None:
    """The fit that was stored; None where a part of it that is needed cannot be read."""
    if not isinstance(stored, Mapping):
        return None
    of = items_of(stored.get("of"))
    numbers = numbers_of(stored.get("information"), 11)
    reach = numbers_of(stored.get("reach"), 2)
    windows = stored.get("windows")
    if len(of) != 5 or numbers is None or reach is None or not is_count(windows):
        return None
    if min(numbers[0], numbers[3], numbers[5], numbers[9], numbers[10]) < 0:
        return None
    stored_trusted = _load_scored(stored.get("trusted"))
    if stored_trusted is not None and not is_law(stored_trusted.law):
        return None
    error = stored.get("error")
    bias = stored.get("bias")
    return LawFit(
        configuration=Configuration(
            template_hash=text_of(of[0]),
            image=text_of(of[1]),
            gpu_product=text_of(of[2]),
            max_num_seqs=of[3] if is_count(of[3]) else None,
            max_num_batched_tokens=of[4] if is_count(of[4]) else None,
        ),
        information=Information(
            normal=(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]),
            moment=(numbers[6], numbers[7], numbers[8]),
            squares=numbers[9],
            weight=numbers[10],
        ),
        window_count=int(windows or 0),
        scored_count=min(int(windows or 0), int(ERROR_MEMORY_WINDOWS)),
        error_ratio=float(error) if is_number(error) and error >= 0 else None,
        bias_ratio=float(bias) if is_number(bias) else 0.0,
        sequences_high=max(reach[0], 0.0),
        prefill_per_step_tokens=max(reach[1], 0.0),
        trusted=stored_trusted,
        stated=_load_scored(stored.get("stated")),
    )


def _numbers(scored: ScoredLaw) -> tuple[float, ...]:
    law = scored.law
    return (
        law.step_fixed_seconds,
        law.step_per_sequence_seconds,
        law.prefill_per_token_seconds,
        law.context_per_token_seconds,
        scored.error_ratio,
        scored.window_count,
    )


def _dump_stated(stated: ScoredLaw) -> list[float]:
    """The law unrounded: it is compared with the resource's."""
    return list(_numbers(replace(stated, error_ratio=round(stated.error_ratio, 4))))


def _load_scored(stored: object) -> ScoredLaw | None:
    numbers = numbers_of(stored, 6)
    if numbers is None or min(numbers) < 0 or numbers[0] <= 0:
        return None
    return ScoredLaw(
        law=ServiceLaw(
            step_fixed_seconds=numbers[0],
            step_per_sequence_seconds=numbers[1],
            prefill_per_token_seconds=numbers[2],
            context_per_token_seconds=numbers[3],
        ),
        error_ratio=numbers[4],
        window_count=int(numbers[5]),
    )
