"""Fit the service law to step times: of single steps, or averages over the steps of windows.

For given t₀ and p₀ the law is linear: non-negative least squares on relative errors, over a small
grid of both.
Source: C. L. Lawson and R. J. Hanson, Solving Least Squares Problems (1974), chapter 23.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from servingslo.models.engine.service_time import FloatArray, ServiceLaw

# Tokens at which most weights are loaded, and tokens whose compute hides under that. 0: no term.
# Measured kernels of five models and cards lie at 24 to 256 and at 16 to 320; a step of the grid
# changes no error by more than 0.3 points.
LOADING_TOKENS = (0, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
HIDDEN_TOKENS = (0, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512)


class Steps(NamedTuple):
    """Step times, one row each; all arrays of one length, tokens and seconds.

    sequences: n. prefill_tokens: p of a step, on average over it. context_tokens: k of each
    sequence. seconds: of a step. prefill_share: of the steps, those that hold a prompt; 1 for
    single steps. weights: of the rows.
    """

    sequences: FloatArray
    prefill_tokens: FloatArray
    context_tokens: FloatArray
    seconds: FloatArray
    prefill_share: FloatArray
    weights: FloatArray


class Fitted(NamedTuple):
    """A law and the weighted sum of its squared relative errors."""

    law: ServiceLaw
    cost: float


def fit(steps: Steps, *, bends: bool = True) -> Fitted:
    """Return the law with the least squared relative errors on these steps.

    bends: False for the best line. A bend has to earn its place: of grid points alike, the first.
    """
    loading, hidden = (LOADING_TOKENS, HIDDEN_TOKENS) if bends else ((0,), (0,))
    return min(
        (fit_at(steps, float(t), float(p)) for t in loading for p in hidden),
        key=lambda fitted: fitted.cost,
    )


def fit_at(steps: Steps, loading_tokens: float, hidden_tokens: float) -> Fitted:
    """Return the best law with this t₀ and p₀; 0 is a law without the term."""
    scale = np.sqrt(steps.weights) / steps.seconds
    table = columns(steps, loading_tokens, hidden_tokens) * scale[:, None]
    norms = np.sqrt(np.einsum("ij,ij->j", table, table))
    norms[norms <= 0.0] = 1.0
    scaled, residual = nnls(table / norms, np.sqrt(steps.weights))
    a, w, b, c, d = (scaled / norms).tolist()
    law = ServiceLaw(
        step_fixed_seconds=a,
        step_per_sequence_seconds=b,
        prefill_per_token_seconds=c,
        context_per_token_seconds=d,
        loading_seconds=w,
        loading_tokens=loading_tokens if w > 0.0 else 0.0,
        hidden_tokens=hidden_tokens if c > 0.0 else 0.0,
    )
    return Fitted(law, float(residual) ** 2)


def columns(steps: Steps, loading_tokens: float, hidden_tokens: float) -> FloatArray:
    """Return what a step has of a, w, b, c and d, on average over the steps of a row.

    Prompts of a window are in a share of its steps, in exponential amounts: with the mean m, e^(−
    x/m) of them have more than x, and those have m more.
    """
    n, p, share = steps.sequences, steps.prefill_tokens, steps.prefill_share
    mean = np.divide(p, share, out=np.zeros_like(p), where=share > 0.0)
    single = share >= 1.0
    hides = np.maximum(hidden_tokens - n, 0.0)
    over = mean * np.exp(-hides / np.maximum(mean, 1.0))
    computed = share * np.where(single, np.maximum(p - hides, 0.0), over)
    loaded = np.zeros_like(n)
    if loading_tokens > 0.0:
        left = np.where(single, np.exp(-mean / loading_tokens), 1.0 / (1.0 + mean / loading_tokens))
        loaded = 1.0 - np.exp(-n / loading_tokens) * (1.0 - share * (1.0 - left))
    return np.stack((np.ones_like(n), loaded, n, computed, n * steps.context_tokens), axis=1)


def predicted_seconds(law: ServiceLaw, steps: Steps) -> FloatArray:
    """Return the mean step time that the law says of each row."""
    values = (
        law.step_fixed_seconds,
        law.loading_seconds,
        law.step_per_sequence_seconds,
        law.prefill_per_token_seconds,
        law.context_per_token_seconds,
    )
    predicted: FloatArray = columns(steps, law.loading_tokens, law.hidden_tokens) @ values
    return predicted
