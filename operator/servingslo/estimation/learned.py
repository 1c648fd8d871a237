"""What must survive a restart, compact: written to the resource's status and read back.

The law, lengths, cold start, calibration and the forecast, which goes on where the pause was short.
Reading ignores whatever does not fit: a status may have been edited.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, TypeGuard

from servingslo.estimation.calibration import RATIO_BOUNDS, CalibrationState
from servingslo.estimation.cold_start import ColdStartState, StartRecord
from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.forecast import (
    SCORED_LEADS_SECONDS,
    ForecastState,
)
from servingslo.estimation.histograms import HistogramDelta
from servingslo.estimation.least_squares import Information
from servingslo.estimation.lengths import LengthState
from servingslo.estimation.observed import LATENCIES
from servingslo.estimation.pending import LARGEST_SQUARED_ERROR, RETURN_LOG_ODDS_BOUND
from servingslo.estimation.rate_filters import MODELS, FilterState
from servingslo.estimation.seasonal import (
    LARGEST_OFFSET,
    LARGEST_VARIANCE,
    LOG_ODDS_BOUND,
    SeasonState,
)
from servingslo.estimation.service_law import (
    ERROR_MEMORY_WINDOWS,
    Configuration,
    LawFit,
    LawState,
    TrustedLaw,
)
from servingslo.estimation.surprises import Surprise
from servingslo.models.service_time import ServiceLaw

VERSION = 1
SIGNIFICANT_DIGITS = 9
# Two configurations (before and after a rollout) and these sizes keep it below 3 KiB.
STORED_CONFIGURATIONS = 2
STORED_STARTS = 8
LONGEST_NAME = 253
# Two bursts of an hour make them recur; a few more tell how often.
REMEMBERED_BURSTS = 5
# Five probabilities of four digits each sum to one within this.
PROBABILITY_ROUNDING = 0.01
_FILTER_FIELDS = tuple(f.name for f in fields(FilterState))


def learned(state: EstimatorState) -> dict[str, Any]:
    """What was learnt, as plain JSON values of at most 3 KiB."""
    sums = state.lengths
    return {
        "version": VERSION,
        "laws": [_dump_fit(f) for f in state.law.fits[:STORED_CONFIGURATIONS]],
        "lengths": {
            "flow": _numbers(
                (
                    sums.started,
                    sums.finished,
                    sums.generated_tokens,
                    sums.prompt_tokens,
                    sums.cached_tokens,
                    sums.held_tokens,
                    sums.held_by,
                ),
                6,
            ),
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
        "calibration": {k: round(v, 4) for k, v in state.calibration.log_ratios.items()},
        "forecast": _dump_forecast(state.forecast),
    }


def restore(stored: object) -> EstimatorState:
    """The state with what was stored; parts that are absent or malformed are left unknown."""
    if not isinstance(stored, Mapping) or stored.get("version") != VERSION:
        return EstimatorState()
    fits = [f for f in map(_load_fit, _list(stored.get("laws"))) if f is not None]
    starts = [s for s in map(_load_start, _list(stored.get("coldStart"))) if s is not None]
    return EstimatorState(
        law=LawState(fits=tuple(fits[:STORED_CONFIGURATIONS])),
        lengths=_load_lengths(stored.get("lengths")),
        cold_start=ColdStartState(starts=tuple(starts[-STORED_STARTS:])),
        calibration=_load_calibration(stored.get("calibration")),
        forecast=_load_forecast(stored.get("forecast")),
    )


def _dump_fit(fit: LawFit) -> dict[str, Any]:
    c = fit.configuration
    information = fit.information
    trusted = fit.trusted
    return {
        "of": [c.template_hash, c.image, c.gpu_product, c.max_num_seqs, c.max_num_batched_tokens],
        "information": _numbers(
            (
                *information.normal,
                *information.moment,
                information.squares,
                information.weight,
            ),
            SIGNIFICANT_DIGITS,
        ),
        "windows": fit.window_count,
        "error": None if fit.error_ratio is None else round(fit.error_ratio, 4),
        "bias": round(fit.bias_ratio, 4),
        "reach": _numbers((fit.sequences_high, fit.prefill_per_step_tokens), 4),
        "trusted": None
        if trusted is None
        else _numbers(
            (
                trusted.law.step_fixed_seconds,
                trusted.law.step_per_sequence_seconds,
                trusted.law.prefill_per_token_seconds,
                trusted.law.context_per_token_seconds,
                trusted.error_ratio,
                trusted.window_count,
            ),
            6,
        ),
    }


def _load_fit(stored: object) -> LawFit | None:
    if not isinstance(stored, Mapping):
        return None
    of = _list(stored.get("of"))
    numbers = _load_numbers(stored.get("information"), 11)
    reach = _load_numbers(stored.get("reach"), 2)
    windows = stored.get("windows")
    if len(of) != 5 or numbers is None or reach is None or not _is_count(windows):
        return None
    if numbers[0] < 0 or numbers[3] < 0 or numbers[5] < 0 or numbers[9] < 0 or numbers[10] < 0:
        return None
    error = stored.get("error")
    bias = stored.get("bias")
    return LawFit(
        configuration=Configuration(
            template_hash=_text(of[0]),
            image=_text(of[1]),
            gpu_product=_text(of[2]),
            max_num_seqs=of[3] if _is_count(of[3]) else None,
            max_num_batched_tokens=of[4] if _is_count(of[4]) else None,
        ),
        information=Information(
            normal=(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]),
            moment=(numbers[6], numbers[7], numbers[8]),
            squares=numbers[9],
            weight=numbers[10],
        ),
        window_count=int(windows or 0),
        scored_count=min(int(windows or 0), int(ERROR_MEMORY_WINDOWS)),
        error_ratio=float(error) if _is_number(error) and error >= 0 else None,
        bias_ratio=float(bias) if _is_number(bias) else 0.0,
        sequences_high=max(reach[0], 0.0),
        prefill_per_step_tokens=max(reach[1], 0.0),
        trusted=_load_trusted(stored.get("trusted")),
    )


def _load_trusted(stored: object) -> TrustedLaw | None:
    numbers = _load_numbers(stored, 6)
    if numbers is None or min(numbers) < 0 or numbers[0] <= 0:
        return None
    return TrustedLaw(
        law=ServiceLaw(
            step_fixed_seconds=numbers[0],
            step_per_sequence_seconds=numbers[1],
            prefill_per_token_seconds=numbers[2],
            context_per_token_seconds=numbers[3],
        ),
        error_ratio=numbers[4],
        window_count=int(numbers[5]),
    )


def _dump_histogram(delta: HistogramDelta | None) -> list[list[float]] | None:
    if delta is None:
        return None
    return [
        list(delta.upper_bounds),
        _numbers(delta.counts, 4),
        _numbers((delta.sum,), 6),
    ]


def _load_histogram(stored: object) -> HistogramDelta | None:
    parts = _list(stored)
    if len(parts) != 3:
        return None
    bounds = _load_numbers(parts[0], None)
    counts = _load_numbers(parts[1], None)
    total = _load_numbers(parts[2], 1)
    if bounds is None or counts is None or total is None or len(counts) != len(bounds) + 1:
        return None
    increasing = all(b > a for a, b in pairwise(bounds))
    if not increasing or min(counts) < 0 or total[0] < 0 or (bounds and bounds[0] < 0):
        return None
    return HistogramDelta(upper_bounds=bounds, counts=counts, sum=total[0])


def _load_lengths(stored: object) -> LengthState:
    if not isinstance(stored, Mapping):
        return LengthState()
    flow = _load_numbers(stored.get("flow"), 7)
    if flow is None or min(flow) < 0:
        return LengthState()
    return LengthState(
        started=flow[0],
        finished=flow[1],
        generated_tokens=flow[2],
        prompt_tokens=flow[3],
        cached_tokens=flow[4],
        held_tokens=flow[5],
        held_by=flow[6],
        prompt=_load_histogram(stored.get("prompt")),
        output=_load_histogram(stored.get("output")),
    )


def _load_start(stored: object) -> StartRecord | None:
    parts = _list(stored)
    if len(parts) not in {3, 4} or not isinstance(parts[0], str) or len(parts[0]) > LONGEST_NAME:
        return None
    numbers = _load_numbers(parts[1:], len(parts) - 1)
    if numbers is None or min(numbers) < 0:
        return None
    return StartRecord(
        pod=parts[0],
        scheduling_seconds=numbers[0],
        loading_seconds=numbers[1],
        image_seconds=min(numbers[2], numbers[1]) if len(numbers) > 2 else None,
    )


def _load_calibration(stored: object) -> CalibrationState:
    if not isinstance(stored, Mapping):
        return CalibrationState(log_ratios={})
    low, high = (math.log(bound) for bound in RATIO_BOUNDS)
    return CalibrationState(
        log_ratios={
            metric: min(max(float(value), low), high)
            for metric in LATENCIES
            if _is_number(value := stored.get(metric))
        }
    )


def _dump_forecast(state: ForecastState) -> dict[str, Any] | None:
    """The forecast without its pending scores, which come again within a few minutes."""
    if state.time_seconds is None:
        return None
    return {
        "at": round(state.time_seconds, 1),
        "filters": [
            _numbers([getattr(state_of_one, name) for name in _FILTER_FIELDS], 4)
            for state_of_one in state.filters
        ],
        "usual": _numbers(
            (state.usual_mean_per_second, state.usual_variance, state.observed_seconds), 4
        ),
        "odds": _numbers(state.return_log_odds, 3),
        # Where today lies beside the season; the season itself is found in history again.
        "season": _numbers((state.season.offset, state.season.variance, *state.season.log_odds), 3),
        "errors": _numbers(state.squared_errors, 3),
        "bursts": [
            [
                round(b.start_seconds),
                round(b.last_seconds),
                *_numbers((b.peak_per_second, b.expected_per_second), 4),
                int(b.over),
            ]
            for b in state.surprises[-REMEMBERED_BURSTS:]
        ],
    }


def _load_forecast(stored: object) -> ForecastState:
    if not isinstance(stored, Mapping) or not _is_number(at := stored.get("at")):
        return ForecastState()
    rows = [_load_numbers(row, len(_FILTER_FIELDS)) for row in _list(stored.get("filters"))]
    usual = _load_numbers(stored.get("usual"), 3)
    odds = _load_numbers(stored.get("odds"), len(SCORED_LEADS_SECONDS))
    errors = _load_numbers(stored.get("errors"), len(SCORED_LEADS_SECONDS))
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
        return_log_odds=tuple(min(max(o, -bound), bound) for o in odds),
        squared_errors=tuple(min(e, LARGEST_SQUARED_ERROR) for e in errors),
        season=_load_season(stored.get("season")),
        surprises=_load_bursts(stored.get("bursts"), float(at)),
    )


def _load_bursts(stored: object, at_seconds: float) -> tuple[Surprise, ...]:
    """Bursts in order of time; none of what cannot be read."""
    rows = [_load_numbers(row, 5) for row in _list(stored)[-REMEMBERED_BURSTS:]]
    return tuple(
        Surprise(
            start_seconds=row[0],
            last_seconds=row[1],
            peak_per_second=row[2],
            expected_per_second=row[3],
            over=bool(row[4]),
        )
        for row in rows
        if row is not None and row[0] <= row[1] <= at_seconds + 1.0 and min(row[2:]) >= 0
    )


def _load_season(stored: object) -> SeasonState:
    """Where today lies beside the season, without the season."""
    numbers = _load_numbers(stored, 2 + len(SCORED_LEADS_SECONDS))
    if numbers is None or numbers[1] <= 0 or abs(numbers[0]) > LARGEST_OFFSET:
        return SeasonState()
    bound = LOG_ODDS_BOUND
    return SeasonState(
        offset=numbers[0],
        variance=min(numbers[1], LARGEST_VARIANCE),
        log_odds=tuple(min(max(odds, -bound), bound) for odds in numbers[2:]),
    )


def _numbers(values: Sequence[float], digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _load_numbers(stored: object, count: int | None) -> tuple[float, ...] | None:
    values = _list(stored)
    if (count is not None and len(values) != count) or not all(map(_is_number, values)):
        return None
    return tuple(float(v) for v in values)


def _is_number(value: Any) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _text(value: object) -> str | None:
    return value[:LONGEST_NAME] if isinstance(value, str) else None
