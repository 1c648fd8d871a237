"""What must survive a restart, compact: written to the resource's status and read back.

The law, lengths, cold start, calibration and the forecast, which goes on where the pause was short.
Reading ignores whatever does not fit: a status may have been edited.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.forecast.demand import ForecastState
from servingslo.estimation.forecast.rate_filters import MODELS, FilterState
from servingslo.estimation.forecast.realized_errors import (
    HORIZONS_SECONDS,
    LARGEST_SQUARED_ERROR,
    RETURN_LOG_ODDS_BOUND,
    ErrorLog,
)
from servingslo.estimation.forecast.season_offset import (
    LARGEST_OFFSET,
    LARGEST_VARIANCE,
    LOG_ODDS_BOUND,
    SeasonState,
)
from servingslo.estimation.forecast.surges import Surge
from servingslo.estimation.law.calibration import RATIO_BOUNDS, CalibrationState
from servingslo.estimation.law.fit import LawFit, LawState
from servingslo.estimation.law.stored_fit import dump_fit, load_fit
from servingslo.estimation.pods import batch_limits as limits
from servingslo.estimation.pods.cold_start import ColdStartState, StartRecord
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.lengths import LengthState
from servingslo.estimation.requests.observed import LATENCIES
from servingslo.estimation.stored_fields import (
    LONGEST_NAME,
    is_number,
    items_of,
    numbers_of,
    rounded,
)

# Of the stored form; another one is not read.
VERSION = 1
# Two configurations (before and after a rollout) and these sizes keep it below 3 KiB.
STORED_CONFIGURATIONS = 2
STORED_STARTS = 8
# A few surges of an hour say how likely the next one is.
REMEMBERED_SURGES = 5
# Five probabilities of four digits each sum to one within this.
PROBABILITY_ROUNDING = 0.01
_FILTER_FIELDS = tuple(f.name for f in fields(FilterState))
# Sums of lengths, in the order in which they are stored.
_FLOW = (
    "started", "finished", "generated_tokens", "prompt_tokens", "cached_tokens", "held_tokens",
    "held_by",
)  # fmt: skip
# Of these, what was given up and what still runs; absent from what older releases stored.
_ENDS = ("aborted", "running_change")


def learned(state: EstimatorState) -> dict[str, Any]:
    """What was learnt, as plain JSON values of at most 3 KiB."""
    sums = state.lengths
    return {
        "version": VERSION,
        "laws": [dump_fit(f) for f in state.law.fits[:STORED_CONFIGURATIONS]],
        "lengths": {
            "flow": rounded([getattr(sums, name) for name in _FLOW], 6),
            "ends": rounded([getattr(sums, name) for name in _ENDS], 6),
            "prompt": _dump_histogram(sums.prompt),
            "output": _dump_histogram(sums.output),
        },
        "coldStart": [
            [
                s.pod,
                round(s.scheduling_seconds, 1),
                round(s.loading_seconds, 1),
                *([] if s.image_seconds is None else [round(s.image_seconds, 1)]),
            ]
            for s in state.cold_start.starts[-STORED_STARTS:]
        ],
        "calibration": _dump_calibration(state),
        "forecast": _dump_forecast(state.forecast),
        "limits": limits.dump(state.limits),
    }


def restore(stored: object) -> EstimatorState:
    """The state with what was stored; parts that are absent or malformed are left unknown."""
    if not isinstance(stored, Mapping) or stored.get("version") != VERSION:
        return EstimatorState()
    fits = [f for f in map(load_fit, items_of(stored.get("laws"))) if f is not None]
    starts = [s for s in map(_load_start, items_of(stored.get("coldStart"))) if s is not None]
    return EstimatorState(
        law=LawState(fits=tuple(fits[:STORED_CONFIGURATIONS])),
        lengths=_load_lengths(stored.get("lengths")),
        cold_start=ColdStartState(starts=tuple(starts[-STORED_STARTS:])),
        calibration=_load_calibration(stored.get("calibration"), fits),
        forecast=_load_forecast(stored.get("forecast")),
        limits=limits.load(stored.get("limits")),
    )


def _dump_histogram(delta: HistogramDelta | None) -> list[list[float]] | None:
    if delta is None:
        return None
    return [list(delta.upper_bounds), rounded(delta.counts, 4), rounded((delta.sum,), 6)]


def _load_histogram(stored: object) -> HistogramDelta | None:
    parts = items_of(stored)
    if len(parts) != 3:
        return None
    bounds = numbers_of(parts[0], None)
    counts = numbers_of(parts[1], None)
    total = numbers_of(parts[2], 1)
    if bounds is None or counts is None or total is None or len(counts) != len(bounds) + 1:
        return None
    increasing = all(b > a for a, b in pairwise(bounds))
    if not increasing or min(counts) < 0 or total[0] < 0 or (bounds and bounds[0] < 0):
        return None
    return HistogramDelta(upper_bounds=bounds, counts=counts, sum=total[0])


def _load_lengths(stored: object) -> LengthState:
    if not isinstance(stored, Mapping):
        return LengthState()
    flow = numbers_of(stored.get("flow"), len(_FLOW))
    if flow is None or min(flow) < 0:
        return LengthState()
    sums: dict[str, Any] = dict(zip(_FLOW, flow, strict=True))
    ends = numbers_of(stored.get("ends"), len(_ENDS))
    if ends is not None and 0.0 <= ends[0] <= sums["finished"]:
        sums |= dict(zip(_ENDS, ends, strict=True))
    return LengthState(
        **sums,
        prompt=_load_histogram(stored.get("prompt")),
        output=_load_histogram(stored.get("output")),
    )


def _load_start(stored: object) -> StartRecord | None:
    parts = items_of(stored)
    if len(parts) not in {3, 4} or not isinstance(parts[0], str) or len(parts[0]) > LONGEST_NAME:
        return None
    numbers = numbers_of(parts[1:], len(parts) - 1)
    if numbers is None or min(numbers) < 0:
        return None
    return StartRecord(
        pod=parts[0],
        scheduling_seconds=numbers[0],
        loading_seconds=numbers[1],
        image_seconds=min(numbers[2], numbers[1]) if len(numbers) > 2 else None,
    )


def _dump_calibration(state: EstimatorState) -> dict[str, float]:
    """The log ratios, with a mark where the law that the resource states predicted."""
    ratios = {k: round(v, 4) for k, v in state.calibration.log_ratios.items()}
    return ratios if state.calibration.stated is None else {**ratios, "stated": 1}


def _load_calibration(stored: object, fits: Sequence[LawFit]) -> CalibrationState:
    if not isinstance(stored, Mapping):
        return CalibrationState(log_ratios={})
    low, high = (math.log(bound) for bound in RATIO_BOUNDS)
    score = fits[0].stated if fits and stored.get("stated") else None
    if score is None and stored.get("stated"):
        return CalibrationState(log_ratios={})
    return CalibrationState(
        stated=None if score is None else score.law,
        log_ratios={
            metric: min(max(float(value), low), high)
            for metric in LATENCIES
            if is_number(value := stored.get(metric))
        },
    )


def _dump_forecast(state: ForecastState) -> dict[str, Any] | None:
    """The forecast without what waits to be judged, which comes again within a few minutes."""
    if state.time_seconds is None:
        return None
    return {
        "at": round(state.time_seconds, 1),
        "filters": [
            rounded([getattr(one, name) for name in _FILTER_FIELDS], 4) for one in state.filters
        ],
        "usual": rounded(
            (state.usual_mean_per_second, state.usual_variance, state.observed_seconds), 4
        ),
        "odds": rounded(state.errors.return_log_odds, 3),
        # Where today lies beside the season; the season itself is found in history again.
        "season": rounded((state.season.offset, state.season.variance, *state.season.log_odds), 3),
        "errors": rounded(state.errors.squared_errors, 3),
        "bursts": [
            [
                round(b.start_seconds),
                round(b.last_seconds),
                *rounded((b.peak_per_second, b.expected_per_second), 4),
                round(b.ended_seconds or 0.0),
            ]
            for b in state.errors.surges[-REMEMBERED_SURGES:]
        ],
    }


def _load_forecast(stored: object) -> ForecastState:
    if not isinstance(stored, Mapping) or not is_number(at := stored.get("at")):
        return ForecastState()
    rows = [numbers_of(row, len(_FILTER_FIELDS)) for row in items_of(stored.get("filters"))]
    usual = numbers_of(stored.get("usual"), 3)
    odds = numbers_of(stored.get("odds"), len(HORIZONS_SECONDS))
    errors = numbers_of(stored.get("errors"), len(HORIZONS_SECONDS))
    filters = tuple(
        FilterState(**dict(zip(_FILTER_FIELDS, row, strict=True))) for row in rows if row
    )
    if len(filters) != len(MODELS) or usual is None or odds is None or errors is None:
        return ForecastState()
    whole = abs(sum(f.probability for f in filters) - 1.0) < PROBABILITY_ROUNDING and all(
        min(f.probability, f.level, f.level_variance, f.trend_variance) >= 0 for f in filters
    )
    if not whole or min(*usual, *errors) < 0:
        return ForecastState()
    bound = RETURN_LOG_ODDS_BOUND
    return ForecastState(
        time_seconds=float(at),
        filters=filters,
        usual_mean_per_second=usual[0],
        usual_variance=usual[1],
        observed_seconds=usual[2],
        errors=ErrorLog(
            return_log_odds=tuple(min(max(o, -bound), bound) for o in odds),
            squared_errors=tuple(min(e, LARGEST_SQUARED_ERROR) for e in errors),
            surges=_load_surges(stored.get("bursts"), float(at)),
        ),
        season=_load_season(stored.get("season")),
    )


def _load_surges(stored: object, at_seconds: float) -> tuple[Surge, ...]:
    """Surges in order of time; none of what cannot be read."""
    rows = [numbers_of(row, 5) for row in items_of(stored)[-REMEMBERED_SURGES:]]
    return tuple(
        Surge(
            start_seconds=row[0],
            last_seconds=row[1],
            peak_per_second=row[2],
            expected_per_second=row[3],
            # 1 is how an earlier version stored that it was over.
            ended_seconds=max(row[4], row[1]) if row[4] else None,
        )
        for row in rows
        if row is not None and row[0] <= row[1] <= at_seconds + 1.0 and min(row[2:]) >= 0
    )


def _load_season(stored: object) -> SeasonState:
    """Where today lies beside the season, without the season."""
    numbers = numbers_of(stored, 2 + len(HORIZONS_SECONDS))
    if numbers is None or numbers[1] <= 0 or abs(numbers[0]) > LARGEST_OFFSET:
        return SeasonState()
    bound = LOG_ODDS_BOUND
    return SeasonState(
        offset=numbers[0],
        variance=min(numbers[1], LARGEST_VARIANCE),
        log_odds=tuple(min(max(odds, -bound), bound) for odds in numbers[2:]),
    )
