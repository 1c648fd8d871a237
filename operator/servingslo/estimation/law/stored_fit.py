"""The fit of one configuration as JSON values: one table of fields for each class."""

from servingslo.copying import replace
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import ERROR_MEMORY_WINDOWS, LawFit, ScoredLaw
from servingslo.estimation.law.least_squares import Information
from servingslo.estimation.stored_fields import (
    COUNT,
    TEXT,
    Items,
    Keys,
    Number,
    Numbers,
    One,
    Record,
    decimal,
)
from servingslo.estimation.windows.plausible import is_law
from servingslo.models.engine.service_time import ServiceLaw

# Normal equations lose digits if columns are nearly alike, as steps and tokens are.
SIGNIFICANT_DIGITS = 9


def _score(law_digits: int | None, error: Number) -> Record[ScoredLaw]:
    """Table of a law and its score; digits: of each coefficient, None for all."""
    return Record(
        ScoredLaw,
        Numbers(
            Number("law.step_fixed_seconds", digits=law_digits, least=0.0),
            Number("law.step_per_sequence_seconds", digits=law_digits, least=0.0),
            Number("law.prefill_per_token_seconds", digits=law_digits, least=0.0),
            Number("law.context_per_token_seconds", digits=law_digits, least=0.0),
            error,
            Number("window_count", digits=law_digits, least=0.0, whole=True),
        ),
        nested={"law": ServiceLaw},
        finish=lambda score: score if score.law.step_fixed_seconds > 0.0 else None,
    )


def _with_positive_squares(information: Information) -> Information | None:
    """Return the information; None if a square in it is negative."""
    normal = information.normal
    return None if min(normal[0], normal[3], normal[5]) < 0.0 else information


def _plausible(fit: LawFit) -> LawFit | None:
    """Return the fit; None if no engine can have its trusted law."""
    if fit.trusted is not None and not is_law(fit.trusted.law):
        return None
    return replace(fit, scored_count=min(fit.window_count, int(ERROR_MEMORY_WINDOWS)))


# Tables of fields.
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
        },
        needed=("of", "information", "windows", "reach"),
        sparse=("stated",),
    ),
    finish=_plausible,
)
