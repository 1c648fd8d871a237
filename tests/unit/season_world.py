"""Two weeks of a workload with working days and rest days, as history and as the truth."""

import numpy as np

from servingslo.estimation.forecast.season_profile import RateHistory

DAY = 86400.0
HOUR = 3600.0
BIN_SECONDS = 300.0
DAYS = 14
# A Monday, 00:00 UTC; days since 1970-01-01, a Thursday, mod 7: Saturday is 2, Sunday 3.
MONDAY = 19674 * DAY
SATURDAY, SUNDAY = 2, 3
# Offices open at nine, within six minutes, eat at one and go home from five.
HOURS = (0.0, 7.0, 8.95, 9.05, 12.0, 13.0, 17.0, 19.0, 24.0)
SHAPE = (0.0, 0.05, 0.2, 0.9, 1.0, 0.8, 1.0, 0.2, 0.0)


def office_rate(seconds, *, low=2.0, high=20.0, later_hours=0.0):
    """Requests per second: high in office hours of working days, low at night and on rest days."""
    local = np.asarray(seconds) - later_hours * HOUR
    shape = np.interp(local % DAY / HOUR, HOURS, SHAPE)
    resting = np.isin(np.floor(local / DAY) % 7, (SATURDAY, SUNDAY))
    return low + (high - low) * np.where(resting, 0.1 * shape, shape)


def history_of(rate=office_rate, *, days=DAYS, seed=1, spread=0.1, missing=0.0, odd_day=None):
    """The counted history of a rate, beginning on MONDAY.

    spread: standard deviation of a day's log level. missing: share of the bins without data.
    odd_day: one that lies at a tenth of what is usual.
    """
    random = np.random.default_rng(seed)
    bins = round(DAY / BIN_SECONDS)
    middles = MONDAY + (np.arange(days * bins) + 0.5) * BIN_SECONDS
    levels = np.exp(random.normal(0.0, spread, days)) if spread else np.ones(days)
    if odd_day is not None:
        levels[odd_day] = 0.1
    truth = rate(middles) * np.repeat(levels, bins)
    counted = random.poisson(truth * BIN_SECONDS) / BIN_SECONDS
    known = random.random(len(counted)) >= missing
    return RateHistory(
        start_seconds=MONDAY,
        bin_seconds=BIN_SECONDS,
        rates_per_second=tuple(
            float(value) if there else None for value, there in zip(counted, known, strict=True)
        ),
    )
