"""Distribution functions from characteristic functions, and their quantiles; see `transform`."""

import numpy as np

from servingslo.models.compiled.shared import share
from servingslo.models.compiled.special import normal_quantile
from servingslo.models.compiled.spectra import TERMS
from servingslo.models.service_time import FloatArray
from servingslo.models.transform import FEWEST, MOST_DEVIATIONS, POINT_COUNT

POINTS = POINT_COUNT
# Of an even number of points.
_HALF = POINTS // 2


def invert(transform: FloatArray, sines: FloatArray, probability: FloatArray) -> None:
    """As `transform.invert`, into the first points of probability.

    Sines of odd terms are even about the middle of the range, those of even terms are odd.
    """
    odd, even = np.zeros(_HALF), np.zeros(_HALF)
    for k in range(1, TERMS, 2):
        part, row = transform[k], sines[k]
        for point in range(_HALF):
            odd[point] += part * row[point]
    for k in range(2, TERMS, 2):
        part, row = transform[k], sines[k]
        for point in range(_HALF):
            even[point] += part * row[point]
    mean, row = transform[0], sines[0]
    for point in range(_HALF):
        last = POINTS - 1 - point
        probability[point] = mean * row[point] + odd[point] + even[point]
        probability[last] = mean * row[last] + odd[point] - even[point]
    _rising(probability)


def _rising(probability: FloatArray) -> None:
    most = probability[0]
    for point in range(POINTS):
        most = max(most, probability[point])
        probability[point] = most
    for point in range(POINTS):
        probability[point] /= most


def drive(transform: FloatArray, sines: FloatArray, usual: FloatArray) -> None:
    """As `transform.driven`, in place: the law of a queue that drives n, from its transform."""
    queued = np.empty(POINTS)
    invert(transform, sines, queued)
    for point in range(POINTS):
        deviation = normal_quantile(min(max(usual[point], FEWEST), 1.0 - FEWEST))
        deviation = min(max(deviation, -MOST_DEVIATIONS), MOST_DEVIATIONS)
        driven = usual[point] + deviation * (queued[point] - usual[point])
        usual[point] = min(max(driven, 0.0), 1.0)
    _rising(usual)


def law_quantile(law: FloatArray, points: int, probability: float) -> float:
    """Time in seconds that this share of requests does not exceed; points: of the law."""
    seconds, shares = law[0], law[1]
    if not probability >= shares[0]:
        return float(seconds[0])
    low, high = 0, points
    # The last point that is not above.
    while high - low > 1:
        middle = (low + high) // 2
        if shares[middle] <= probability:
            low = middle
        else:
            high = middle
    if high == points:
        return float(seconds[points - 1])
    slope = (seconds[high] - seconds[low]) / (shares[high] - shares[low])
    return float(slope * (probability - shares[low]) + seconds[low])


share(invert, _rising, drive, law_quantile)
