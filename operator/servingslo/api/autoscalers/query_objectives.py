"""Objectives that hide in triggers: a percentile of an engine's latency, compared with a threshold.

`histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))` with
threshold "0.5" is the objective ttft p95 500ms.
"""

import re
from typing import Any

from servingslo.models.fleet.objective_metrics import ROWS
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.profile import MetricKind
from servingslo.units import PERCENT_PER_UNIT, milliseconds_from_seconds

# Range of an objective: api/v1alpha1/objectives.py.
LOWEST_PERCENTILE, HIGHEST_PERCENTILE = 50.0, 99.9
SHORTEST_SECONDS, LONGEST_SECONDS = 0.001, 3600.0

_QUANTILE = re.compile(r"histogram_quantile\s*\(\s*([0-9]*[.]?[0-9]+)\s*,(.*)\)\s*", re.DOTALL)
_BUCKETS = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)_bucket\b")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_DIGITS = 6


def objective_of(query: str, threshold: str) -> Objective | None:
    """The objective of a query that is one percentile of one latency; None for any other.

    threshold: in the unit of the histogram, seconds.
    """
    match = _QUANTILE.fullmatch(query.strip())
    seconds = _number(threshold)
    if match is None or seconds is None or not _closes_at_the_end(match[2]):
        return None
    metrics = {_metric(name) for name in _BUCKETS.findall(_QUOTED.sub("", match[2]))}
    percentile = round(float(match[1]) * PERCENT_PER_UNIT, _DIGITS)
    if len(metrics) != 1 or not LOWEST_PERCENTILE <= percentile <= HIGHEST_PERCENTILE:
        return None
    (metric,) = metrics
    if metric is None or not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        return None
    return Objective(metric=metric, percentile=percentile, threshold_seconds=seconds)


def written(objective: Objective) -> dict[str, Any]:
    """The objective as manifests have it."""
    seconds, percentile = objective.threshold_seconds, objective.percentile
    milliseconds = f"{milliseconds_from_seconds(seconds):.{_DIGITS}g}ms"
    return {
        "metric": objective.metric.value,
        "percentile": int(percentile) if percentile == int(percentile) else percentile,
        "threshold": f"{int(seconds)}s" if seconds == int(seconds) else milliseconds,
    }


def _closes_at_the_end(argument: str) -> bool:
    """Whether the bracket before the argument is closed by the last one, not by an earlier one."""
    depth = 0
    for character in _QUOTED.sub("", argument):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def _metric(name: str) -> LatencyMetric | None:
    """The metric that a histogram of an engine observes."""
    fields = {
        one.field
        for profile in CATALOGUE
        for one in profile.metrics
        if one.kind is MetricKind.HISTOGRAM and name in one.names
    }
    return next((row.metric for row in ROWS if row.histogram in fields), None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
