"""Least squares in information form: what more windows of the same kind are worth."""

import math

import numpy as np
import pytest

from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import LawFit, learn, standard_error_ratio
from servingslo.estimation.law.least_squares import (
    EMPTY_INFORMATION,
    add_rows,
    residual_variance,
    solve_nonnegative,
)
from servingslo.estimation.law.rows import Row
from servingslo.estimation.law.trust import judge

FIXED, PER_SEQUENCE, PER_TOKEN = 6.5e-3, 0.4e-3, 0.03e-3


def _row(rng: np.random.Generator, error_ratio: float) -> Row:
    """A window of a lightly loaded engine, known to this relative error."""
    sequences, tokens = rng.uniform(1.0, 3.0), rng.uniform(0.0, 400.0)
    seconds = FIXED + PER_SEQUENCE * sequences + PER_TOKEN * tokens
    seconds *= 1.0 + error_ratio * rng.standard_normal()
    return Row(
        x=(1.0 / seconds, sequences / seconds, tokens / seconds),
        error_ratio=error_ratio,
        sequences=sequences,
        prefill_per_step_tokens=tokens,
    )


@pytest.mark.parametrize("error_ratio", [0.01, 0.05, 0.15])
def test_residuals_are_as_large_as_promised_whatever_that_is(error_ratio: float) -> None:
    """Rows that err as much as they say give a variance of about 1, however many they are."""
    rng = np.random.default_rng(7)
    information = EMPTY_INFORMATION
    for _ in range(400):
        row = _row(rng, error_ratio)
        information = add_rows(information, [(row.x, 1.0 / error_ratio**2)], 1.0)
    theta = solve_nonnegative(information)
    assert theta is not None
    assert 1.0 <= residual_variance(information, theta) < 1.3


def test_windows_at_light_load_make_a_law_that_is_used() -> None:
    """Many windows known to 5 % each say as much as few known to 1 %: the fit itself is used."""
    rng = np.random.default_rng(11)
    fit = LawFit(configuration=Configuration(max_num_seqs=256))
    errors = []
    for count in (40, 360):
        fit = learn(fit, [_row(rng, 0.05) for _ in range(count)])
        errors.append(standard_error_ratio(fit) or math.inf)
    assert errors[0] < 0.1
    assert errors[1] < 0.5 * errors[0]
    _, estimate = judge(fit)
    assert estimate.trusted
    assert estimate.source == "fit"
