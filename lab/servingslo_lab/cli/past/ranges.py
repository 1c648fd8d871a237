"""Instant answers at many past times, from few range queries.

A week at a step of a minute is ten thousand readings of some twenty queries. Asked for one by one
they would take hours, asked for at once an answer would fill the memory. So each query is asked for
a piece of the time, and a piece is as long as its greatest answer is modest.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from servingslo.adapters.prometheus.client import Answer, PrometheusClient
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.refusals import MALFORMED
from servingslo.errors import MetricsUnavailableError

# Points of one answer: about 10 MB of JSON, of the 32 that a client takes.
_MODEST_POINTS = 250_000
# Source: Prometheus refuses a range of more than 11,000 steps; a piece of six hours of minutes
# loads no store, and is all that is lost if it cannot be read.
_FIRST_STEPS, _MOST_STEPS = 30, 360
_SHORTENED = 4
# A piece of a large fleet takes longer than the timeout of one reading.
_TIMEOUT_SECONDS = 30.0
_NOTHING = Answer(result=())


@dataclass(slots=True)
class _Moment:
    """Series of one answer at one time."""

    values: list[Any] = field(default_factory=list)
    histograms: list[Any] = field(default_factory=list)


class PastAnswers:
    """Answers at times that are a whole number of steps apart, in increasing order."""

    def __init__(self, config: PrometheusConfig, *, end_seconds: int, step_seconds: int) -> None:
        patient = max(config.timeout_seconds, _TIMEOUT_SECONDS)
        self._client = PrometheusClient(replace(config, timeout_seconds=patient))
        self._end, self._step = end_seconds, step_seconds
        self._steps = _FIRST_STEPS
        self._until = -1
        self._answers: dict[str, Mapping[int, Answer]] = {}
        self._greatest = 0
        self.queries = 0

    def at(self, promql: str, at_seconds: int) -> Answer:
        """The answer at this time. Raises: MetricsUnavailableError, also for a partial answer."""
        if at_seconds > self._until:
            self._begin(at_seconds)
        while promql not in self._answers:
            try:
                self._answers[promql] = self._asked(promql, at_seconds)
            except MetricsUnavailableError:
                if self._until <= at_seconds:
                    raise
                # Too much for one answer, too slow, or a part of the time cannot be read.
                self._steps = max(self._steps // _SHORTENED, 1)
                self._until = min(at_seconds + (self._steps - 1) * self._step, self._until)
        return self._answers[promql].get(at_seconds, _NOTHING)

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    def _begin(self, at_seconds: int) -> None:
        """Forget the last piece; the next one is longer or shorter if answers were small or large.

        After a piece that was cut short the steps are few, and grow again from there.
        """
        if self._answers:
            room = _MODEST_POINTS / max(self._greatest, 1)
            self._steps = min(max(int(self._steps * min(room, 2.0)), 1), _MOST_STEPS)
        self._answers, self._greatest = {}, 0
        self._until = min(at_seconds + (self._steps - 1) * self._step, self._end)

    def _asked(self, promql: str, at_seconds: int) -> Mapping[int, Answer]:
        self.queries += 1
        answer = self._client.query_range(
            promql,
            start_seconds=at_seconds,
            end_seconds=self._until,
            step_seconds=self._step,
            deadline=time.monotonic() + _TIMEOUT_SECONDS,
        )
        if answer.warnings:
            raise MetricsUnavailableError("; ".join(answer.warnings))
        try:
            return self._by_time(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise MetricsUnavailableError(MALFORMED) from error

    def _by_time(self, answer: Answer) -> Mapping[int, Answer]:
        found: dict[int, _Moment] = defaultdict(_Moment)
        points = 0
        for one in answer.result:
            points += len(one["values"])
            for at, value in one["values"]:
                found[round(at)].values.append({"metric": one["metric"], "value": (at, value)})
        for one in answer.histograms:
            for at, value in one["histograms"]:
                pair = {"metric": one["metric"], "histogram": (at, value)}
                found[round(at)].histograms.append(pair)
        self._greatest = max(self._greatest, points)
        return {
            at: Answer(result=moment.values, histograms=moment.histograms)
            for at, moment in found.items()
        }
