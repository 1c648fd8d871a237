"""Numbers of a status: rounded, so that noise is not written."""

import math

_SIGNIFICANT_DIGITS = 3


def rounded(value: float | None) -> float | None:
    """Three significant digits; None for an unknown value or no number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
