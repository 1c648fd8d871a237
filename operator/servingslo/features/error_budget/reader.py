"""The reading of misses over days, from Prometheus' counters; no restart loses any.

Reads the increases over bins of an hour for the whole window, once and then bin by bin, and over
bins of five minutes for the last six hours. Past pods are found by their names, as for past rates.
A pod's counters begin with its first scrape: requests served before that are not counted.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from servingslo.adapters.prometheus.client import PrometheusClient, no_collection
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.past.rates import names_refusal
from servingslo.adapters.prometheus.queries import NOW, told_time
from servingslo.errors import MetricsUnavailableError
from servingslo.estimation.requests.misses import Misses
from servingslo.features.error_budget.queries import BudgetQueries
from servingslo.features.error_budget.report import (
    BURN_SECONDS,
    READING,
    WINDOW,
    BudgetReading,
    over,
)
from servingslo.plugins import Key
from servingslo.policy.ports import WorkloadQuestion

_LOG = logging.getLogger(__name__)
HOUR_SECONDS, SHORT_SECONDS = 3600, 300
_SHORT_SPAN_SECONDS = 6 * HOUR_SECONDS
# Points of one query: a day of hours.
_BINS_IN_A_QUERY = 24
_QUERY_TIMEOUT_SECONDS = 30.0
# Samples of a bin's last moments may arrive late.
SETTLE_SECONDS = 30
_REFRESH_SECONDS = 60.0
_FORGOTTEN_SECONDS = 600.0
_BROKEN = (MetricsUnavailableError, KeyError, TypeError, ValueError, IndexError)


@dataclass(slots=True)
class _Ledger:
    """Misses by the end of their bin. None: no data for that bin."""

    bin_seconds: int
    span_seconds: int
    bins: dict[int, Misses | None] = field(default_factory=dict)

    def missing(self, until_seconds: int) -> range:
        """Ends of the bins that are not read yet, oldest first; drops bins before the window."""
        step = self.bin_seconds
        last = until_seconds // step * step
        oldest = last - self.span_seconds
        self.bins = {end: bin_ for end, bin_ in self.bins.items() if end > oldest}
        return range(max(self.bins, default=oldest) + step, last + step, step)

    def known(self, after_seconds: float) -> list[Misses]:
        return [bin_ for end, bin_ in self.bins.items() if end > after_seconds and bin_]


@dataclass(slots=True)
class _Account:
    """The data of one resource. asked_at: time of the last request for it, monotonic."""

    asked: WorkloadQuestion
    asked_at: float
    hours: _Ledger
    short: _Ledger
    reading: BudgetReading | None = None


class Budgets:
    """Reads misses in its own thread. Implements ports.FeatureReader."""

    key: ClassVar[Key[BudgetReading]] = READING

    def __init__(
        self, config: PrometheusConfig, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._queries = BudgetQueries(config)
        self._monotonic = monotonic
        patient = replace(config, timeout_seconds=_QUERY_TIMEOUT_SECONDS)
        self._client = PrometheusClient(patient, monotonic)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="budget")
        self._under_way: Future[None] | None = None
        self._due_at = monotonic()
        self._accounts: dict[str, _Account] = {}

    def tick(self) -> None:
        """Start to read new bins, if due and if no read is running."""
        now = self._monotonic()
        if now < self._due_at or (self._under_way is not None and not self._under_way.done()):
            return
        self._accounts = {
            uid: account
            for uid, account in self._accounts.items()
            if now - account.asked_at < _FORGOTTEN_SECONDS
        }
        if self._accounts:
            self._due_at = now + _REFRESH_SECONDS
            self._under_way = self._executor.submit(self._read_all, dict(self._accounts))

    def take(self, uid: str, asked: WorkloadQuestion, pods: Sequence[str]) -> BudgetReading | None:
        """The last reading for this resource; None until its question has been answered."""
        window = WINDOW.of(asked.targets.features)
        if window is None or not pods or not self._queries.knows(asked):
            return None
        if names_refusal(asked.targets.target, pods):
            return None
        account = self._accounts.get(uid)
        if account is None or _essence(account.asked) != _essence(asked):
            hours = _Ledger(HOUR_SECONDS, round(window))
            short = _Ledger(SHORT_SECONDS, _SHORT_SPAN_SECONDS)
            account = _Account(asked=asked, asked_at=0.0, hours=hours, short=short)
            self._accounts[uid] = account
            self._due_at = self._monotonic()
        account.asked_at = self._monotonic()
        return account.reading

    def close(self) -> None:
        """Stop the thread once its query ends, and drop the connection."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _read_all(self, accounts: Mapping[str, _Account]) -> None:
        for account in accounts.values():
            try:
                self._read(account)
            except _BROKEN as error:
                _LOG.warning(
                    "error budget not read namespace=%s target=%s detail=%r",
                    account.asked.namespace,
                    account.asked.targets.target.name,
                    str(error),
                )

    def _read(self, account: _Account) -> None:
        """Update one account. Raises: MetricsUnavailableError, also for a partial answer."""
        answer = self._client.query(NOW, deadline=self._monotonic() + _QUERY_TIMEOUT_SECONDS)
        until = int(told_time(answer.result)[0]) - SETTLE_SECONDS
        for ledger in (account.short, account.hours):
            ends = ledger.missing(until)
            for first in range(0, len(ends), _BINS_IN_A_QUERY):
                piece = ends[first : first + _BINS_IN_A_QUERY]
                ledger.bins.update(self._bins(account.asked, ledger.bin_seconds, piece))
        account.reading = _reading(account, until)

    def _bins(
        self, asked: WorkloadQuestion, bin_seconds: int, ends: range
    ) -> dict[int, Misses | None]:
        def ask(promql: str) -> list[Any]:
            answer = self._client.query_range(
                promql,
                start_seconds=ends[0],
                end_seconds=ends[-1],
                step_seconds=bin_seconds,
                deadline=self._monotonic() + _QUERY_TIMEOUT_SECONDS,
            )
            if answer.warnings:
                raise MetricsUnavailableError("; ".join(answer.warnings))
            return [*answer.result, *answer.histograms]

        with no_collection():
            found = self._queries.read(ask, asked, bin_seconds, ends)
        return {end: found.get(end) for end in ends}


def _essence(asked: WorkloadQuestion) -> tuple[object, ...]:
    """What the data for a question depends on."""
    of = asked.targets
    return (
        asked.namespace, asked.runtime, asked.fallback, of.target, of.objectives, of.gateway_name,
        of.classes, of.model, of.elsewhere, WINDOW.of(of.features),
    )  # fmt: skip


def _reading(account: _Account, until: int) -> BudgetReading:
    hours, short = account.hours, account.short
    last_hour = max(hours.bins, default=0)

    def window(seconds: float) -> list[Misses]:
        if seconds <= _SHORT_SPAN_SECONDS:
            return short.known(max(short.bins, default=0) - seconds)
        # The current hour is covered by its short bins.
        return hours.known(last_hour - seconds) + short.known(last_hour)

    whole = float(hours.span_seconds)
    known = len(hours.known(last_hour - whole))
    return BudgetReading(
        time_seconds=float(until),
        windows=tuple(over(seconds, window(seconds)) for seconds in (*BURN_SECONDS, whole)),
        covered_ratio=min(max(known, 1 if short.known(0) else 0) * HOUR_SECONDS / whole, 1.0),
    )


PART = Budgets
