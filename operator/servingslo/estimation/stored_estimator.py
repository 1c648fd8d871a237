"""State that survives a restart, compact: written to the resource's status and read back.

The law, lengths, cold start, calibration and the forecast, which continues after a short pause.
Reading ignores parts that do not fit, because a status may have been edited. Each class has one
table of fields.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from servingslo.copying import replace
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
from servingslo.estimation.law.calibration import RATIO_BOUNDS, CalibrationState
from servingslo.estimation.law.fit import LawFit, LawState
from servingslo.estimation.law.stored_fit import FIT
from servingslo.estimation.pods.batch_limits import EVIDENCE
from servingslo.estimation.pods.cold_start import ColdStartState, StartRecord
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.lengths import LengthState
from servingslo.estimation.requests.observed import LATENCIES
from servingslo.estimation.stored_fields import (
    NAME,
    Items,
    Keys,
    Many,
    Number,
    Numbers,
    One,
    Record,
    decimal,
    is_number,
)

# Version of the stored form; another version is not read.
VERSION = 1
# Two configurations (before and after a rollout) and these sizes keep it below 3 KiB.
STORED_CONFIGURATIONS = 2
STORED_STARTS = 8
# Five probabilities of four digits each sum to one within this.
PROBABILITY_ROUNDING = 0.01


def _increasing(delta: HistogramDelta) -> HistogramDelta | None:
    """Return the histogram; None if its edges do not rise from 0 or their number does not fit."""
    bounds = delta.upper_bounds
    fits = len(delta.counts) == len(bounds) + 1 and all(b > a for a, b in pairwise(bounds))
    return delta if fits and (not bounds or bounds[0] >= 0.0) else None


def _with_possible_ends(sums: LengthState) -> LengthState:
    """Return the sums, without aborted requests if more are stored than ended."""
    if sums.aborted <= sums.finished:
        return sums
    return replace(sums, aborted=0.0, running_change=0.0)


def _with_image_in_loading(start: StartRecord) -> StartRecord:
    """Limit the time of pulling the image to the time of loading, of which it is a part."""
    image = start.image_seconds
    return replace(
        start, image_seconds=None if image is None else min(image, start.loading_seconds)
    )


def _whole(state: ForecastState) -> ForecastState | None:
    """Forecast; None if its bank of filters is incomplete."""
    bank = state.filters
    if len(bank) != len(MODELS):
        return None
    whole = abs(sum(f.probability for f in bank) - 1.0) < PROBABILITY_ROUNDING
    return state if whole else None


# Tables of fields. Digits are few, to keep a status small: no value here is known to a thousandth.
HISTOGRAM = Record(
    HistogramDelta,
    Items(
        Numbers(Number("upper_bounds", rest=True)),
        Numbers(Number("counts", digits=4, rest=True, least=0.0)),
        Numbers(Number("sum", digits=6, least=0.0)),
        needed=True,
    ),
    finish=_increasing,
)
# Sums of flows, which are forgotten within minutes.
LENGTHS = Record(
    LengthState,
    Keys(
        {
            "flow": Numbers(
                Number("started", digits=6, least=0.0),
                Number("finished", digits=6, least=0.0),
                Number("generated_tokens", digits=6, least=0.0),
                Number("prompt_tokens", digits=6, least=0.0),
                Number("cached_tokens", digits=6, least=0.0),
                Number("held_tokens", digits=6, least=0.0),
                Number("held_by", digits=6, least=0.0),
            ),
            # Aborted and running requests; absent in the status of older releases.
            "ends": Numbers(
                Number("aborted", digits=6, least=0.0), Number("running_change", digits=6)
            ),
            "prompt": One("prompt", HISTOGRAM),
            "output": One("output", HISTOGRAM),
        },
        needed=("flow",),
    ),
    finish=_with_possible_ends,
)
# Tenths of a second: no start is known better.
START = Record(
    StartRecord,
    Items(
        One("pod", NAME),
        One("scheduling_seconds", decimal(1, least=0.0)),
        One("loading_seconds", decimal(1, least=0.0)),
        One("image_seconds", decimal(1, least=0.0)),
        needed=True,
        optional=1,
    ),
    finish=_with_image_in_loading,
)
# A bank of filters is read as a whole or not at all.
_NOT_NEGATIVE = {"probability", "level", "level_variance", "trend_variance"}
FILTER = Record(
    FilterState,
    Numbers(
        *(
            Number(f.name, digits=4, least=0.0 if f.name in _NOT_NEGATIVE else -math.inf)
            for f in fields(FilterState)
        )
    ),
)
# Today's offset from the season. The season itself is found again from history.
SEASON = Record(
    SeasonState,
    Numbers(
        Number("offset", digits=3, least=-LARGEST_OFFSET, most=LARGEST_OFFSET),
        Number("variance", digits=3, bounds=(-math.inf, LARGEST_VARIANCE)),
        Number(
            "log_odds",
            digits=3,
            count=len(HORIZONS_SECONDS),
            bounds=(-LOG_ODDS_BOUND, LOG_ODDS_BOUND),
        ),
    ),
    finish=lambda state: state if state.variance > 0.0 else None,
)
# Without forecasts that wait for their outcome; new ones follow within a few minutes.
FORECAST = Record(
    ForecastState,
    Keys(
        {
            "at": One("time_seconds", decimal(1)),
            # One more than possible, so that a longer bank is refused.
            "filters": Many("filters", FILTER, most=len(MODELS) + 1),
            "usual": Numbers(
                Number("usual_mean_per_second", digits=4, least=0.0),
                Number("usual_variance", digits=4, least=0.0),
                Number("observed_seconds", digits=4, least=0.0),
            ),
            "odds": Numbers(
                Number(
                    "errors.return_log_odds",
                    digits=3,
                    count=len(HORIZONS_SECONDS),
                    bounds=(-RETURN_LOG_ODDS_BOUND, RETURN_LOG_ODDS_BOUND),
                )
            ),
            "season": One("season", SEASON),
            "errors": Numbers(
                Number(
                    "errors.squared_errors",
                    digits=3,
                    count=len(HORIZONS_SECONDS),
                    least=0.0,
                    bounds=(0.0, LARGEST_SQUARED_ERROR),
                )
            ),
        },
        needed=("at", "usual", "odds", "errors"),
    ),
    nested={"errors": ErrorLog},
    finish=_whole,
    blank=lambda state: state.time_seconds is None,
)
ESTIMATOR = Record(
    EstimatorState,
    Keys(
        {
            "laws": Many("law.fits", FIT, most=STORED_CONFIGURATIONS),
            "lengths": One("lengths", LENGTHS),
            "coldStart": Many("cold_start.starts", START, most=STORED_STARTS, newest_last=True),
            "forecast": One("forecast", FORECAST),
            "limits": One("limits", EVIDENCE),
        }
    ),
    nested={"law": LawState, "cold_start": ColdStartState},
)


def learned(state: EstimatorState) -> dict[str, Any]:
    """Return the learnt state, as plain JSON values of at most 3 KiB."""
    stored: dict[str, Any] = ESTIMATOR.dump(state)
    return {"version": VERSION, **stored, "calibration": _dump_calibration(state)}


def restore(stored: object) -> EstimatorState:
    """Return the stored state; parts that are absent or malformed stay unknown."""
    if not isinstance(stored, Mapping) or stored.get("version") != VERSION:
        return EstimatorState()
    state = ESTIMATOR.load(stored) or EstimatorState()
    calibration = _load_calibration(stored.get("calibration"), state.law.fits)
    return replace(state, calibration=calibration)


def _dump_calibration(state: EstimatorState) -> dict[str, float]:
    """Return the log ratios, marked if they are of the law that the resource states."""
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
