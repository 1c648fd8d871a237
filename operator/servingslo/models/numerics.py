"""Guards of the arithmetic: against 0/0, against rounding, and against a series that diverges.

None of them is a setting. Each is so far from any measured value that a tenth or ten times of it
changes no percentile; `tests/unit/test_numerics.py` checks this for the greatest of them.
Source: IEEE 754 doubles carry sixteen digits; the laws here need four.
"""

# Denominators in seconds: far below any step, of which the shortest takes 100 µs.
TINY_SECONDS = 1e-12
# Least growth of a step per sequence: less than a nanosecond is nothing.
LEAST_GROWTH_SECONDS = 1e-9
# Denominators in tokens: far below one.
TINY_TOKENS = 1e-9
# Denominators without a unit: shares, masses and squares of numbers of requests.
TINY_NUMBER = 1e-12
# Variances, in whichever unit, where nothing varies.
TINY_VARIANCE = 1e-24
# Least ratio in quotients such as (1 − e^−x)/x and 1/(1 − x) − 1. Below it the limit at zero is
# accurate enough: the first for laws, the second for a single product.
SMALL_RATIO = 1e-6
TINY_RATIO = 1e-9
# A probability next to one: the rest is too small to have moments.
ALMOST_ONE = 1.0 - 1e-6
# A quotient such as 3.0000000001 is 3, and values that differ by less are equal.
ROUNDING = 1e-9
# Upper bound of loads that feed themselves, so that their sums stay finite. Measured on the prefill
# of pools: 0.96 and 0.99 change nothing up to a utilization of 0.95.
LARGEST_LOAD = 0.98
# Least mass or probability of a logarithm or a share, because masses may underflow.
LEAST_MASS = 1e-200
TINY_PROBABILITY = 1e-300
