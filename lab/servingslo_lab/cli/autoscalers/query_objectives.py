"""Objectives that hide in triggers: a percentile of an engine's latency, compared with a threshold.

`histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))` with
threshold "0.5" is the objective ttft p95 500ms, also in brackets, in milliseconds (`* 1000`) and
with `or vector(0)`. Means, recording rules and gaps between tokens are latencies, and no objective.
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
_INNERMOST = re.compile(r"\([^()]*\)")
_DIGITS = 6
# Characters; the time to read a query grows with their square, and a real one has a few hundred.
_LONGEST_QUERY = 4_096
# A value where there is none: `or vector(0)`, `> 0`.
_FILLED = re.compile(
    r"(.*?)(?:\s+or\s+(?:on\s*\(\s*\)\s*)?vector\s*\(\s*0[.0]*\s*\)|\s*>=?\s*0)\s*", re.DOTALL
)
_NUMBER = r"([0-9.]+(?:[eE][+-]?[0-9]+)?)"
_SCALED = re.compile(rf"(.*\S)\s*([*/])\s*{_NUMBER}\s*|{_NUMBER}\s*\*\s*(.*)", re.DOTALL)
# Milliseconds and microseconds; any other factor is no change of the unit.
_UNITS = frozenset({1.0, 1e3, 1e6})
_EVERY_OBSERVATION = re.compile(r"_bucket\s*\{[^{}]*\ble\s*=~?\s*[\"']\\*\+Inf[\"'][^{}]*\}")
# Names of metrics; functions and the hosts of addresses are none.
_NAMES = re.compile(r"(?<![\w:.])[a-zA-Z_:][\w:.]*+(?!\s*\()")
_HOSTS = re.compile(r"[a-z]+://[^/\s]*")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_COUNTER = re.compile(r"\b(?:count|total)$")
# Words of a name that say by themselves that it is a latency.
_SURE = re.compile(r"latenc|ttft|tpot|duration|\bitl\b|(?:response|queue|request|rq)time")
# Units and nouns of times, and percentiles. A short unit is at the end: else it may be a region.
_TIME = re.compile(
    r"(?<!per )\b(?:sec(?:ond)?s|sec|m(?:illi)?s(?:ec(?:ond)?s?)?|micros(?:econds)?|usecs?"
    r"|times?|timers?|waits?|delay|elapsed|rtt)\b"
    r"|\bp[5-9][0-9]+\b|(?<!per )\b(?:s|us|ns)(?: [a-z0-9]+)?$"
)
# Beside these words, a time or a percentile is of something else.
_OTHER = re.compile(
    r"\b(?:tokens|util|utili[sz]ation|usage|used|[cg]pu|kv|mem|memory|sizes?|length|bytes|counts?"
    r"|depth|perc|percent|ratio|rate|rps|qps|throughput|waiting|running|replicas|pods|age|start"
    r"|started|last|uptime|timestamp|power|watts|energy|temp|temperature)\b"
)


def objective_of(query: str, threshold: str) -> Objective | None:
    """The objective of a query that is one percentile of one latency; None for any other.

    threshold: in the unit of the query: of its histogram, seconds, unless it is scaled.
    """
    plain, unit = _without_unit(query if len(query) <= _LONGEST_QUERY else "")
    match, number = _QUANTILE.fullmatch(plain), _number(threshold)
    if match is None or number is None or not _closes_at_the_end(match[2]):
        return None
    seconds = round(number / unit, _DIGITS)
    metrics = {_metric(name) for name in _BUCKETS.findall(_QUOTED.sub("", match[2]))}
    percentile = round(float(match[1]) * PERCENT_PER_UNIT, _DIGITS)
    if len(metrics) != 1 or not LOWEST_PERCENTILE <= percentile <= HIGHEST_PERCENTILE:
        return None
    (metric,) = metrics
    if metric is None or not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        return None
    return Objective(metric=metric, percentile=percentile, threshold_seconds=seconds)


def is_latency(text: str) -> bool:
    """Whether a query or the name of a metric is about a latency, by the words of its names.

    A counter of requests is none, nor is a percentile of something else.
    """
    plain = _QUOTED.sub("", _HOSTS.sub("", _EVERY_OBSERVATION.sub("_count", text[:_LONGEST_QUERY])))
    names = [_in_words(name) for name in _NAMES.findall(plain)]
    if any(_is_time(name) for name in names if not _COUNTER.search(name)):
        return True
    return "histogram_quantile" in plain and not any(map(_OTHER.search, names))


def _in_words(name: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", _CAMEL.sub("_", name).lower()))


def _is_time(words: str) -> bool:
    if _SURE.search(words):
        return True
    return bool(_TIME.search(words)) and not _OTHER.search(words)


def _without_unit(query: str) -> tuple[str, float]:
    """The query inside of brackets, changes of the unit and values for nothing; and the factor."""
    factor, before = 1.0, None
    while query != before:
        before = query
        query = query.strip()
        if query.startswith("(") and query.endswith(")") and _closes_at_the_end(query[1:-1]):
            query = query[1:-1]
        elif (filled := _FILLED.fullmatch(query)) and _closes_at_the_end(filled[1]):
            query = filled[1]
        elif (scaled := _SCALED.fullmatch(query)) and not _has_or(query):
            inner, sign, number, first, behind = scaled.groups()
            if not _closes_at_the_end(inner or behind):
                break
            by = _number(number or first) or 1.0
            factor *= 1.0 / by if sign == "/" else by
            query = inner or behind
    unit = round(factor, _DIGITS)
    return (query, unit) if unit in _UNITS else ("", 1.0)


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


def _has_or(query: str) -> bool:
    """Whether an `or` stands outside of all brackets: a factor is of its second operand."""
    text, before = _QUOTED.sub("", query), None
    while text != before:
        before, text = text, _INNERMOST.sub("", text)
    return re.search(r"\bor\b", text) is not None


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
