"""Past arrival rates of every workload: range queries for the whole cluster, once a day.

Arrivals are approximated by completions in bins of five minutes. A request ends a few seconds after
its arrival, or minutes later in a saturated fleet, which blurs a season by that time.
Past pods and their owners no longer exist, so the owner is derived from the pod's name. A pod of a
Deployment or Rollout is named <name>-<template hash>-<five characters>, one of a StatefulSet
<name>-<number>. The alphabet of the generated parts has no vowels, so the two are not confused. If
today's pods do not have their owner's name (too long, made by another controller), there is no
history.
Source: Kubernetes, apimachinery `util/rand` (alphabet), `names.SimpleNameGenerator` (five
characters), `controller.ComputeHash` (template hash).
"""

import logging
import math
import re
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from servingslo.adapters.prometheus.client import PrometheusClient, no_collection
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import NOW, growths, of_pages, told_time
from servingslo.adapters.prometheus.refusals import MALFORMED
from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.policy.inputs import ForecastTargets, ScaleTarget, Targets
from servingslo.runtimes.catalogue import known
from servingslo.runtimes.profile import MetricKind, RuntimeProfile

_LOG = logging.getLogger(__name__)
_DAY_SECONDS = 86400
# Contains three scrapes at a minute's interval; offices open within this time around nine.
BIN_SECONDS = 300
# Two weeks contain two of each weekday. So many bins a query: parsed, they take 15 kB a workload.
HISTORY_DAYS = 14
_PIECE_BINS = 72
# The last day is read again in bins of a minute: two scrapes at half a minute's interval.
RECENT_BIN_SECONDS = 60
_RECENT_WINDOW_SECONDS = 120
_PIECE_TIMEOUT_SECONDS = 30.0
_RETRY_SECONDS = 600.0
# Finding a season takes about 25 ms, so a tick does it for a few resources only. It does it for
# fewer that ask again with other targets (True), so that frequent changes do not delay others.
_TAKEN_IN_A_TICK = {False: 10, True: 2}
_DIGITS = 4

OWNER_LABEL = "servingslo_owner"
_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_BY_HASH = rf"(.+)-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}"
_BY_NUMBER = "(.+)-[0-9]+"
_HASHED, _NUMBERED = "hash", "number"
_NAMED = {"Deployment": _HASHED, "Rollout": _HASHED, "StatefulSet": _NUMBERED}

Owner = tuple[str, str]
# A resource's request for history: its workload, and whether a season is stated.
_Asked = tuple[ScaleTarget, ForecastTargets]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Rates by (namespace, owner), bin by bin, NaN where unknown, since start_seconds.

    recent: of the last day, in bins of a minute.
    """

    start_seconds: int = 0
    rates: Mapping[Owner, "array[float]"] = field(default_factory=dict)
    recent_start_seconds: int = 0
    recent: Mapping[Owner, "array[float]"] = field(default_factory=dict)


class PastRates:
    """Reads past rates in its own thread. Implements ports.HistorySource."""

    def __init__(
        self,
        config: PrometheusConfig,
        profiles: tuple[RuntimeProfile, ...] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        days: int = HISTORY_DAYS,
    ) -> None:
        self._profiles = known() if profiles is None else profiles
        self._config = config
        self._monotonic = monotonic
        self._days = days
        # Hours of a large cluster take longer than the timeout of a reading.
        patient = replace(config, timeout_seconds=_PIECE_TIMEOUT_SECONDS)
        self._client = PrometheusClient(patient, monotonic)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._under_way: Future[_Reading] | None = None
        self._reading: _Reading | None = None
        self._due_at = -math.inf
        self._given: dict[str, _Asked] = {}
        self._left_in_tick = dict.fromkeys(_TAKEN_IN_A_TICK, 0)

    def tick(self) -> None:
        """Publish a finished reading, and start another if it is due."""
        self._left_in_tick = dict(_TAKEN_IN_A_TICK)
        if self._under_way is not None:
            if not self._under_way.done():
                return
            self._publish(self._under_way)
            self._under_way = None
        if self._monotonic() >= self._due_at:
            self._due_at = math.inf
            self._under_way = self._executor.submit(self._read)

    def take(
        self, uid: str, namespace: str, targets: Targets, pods: Sequence[str]
    ) -> RateHistory | None:
        """The history of a target, if it has been read and is new for this resource.

        A resource with a changed request receives the last reading again.
        """
        reading, target, asked = self._reading, targets.target, (targets.target, targets.forecast)
        if reading is None or not pods or self._given.get(uid) == asked:
            return None
        again = uid in self._given
        if self._left_in_tick[again] <= 0:
            return None
        self._given[uid] = asked
        self._left_in_tick[again] -= 1
        refused = names_refusal(target, pods)
        if refused:
            return _nothing(refused)
        return self._told(reading, namespace, target)

    def read_past(
        self, namespace: str, target: ScaleTarget, pods: Sequence[str], until_seconds: float
    ) -> RateHistory:
        """Read the history of one target up to this time, immediately.

        Raises: MetricsUnavailableError, also for a partial answer.
        """
        refused = names_refusal(target, pods)
        if refused:
            return _nothing(refused)
        try:
            reading = self._read_until(int(until_seconds))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise MetricsUnavailableError(MALFORMED) from error
        return self._told(reading, namespace, target)

    def close(self) -> None:
        """Stop the thread once its query ends, and drop the connection."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _publish(self, ended: "Future[_Reading]") -> None:
        try:
            self._reading = ended.result()
        except (MetricsUnavailableError, KeyError, TypeError, ValueError, IndexError) as error:
            self._due_at = self._monotonic() + _RETRY_SECONDS
            _LOG.warning("history not read retry_in=%ds detail=%r", _RETRY_SECONDS, str(error))
            return
        self._due_at = self._monotonic() + _DAY_SECONDS
        self._given = {}
        _LOG.info("history read workloads=%d days=%d", len(self._reading.rates), self._days)

    def _read(self) -> _Reading:
        """Read all workloads, day by day. Raises: MetricsUnavailableError, also if partial."""
        now = self._client.query(NOW, deadline=self._monotonic() + _PIECE_TIMEOUT_SECONDS)
        return self._read_until(int(told_time(now.result)[0]))

    def _read_until(self, until_seconds: int) -> _Reading:
        start, rates = self._read_bins(until_seconds, self._days, BIN_SECONDS, BIN_SECONDS)
        try:
            recent_start, recent = self._read_bins(
                until_seconds, 1, RECENT_BIN_SECONDS, _RECENT_WINDOW_SECONDS
            )
        except MetricsUnavailableError as error:
            # Only the reserve reads it, and finds the longer bins instead.
            _LOG.warning("last day not read in minutes detail=%r", str(error))
            recent_start, recent = 0, {}
        return _Reading(
            start_seconds=start, rates=rates, recent_start_seconds=recent_start, recent=recent
        )

    def _read_bins(
        self, until_seconds: int, days: int, bin_seconds: int, window_seconds: int
    ) -> tuple[int, dict[Owner, "array[float]"]]:
        """Read whole bins of these days, each as the rate over a window that ends with it."""
        promql = past_rates_query(self._profiles, self._config, window_seconds)
        end = until_seconds // bin_seconds * bin_seconds
        start = end - days * _DAY_SECONDS
        bins = days * _DAY_SECONDS // bin_seconds
        rates: dict[Owner, array[float]] = {}
        piece = _PIECE_BINS * bin_seconds
        for begin in range(start, end, piece):
            # A bin is evaluated at its end.
            answer = self._client.query_range(
                promql,
                start_seconds=begin + bin_seconds,
                end_seconds=begin + piece,
                step_seconds=bin_seconds,
                deadline=self._monotonic() + _PIECE_TIMEOUT_SECONDS,
            )
            if answer.warnings:
                raise MetricsUnavailableError("; ".join(answer.warnings))
            with no_collection():
                for series in answer.result:
                    owner = self._owner(series["metric"])
                    if owner is not None:
                        row = rates.setdefault(owner, array("f", [math.nan]) * bins)
                        _fill(row, series["values"], start, bin_seconds)
        return start, rates

    def _told(self, reading: _Reading, namespace: str, target: ScaleTarget) -> RateHistory:
        owner = (namespace, f"{_NAMED[target.kind]}/{target.name}")
        rates, recent = reading.rates.get(owner), reading.recent.get(owner)
        if rates is None:
            return _nothing(f"Prometheus remembers no requests in {self._days} days")
        history = _history(reading.start_seconds, BIN_SECONDS, rates)
        if recent is None:
            return history
        fine = _history(reading.recent_start_seconds, RECENT_BIN_SECONDS, recent)
        return replace(history, recent=fine)

    def _owner(self, labels: Mapping[str, str]) -> Owner | None:
        owner = labels.get(OWNER_LABEL)
        return (labels.get(self._config.namespace_label, ""), owner) if owner else None


def past_rates_query(
    profiles: tuple[RuntimeProfile, ...],
    config: PrometheusConfig,
    window_seconds: int = BIN_SECONDS,
) -> str:
    """PromQL for completions per second over a window, by namespace and the owner in a pod's name.

    If several scrapes have a counter, one is used. The owner is `hash/<name>` or `number/<name>`.
    Names with generated characters are replaced last, because these may be numbers.
    """
    namespace, pod = config.namespace_label, config.pod_label
    whose, rates = f'{pod}!=""', []
    for profile in profiles:
        finished = profile.metric("finished_total")
        splits = profile.split_labels(MetricKind.COUNTER)
        own = of_pages((profile.engine_label, *profile.part_labels, *splits))
        labels = (namespace, pod, *own)
        rates += [
            f"sum by ({namespace}, {pod}) ({rate})"
            for rate in growths("rate", finished.names, labels, config, (whose,), window_seconds)
        ]
    promql = f"({' or '.join(rates)})"
    for kind, pattern in ((_NUMBERED, _BY_NUMBER), (_HASHED, _BY_HASH)):
        promql = f'label_replace({promql}, "{OWNER_LABEL}", "{kind}/$1", "{pod}", "{pattern}")'
    return f"sum by ({namespace}, {OWNER_LABEL}) ({promql})"


def pods_pattern(target: ScaleTarget) -> str:
    """A regular expression, also valid in PromQL, for the names of all past pods of a target.

    Raises: KeyError for a kind whose pods' names do not show the owner.
    """
    pattern = _BY_HASH if _NAMED[target.kind] == _HASHED else _BY_NUMBER
    return pattern.replace("(.+)", target.name.replace(".", "[.]"), 1)


def names_refusal(target: ScaleTarget, pods: Sequence[str]) -> str:
    """Why names of pods do not show the target; '' if they do."""
    kind = _NAMED.get(target.kind)
    if kind is None:
        return f"the names of a {target.kind}'s pods do not tell whose they are"
    pattern = re.compile(_BY_HASH if kind == _HASHED else _BY_NUMBER)
    for pod in pods:
        match = pattern.fullmatch(pod)
        if match is None or match[1] != target.name:
            return f"the name of pod {pod} does not tell that it is of {target.name}"
    return ""


def _nothing(detail: str) -> RateHistory:
    return RateHistory(
        start_seconds=0.0, bin_seconds=float(BIN_SECONDS), rates_per_second=(), detail=detail
    )


def _history(start_seconds: int, bin_seconds: int, rates: "array[float]") -> RateHistory:
    """The history since the first known bin."""
    known = next((i for i, rate in enumerate(rates) if not math.isnan(rate)), len(rates))
    return RateHistory(
        start_seconds=float(start_seconds + known * bin_seconds),
        bin_seconds=float(bin_seconds),
        rates_per_second=tuple(
            None if math.isnan(rate) else float(f"{rate:.{_DIGITS}g}") for rate in rates[known:]
        ),
    )


def _fill(
    row: "array[float]", values: Sequence[Sequence[object]], start: int, bin_seconds: int
) -> None:
    """Put the values of one series into their bins; each is evaluated at its bin's end."""
    for at, text in values:
        place = round(float(str(at)) - start) // bin_seconds - 1
        value = float(str(text))
        if 0 <= place < len(row) and math.isfinite(value):
            row[place] = value
