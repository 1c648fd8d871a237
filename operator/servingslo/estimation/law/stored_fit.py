"""The fit of one configuration as JSON values: one table of fields for each class."""

from collections.abc import Sequence

from servingslo.copying import replace
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import ERROR_MEMORY_WINDOWS, LawFit, ScoredLaw
from servingslo.estimation.law.least_squares import Information
from servingslo.estimation.law.seen import MOST_CELLS, PROBE_RATIOS, Bend, Cell, find_bend
from servingslo.estimation.stored_fields import (
    COUNT,
    TEXT,
    Items,
    Keys,
    Many,
    Number,
    Numbers,
    One,
    Record,
    Scalar,
    decimal,
    items_of,
    numbers_of,
)
from servingslo.estimation.windows.plausible import SHORTEST_STEP_SECONDS, is_law
from servingslo.models.engine.law_fit import HIDDEN_TOKENS, LOADING_TOKENS
from servingslo.models.engine.service_time import ServiceLaw

# Normal equations lose digits if columns are nearly alike, as steps and tokens are.
SIGNIFICANT_DIGITS = 9
# The best one, and the shortest and the longest steps at each probe.
MOST_BENDS = 1 + 2 * len(PROBE_RATIOS)


def _score(law_digits: int | None, error: Number) -> Scalar:
    """Table of a law and its score; digits: of each coefficient, None for all.

    A line has no numbers for bends, as before laws had any.
    """
    line = ("step_fixed", "step_per_sequence", "prefill_per_token", "context_per_token")
    bends = ("law.loading_seconds", "law.loading_tokens", "law.hidden_tokens")

    def record(names: Sequence[str]) -> Record[ScoredLaw]:
        return Record(
            ScoredLaw,
            Numbers(
                *(Number(name, digits=law_digits, least=0.0) for name in names),
                error,
                Number("window_count", digits=law_digits, least=0.0, whole=True),
            ),
            nested={"law": ServiceLaw},
            finish=lambda score: score if score.law.step_seconds(1.0) > 0.0 else None,
        )

    straight = record([f"law.{name}_seconds" for name in line])
    bent = record([f"law.{name}_seconds" for name in line] + list(bends))
    return Scalar(
        lambda score: (bent if score.law.bends else straight).dump(score),
        lambda stored: straight.load(stored) or bent.load(stored),
    )


def _with_positive_squares(information: Information) -> Information | None:
    """Return the information; None if a square in it is negative."""
    normal = information.normal
    return None if min(normal[0], normal[3], normal[5]) < 0.0 else information


def _bend(stored: object) -> Bend | None:
    """Return the bend of these t₀ and p₀, the best ones first; None if any is off the grid."""
    found = [numbers_of(one) for one in items_of(stored)[:MOST_BENDS]]
    pairs = [(one[0], one[1]) for one in found if one is not None and len(one) == 2]
    if not pairs or len(pairs) < len(found):
        return None
    if not all(t in LOADING_TOKENS and p in HIDDEN_TOKENS for t, p in pairs):
        return None
    return Bend(*pairs[0], tuple(pairs[1:]))


def _plausible(fit: LawFit) -> LawFit | None:
    """Return the fit; None if no engine can have its trusted law."""
    if fit.trusted is not None and not is_law(fit.trusted.law):
        return None
    return replace(
        fit,
        scored_count=min(fit.window_count, int(ERROR_MEMORY_WINDOWS)),
        bend=fit.bend or find_bend(fit.cells),
        searched_count=fit.window_count,
    )


# Tables of fields.
BEND = Scalar(
    lambda bend: [[bend.loading_tokens, bend.hidden_tokens], *map(list, bend.others)], _bend
)
CONFIGURATION = Record(
    Configuration,
    Items(
        One("template_hash", TEXT),
        One("image", TEXT),
        One("gpu_product", TEXT),
        One("max_num_seqs", COUNT),
        One("max_num_batched_tokens", COUNT),
    ),
)
INFORMATION = Record(
    Information,
    Numbers(
        Number("normal", digits=SIGNIFICANT_DIGITS, count=6),
        Number("moment", digits=SIGNIFICANT_DIGITS, count=3),
        Number("squares", digits=SIGNIFICANT_DIGITS, least=0.0),
        Number("weight", digits=SIGNIFICANT_DIGITS, least=0.0),
    ),
    finish=_with_positive_squares,
)
CELL = Record(
    Cell,
    Numbers(
        Number("sequences", digits=5, least=1.0),
        Number("prefill_tokens", digits=5, least=0.0),
        Number("prefill_share", digits=5, least=0.0, most=1.0),
        Number("seconds", digits=6, least=SHORTEST_STEP_SECONDS / 10.0),
        Number("weight", digits=4, least=0.0),
    ),
)
# A trusted law is fitted, and known to six digits at most.
TRUSTED = _score(6, Number("error_ratio", digits=6, least=0.0))
# Unrounded: it is compared with the law of the resource.
STATED = _score(None, Number("error_ratio", decimals=4, least=0.0))
# The table of a fit; inherited values and its prior are found again with the next windows.
FIT = Record(
    LawFit,
    Keys(
        {
            "stated": One("stated", STATED),
            "of": One("configuration", CONFIGURATION),
            "information": One("information", INFORMATION),
            "windows": One("window_count", COUNT),
            "error": One("error_ratio", decimal(4, least=0.0)),
            "bias": One("bias_ratio", decimal(4)),
            "reach": Numbers(
                Number("sequences_high", digits=4, bounds=(0.0, float("inf"))),
                Number("prefill_per_step_tokens", digits=4, bounds=(0.0, float("inf"))),
            ),
            "trusted": One("trusted", TRUSTED),
            "cells": Many("cells", CELL, MOST_CELLS),
            "bend": One("bend", BEND),
        },
        needed=("of", "information", "windows", "reach"),
        sparse=("stated", "bend"),
    ),
    finish=_plausible,
)
