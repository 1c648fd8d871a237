"""Guards of the arithmetic: against 0/0, against rounding, and against a series that diverges.

None of them is a setting. Each lies so far from any measured value that a tenth or ten times of it
changes no percentile; `tests/unit/test_numerics.py` holds the greatest of them to that.
Source: IEEE 754 doubles carry sixteen digits; the laws here need four.
"""

# Denominators in seconds: far below any step, of which the shortest takes 100 µs.
TINY_SECONDS = 1e-12
# What a sequence adds to a step, at the least: less than a nanosecond is nothing.
LEAST_GROWTH_SECONDS = 1e-9
# Denominators in tokens: far below one.
TINY_TOKENS = 1e-9
# Denominators without a unit: shares, masses and squares of numbers of requests.
TINY_NUMBER = 1e-12
# Variances, in whichever unit, where nothing varies.
TINY_VARIANCE = 1e-24
# A ratio that is taken as this at the least, in quotients such as (1 − e^−x)/x and 1/(1 − x) − 1,
# whose limit at zero is as good from here on: the first for laws, the second for a single product.
SMALL_RATIO = 1e-6
TINY_RATIO = 1e-9
# A probability next to one: what is left of it has no moments.
ALMOST_ONE = 1.0 - 1e-6
# A quotient such as 3.0000000001 is 3, and two values that differ by less are equal.
ROUNDING = 1e-9
# Loads that feed themselves are taken as this at the most, so that their sums stay finite. Measured
# on the prefill of pools: 0.96 and 0.99 change nothing up to a utilization of 0.95.
LARGEST_LOAD = 0.98
# Masses and probabilities of which a logarithm or a share is taken, although they underflow.
LEAST_MASS = 1e-200
TINY_PROBABILITY = 1e-300
