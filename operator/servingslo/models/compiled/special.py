"""Special functions as plain loops: what the numpy form takes from `scipy.special`."""

import math

from servingslo.models.compiled.shared import share

# Terms of a series or fraction end where they change nothing.
_SETTLED = 1e-15
_MOST_TERMS = 5000
_TINY = 1e-300
# Coefficients of the first guess of a normal quantile, within 4.5e-4.
# Source: M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 26.2.23.
_ABOVE = (2.515517, 0.802853, 0.010328)
_BELOW = (1.432788, 0.189269, 0.001308)
_NEWTON_STEPS = 2


def gamma_shares(shape: float, x: float) -> tuple[float, float, float]:
    """P(X ≤ x) of gamma laws of scale 1 with this shape, one more and two more.

    The last by its series or, for large x, by the continued fraction of what is above; the others
    by adding x^a·e^(−x)/Γ(a + 1), all of one sign.
    Source: Abramowitz and Stegun, 6.5.29, 6.5.31 and 6.5.21.
    """
    if x <= 0.0:
        return 0.0, 0.0, 0.0
    more = shape + 2.0
    log = more * math.log(x) - x - math.lgamma(more + 1.0)
    term = math.exp(log)
    second = term * _series(more, x) if x < more + 1.0 else 1.0 - term * more * _fraction(more, x)
    # The terms of the shapes below: x^a·e^(−x)/Γ(a + 1) each.
    first_term = math.exp(log + math.log(more / x))
    first = second + first_term
    return min(first + math.exp(log + math.log(more / x * (shape + 1.0) / x)), 1.0), first, second


def _series(shape: float, x: float) -> float:
    term, total, at = 1.0, 1.0, shape
    for _ in range(_MOST_TERMS):
        at += 1.0
        term *= x / at
        total += term
        if term < _SETTLED * total:
            break
    return total


def _fraction(shape: float, x: float) -> float:
    """Γ(a, x)·e^x/x^a, by the method of Lentz."""
    below = x + 1.0 - shape
    above = 1.0 / _TINY
    inverse = 1.0 / below
    total = inverse
    for i in range(1, _MOST_TERMS):
        part = -i * (i - shape)
        below += 2.0
        inverse = 1.0 / _away_from_zero(part * inverse + below)
        above = _away_from_zero(below + part / above)
        change = inverse * above
        total *= change
        if abs(change - 1.0) < _SETTLED:
            break
    return total


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def normal_quantile(probability: float) -> float:
    """Deviation that a normal law does not exceed with this probability, between 0 and 1."""
    tail = min(probability, 1.0 - probability)
    t = math.sqrt(-2.0 * math.log(tail))
    above = _ABOVE[0] + t * (_ABOVE[1] + t * _ABOVE[2])
    below = 1.0 + t * (_BELOW[0] + t * (_BELOW[1] + t * _BELOW[2]))
    x = above / below - t
    for _ in range(_NEWTON_STEPS):
        # Newton's method, with the second derivative (Halley).
        error = 0.5 * math.erfc(-x * math.sqrt(0.5)) - tail
        step = error * math.sqrt(2.0 * math.pi) * math.exp(0.5 * x * x)
        x -= step / (1.0 + 0.5 * x * step)
    return x if probability <= 0.5 else -x


share(gamma_shares, _series, _fraction, _away_from_zero, normal_quantile)
