"""Transforms at the frequencies of a cosine series, in loops that a compiler turns into vectors.

A transform is one array of twice as many numbers as there are terms: real parts, then imaginary
parts. Interleaved complex numbers are not turned into vectors, nor are calls of a library's sine;
so sines and exponentials are written out, by polynomials of a reduced argument.
"""

import math

from servingslo.models.compiled.shared import share
from servingslo.models.service_time import FloatArray
from servingslo.models.transform import TERM_COUNT

TERMS = TERM_COUNT
# Powers of an angle below a part of the terms, and of multiples of that part.
FINE = 24
COARSE = TERMS // FINE
# Added and taken off, it rounds to a whole number: 1.5·2^52.
_ROUNDER = 6755399441055744.0
_PER_PI = 1.0 / math.pi
# What π is more than the number of double precision next to it.
_PI_REST = 1.2246467991473532e-16
# Shares of requests below e^−45 are nothing.
_LEAST_LOG = -45.0
_PER_ROOT = 1.0 / 256.0
# Coefficients of Taylor's series: up to π/2 the terms left out are below 1e-13; for exponentials,
# 1e-12 of e^10 and less of smaller ones.
_C2, _C4, _C6, _C8 = -1.0 / 2.0, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40320.0
_C10, _C12 = -1.0 / math.factorial(10), 1.0 / math.factorial(12)
_C14, _C16 = -1.0 / math.factorial(14), 1.0 / math.factorial(16)
_S3, _S5, _S7, _S9 = -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362880.0
_S11, _S13 = -1.0 / math.factorial(11), 1.0 / math.factorial(13)
_S15, _S17 = -1.0 / math.factorial(15), 1.0 / math.factorial(17)
_E2, _E3, _E4, _E5, _E6 = 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0
_E7, _E8 = 1.0 / 5040.0, 1.0 / 40320.0


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


def length_of(log: float) -> float:
    """e^x of a real number below 45; of any below −45 that of −45."""
    x = max(log, _LEAST_LOG) * _PER_ROOT
    root = _E5 + x * (_E6 + x * (_E7 + x * _E8))
    root = 1.0 + x * (1.0 + x * (_E2 + x * (_E3 + x * (_E4 + x * root))))
    # The root to the power 256.
    root *= root
    root *= root
    root *= root
    root *= root
    root *= root
    root *= root
    root *= root
    return root * root


def exponential(logs: FloatArray, out: FloatArray) -> None:
    """e^x of a transform."""
    for k in range(TERMS):
        length = length_of(logs[k])
        cosine, sine = cosine_and_sine(logs[TERMS + k])
        out[k] = length * cosine
        out[TERMS + k] = length * sine


def copy_less(transform: FloatArray, less: float, out: FloatArray) -> None:
    """The transform less this number, a real one."""
    for k in range(TERMS):
        out[k] = transform[k] - less
        out[TERMS + k] = transform[TERMS + k]


def add_turns(
    masses: tuple[float, float],
    angle: float,
    turns: FloatArray,
    first: FloatArray,
    second: FloatArray,
) -> None:
    """Add one time, as the angle at the first frequency above 0, with two masses to two transforms.

    Powers are products of fine and coarse ones, which `turns` has room for.
    """
    mass, other = masses
    cosines, sines = turns[0], turns[1]
    for i in range(FINE + COARSE):
        cosines[i], sines[i] = cosine_and_sine(angle * (i if i < FINE else (i - FINE) * FINE))
    for block in range(COARSE):
        cosine, sine = cosines[FINE + block], sines[FINE + block]
        for i in range(FINE):
            k = FINE * block + i
            real = cosine * cosines[i] - sine * sines[i]
            imaginary = cosine * sines[i] + sine * cosines[i]
            first[k] += mass * real
            first[TERMS + k] += mass * imaginary
            second[k] += other * real
            second[TERMS + k] += other * imaginary


share(cosine_and_sine, length_of, exponential, copy_less, add_turns)
