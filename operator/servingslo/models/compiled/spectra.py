"""Transforms at the frequencies of a cosine series, in loops that a compiler turns into vectors.

A transform is one array of twice as many numbers as there are terms: real parts, then imaginary
parts. Interleaved complex numbers are not turned into vectors, nor are calls of a library's sine;
so sines and exponentials are written out, by polynomials of a reduced argument.
"""

import math

import numpy as np

from servingslo.models.compiled.shared import share
from servingslo.models.service_time import FloatArray
from servingslo.models.transform import TERM_COUNT

TERMS = TERM_COUNT
# Added and taken off, it rounds to a whole number, which is in the last bits meanwhile: 1.5·2^52.
_ROUNDER = 6755399441055744.0
_PER_PI = 1.0 / math.pi
# What π is more than the number of double precision next to it.
_PI_REST = 1.2246467991473532e-16
_PER_LN2 = 1.0 / math.log(2.0)
# ln 2 in two parts, of which the first has zeros at its end. Source: fdlibm, e_exp.c.
_LN2 = 6.93147180369123816490e-01
_LN2_REST = 1.90821492927058770002e-10
_LEAST_LOG = -700.0
_EXPONENT_BIAS = 1023
_MANTISSA_BITS = 52
# Coefficients of Taylor's series: up to π/2 and ln(2)/2 the terms left out are below 1e-13.
_C2, _C4, _C6, _C8 = -1.0 / 2.0, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40320.0
_C10, _C12 = -1.0 / math.factorial(10), 1.0 / math.factorial(12)
_C14, _C16 = -1.0 / math.factorial(14), 1.0 / math.factorial(16)
_S3, _S5, _S7, _S9 = -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362880.0
_S11, _S13 = -1.0 / math.factorial(11), 1.0 / math.factorial(13)
_S15, _S17 = -1.0 / math.factorial(15), 1.0 / math.factorial(17)
_E2, _E3, _E4, _E5, _E6 = 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0
_E7, _E8, _E9 = 1.0 / 5040.0, 1.0 / 40320.0, 1.0 / 362880.0
_E10, _E11 = 1.0 / math.factorial(10), 1.0 / math.factorial(11)


def cosine_and_sine(angle: float) -> tuple[float, float]:
    """Both, to 1e-13, of an angle below a million: about the nearest multiple of π."""
    turns = (angle * _PER_PI + _ROUNDER) - _ROUNDER
    rest = (angle - turns * math.pi) - turns * _PI_REST
    half = 0.5 * turns
    odd = half - ((half + _ROUNDER) - _ROUNDER)
    sign = 1.0 - 8.0 * odd * odd
    square = rest * rest
    cosine = _C10 + square * (_C12 + square * (_C14 + square * _C16))
    cosine = _C2 + square * (_C4 + square * (_C6 + square * (_C8 + square * cosine)))
    sine = _S11 + square * (_S13 + square * (_S15 + square * _S17))
    sine = _S3 + square * (_S5 + square * (_S7 + square * (_S9 + square * sine)))
    return sign * (1.0 + square * cosine), sign * rest * (1.0 + square * sine)


def exponentials(logs: FloatArray, out: FloatArray) -> None:
    """e^x of real numbers up to 700; of any below −700 that of −700."""
    # Whole powers of two are made in the exponent of their bits.
    powers = np.empty(len(out))
    bits = powers.view(np.int64)
    for k in range(len(out)):
        powers[k] = max(logs[k], _LEAST_LOG) * _PER_LN2 + _ROUNDER
    for k in range(len(out)):
        whole = powers[k] - _ROUNDER
        x = (max(logs[k], _LEAST_LOG) - whole * _LN2) - whole * _LN2_REST
        rest = _E7 + x * (_E8 + x * (_E9 + x * (_E10 + x * _E11)))
        rest = _E2 + x * (_E3 + x * (_E4 + x * (_E5 + x * (_E6 + x * rest))))
        out[k] = 1.0 + x * (1.0 + x * rest)
    for k in range(len(out)):
        bits[k] = (bits[k] + _EXPONENT_BIAS) << _MANTISSA_BITS
    for k in range(len(out)):
        out[k] *= powers[k]


def exponential(logs: FloatArray, out: FloatArray) -> None:
    """e^x of a transform."""
    exponentials(logs, out[:TERMS])
    for k in range(TERMS):
        cosine, sine = cosine_and_sine(logs[TERMS + k])
        length = out[k]
        out[k] = length * cosine
        out[TERMS + k] = length * sine


share(cosine_and_sine, exponentials, exponential)
