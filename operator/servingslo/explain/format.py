"""Formats of numbers, counts, durations and objectives, the same everywhere."""

import json
import math
from collections.abc import Iterable

from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import (
    ConstraintNeed,
    ObjectiveReport,
    PredictedLatency,
    StepValue,
)
from servingslo.units import format_duration, milliseconds_from_seconds

# Four significant digits: more precise than any of these numbers, stable against noise.
_DIGITS = 4
# Whole numbers up to here are exact in every JSON reader.
_LARGEST_WHOLE = 2**53
_QUOTED = frozenset(' "=\\\t\n\r')
UNKNOWN = "unknown"


def rounded(value: StepValue) -> StepValue:
    """A number to four significant digits; whole numbers and everything else as they are."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    short = float(f"{value:.{_DIGITS}g}")
    if math.isinf(short):
        return value
    return int(short) if short.is_integer() and abs(short) < _LARGEST_WHOLE else short


def number(value: float) -> str:
    """Three significant digits without an exponent below a million."""
    short = float(f"{value:.3g}")
    if short == 0:
        return "0"
    return f"{short:.0f}" if abs(short) >= 100 else f"{short:g}"


def mean_tokens(value: float) -> str:
    """Tokens of a request, whole from 100 on: as stated, not rounded to 1160."""
    return f"{value:.0f}" if value >= 100 else number(value)


def percent(ratio: float | None) -> str:
    """A ratio in percent with one decimal: '98.2 %'. Never rounded up to 100. Or 'unknown'."""
    if ratio is None:
        return UNKNOWN
    text = f"{ratio:.1%}"
    if text == "100.0%" and ratio < 1:
        text = "99.9%"
    return text.replace("%", " %")


def seconds(value: float | None) -> str:
    """A duration for people, or 'unknown'."""
    return UNKNOWN if value is None else format_duration(value)


def per_second(rate: float | None) -> str | None:
    """'41.2/s'; None if it is unknown."""
    return None if rate is None else f"{number(rate)}/s"


def milliseconds(value: float) -> str:
    """A short duration for people: '15.1 ms'."""
    return f"{milliseconds_from_seconds(value):.3g} ms"


def count(value: int | None) -> str:
    """A count, or 'unknown'."""
    return UNKNOWN if value is None else str(value)


def changed(before: int | None, after: int | None) -> str:
    """'3->5', or '3' if the count stays."""
    return count(before) if before == after else f"{count(before)}->{count(after)}"


def counted(value: int | str | None, noun: str) -> str:
    """A number with its noun: '1 replica', '3->5 replicas', 'unknown replicas'."""
    told = UNKNOWN if value is None else str(value)
    return f"{told} {noun}" if told == "1" else f"{told} {noun}s"


def asked_count(need: ConstraintNeed) -> str:
    """The count a constraint needs: '7', 'more than 24' if no larger was examined, '' for none."""
    if need.replicas is not None:
        return str(need.replicas)
    return "" if need.more_than is None else f"more than {need.more_than}"


def replica_change(decision: Decision) -> str:
    """'3->5', or '3' if the count stays."""
    return changed(decision.replicas_before, decision.replicas_after)


def percentile(objective: ObjectiveReport | PredictedLatency) -> str:
    """'p99' or 'p99.9'."""
    return f"p{objective.percentile:g}"


def predicted(latency: PredictedLatency) -> str:
    """'ttft p99 0.38s', or that the count never keeps up."""
    value = "without bound" if latency.seconds is None else format_duration(latency.seconds)
    return f"{latency.metric} {percentile(latency)} {value}"


def objective_name(objective: ObjectiveReport) -> str:
    """'ttft p99 ≤ 0.5s'."""
    threshold = format_duration(objective.threshold_seconds)
    return f"{objective.metric} {percentile(objective)} ≤ {threshold}"


def each_proxy(proxies: int) -> str:
    """'its proxy', or 'each of 2 proxies'."""
    return "its proxy" if proxies == 1 else f"each of {proxies} proxies"


def quoted(value: str) -> str:
    """A value for a key=value line, in double quotes if it needs them."""
    plain = value.isprintable()
    if value and plain and not _QUOTED.intersection(value):
        return value
    # Line ends of Unicode and escapes of terminals are written as escapes: a label may be a
    # tenant's.
    return json.dumps(value, ensure_ascii=not plain)


def joined(parts: Iterable[str | None], between: str = ", ") -> str:
    """The parts in one text; unknown and empty ones are left out."""
    return between.join(filter(None, parts))


def key_value_line(event: str, pairs: Iterable[tuple[str, object]]) -> str:
    """A line of the log: 'decided action=hold'; unknown and empty values are left out."""
    told = (f"{key}={quoted(str(value))}" for key, value in pairs if value not in {None, ""})
    return " ".join((event, *told))
