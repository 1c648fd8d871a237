"""Read the whole cluster in a separate thread, bounded in time and memory."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.prometheus.client import Answer, PrometheusClient, no_collection
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.gateways import read_gateways
from servingslo.adapters.prometheus.queries import (
    NOW,
    build_queries,
    histogram_queries,
    narrowed,
    native_queries,
    pods_like,
    told_time,
)
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.adapters.prometheus.reading.crowds import MOST_SERIES, MOST_SERIES_OF_MANY, Crowds
from servingslo.adapters.prometheus.reading.native import NativeEdges
from servingslo.adapters.prometheus.reading.rotation import HistogramRotation
from servingslo.adapters.prometheus.reading.scrape_pace import ScrapePace
from servingslo.adapters.prometheus.reading.server_clock import (
    SMALL_STEP_SECONDS,
    AnswerTimes,
    OneServer,
    ServerClock,
)
from servingslo.adapters.prometheus.reading.servers import Pod, SeenServers
from servingslo.adapters.prometheus.refusals import MALFORMED
from servingslo.adapters.prometheus.vectors import Known
from servingslo.errors import (
    ImplausibleMetricsError,
    MetricsUnavailableError,
    QueryRefusedError,
    ReadingTooSlowError,
)
from servingslo.estimation.sample import GatewaySample
from servingslo.policy.inputs import SignalProblem
from servingslo.policy.ports import Clock, ClusterMetrics
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import known
from servingslo.runtimes.profile import RuntimeProfile

_LOG = logging.getLogger(__name__)
# A workload, or one of its backends.
Counted = TypeVar("Counted", bound=tuple[object, ...])
# Samples up to this far in the future are looked for: within Prometheus's lookback, and within the
# limit of multi-tenant stores. Source: --query.lookback-delta, 5 m; Mimir's
# -querier.max-query-into-future, 10 m.
_FUTURE_SECONDS = 300.0
# The thread observes its own deadline; this extra wait is for its last step.
_GRACE_SECONDS = 2.0


class PrometheusReader:
    """The metrics source of the operator. Implements ports.MetricsSource.

    Ages are given at the end of the reading, with that time. They count from before the first
    request, so a delayed answer gets older by its delay, one for an earlier moment by that time.
    If a gateway does not answer, engines are read all the same.
    """

    def __init__(
        self,
        config: PrometheusConfig,
        profiles: tuple[RuntimeProfile, ...] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Clock | None = None,
        client: PrometheusClient | None = None,
    ) -> None:
        self._config = config
        self._profiles = profiles = known() if profiles is None else profiles
        self._monotonic = monotonic
        self._clock = clock or SystemClock()
        self._server_clock = ServerClock()
        self._future: dict[Pod, float] | None = None
        self._client = client or PrometheusClient(config, monotonic)
        self._crowds = Crowds(self._client, config)
        self._queries = build_queries(profiles, config)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prometheus")
        self._under_way: asyncio.Future[ClusterMetrics] | None = None
        self._rotation = HistogramRotation(config, profiles)
        self._seen = SeenServers()
        self._known = Known()
        self._edges = NativeEdges()
        self._answer_times = AnswerTimes()
        self._one_server = OneServer()
        self._pace = ScrapePace()
        self._narrows = True

    async def read(self, pods: Collection[str] | None = None) -> ClusterMetrics:
        """All engines and GPUs by (namespace, pod), or the problem that prevented the reading.

        pods: names of those whose engines and GPUs are enough, with others of their owners.
        """
        if self._under_way is not None and not self._under_way.done():
            return _unavailable("the reading before has not ended yet")
        loop = asyncio.get_running_loop()
        self._under_way = loop.run_in_executor(self._executor, self._read, pods)
        try:
            async with asyncio.timeout(self._config.reading_timeout_seconds + _GRACE_SECONDS):
                return await asyncio.shield(self._under_way)
        except TimeoutError:
            return _unavailable(self._too_slow())

    def close(self) -> None:
        """Stop the thread once its query ends, and drop the connection."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _read(self, pods: Collection[str] | None = None) -> ClusterMetrics:
        try:
            if pods and self._narrows:
                with suppress(QueryRefusedError):
                    return self._read_all(pods_like(pods))
                self._narrows = False
                _LOG.info("engines of all pods are read: a query for %d is refused", len(pods))
            return self._read_all()
        except ReadingTooSlowError:
            return _unavailable(self._too_slow())
        except MetricsUnavailableError as error:
            return _unavailable(str(error))
        except ImplausibleMetricsError as error:
            return _failed(Reason.METRICS_IMPLAUSIBLE, str(error))
        except (KeyError, TypeError, ValueError, IndexError):
            return _unavailable(MALFORMED)

    def _read_all(self, of_pods: str = "") -> ClusterMetrics:
        asked = self._monotonic()
        deadline = asked + self._config.reading_timeout_seconds
        warnings: list[str] = []
        self._crowds.begin()
        now = self._client.query(NOW, deadline=deadline)
        at_seconds, behind_seconds = told_time(now.result)
        ahead = self._server_clock.ahead_seconds(asked, self._monotonic(), at_seconds)
        # The earliest possible time of Prometheus's evaluation.
        evaluated_at = at_seconds - ahead

        def ask(
            promql: str,
            at_seconds: float = at_seconds,
            of_pods: str = of_pods,
            most: int = MOST_SERIES,
        ) -> Answer:
            own = narrowed(promql, self._config, of_pods)
            answer = self._crowds.query(
                own, asked_as=promql, deadline=deadline, at_seconds=at_seconds, most=most
            )
            warnings.extend(answer.warnings)
            if first := [*answer.result[:1], *answer.histograms[:1]]:
                stamp, _ = first[0].get("value") or first[0]["histogram"]
                self._answer_times.check(at_seconds, float(stamp))
            return answer

        if self._future is None:
            self._future = self._future_stamps(
                ask, at_seconds, lambda: self._monotonic() + ahead + behind_seconds
            )
        sure_seconds = at_seconds - self._server_clock.sure_after_seconds
        assembly = Assembly(self._profiles, self._config, self._seen, self._known)
        for promql in (*self._queries.gauges, *self._queries.counters):
            with no_collection():
                assembly.add_numbers(ask(promql).result)
        for promql in self._queries.adapters:
            with suppress(QueryRefusedError):  # Some stores know no topk: then none are known.
                assembly.add_numbers(ask(promql).result)
        self._add_ages(assembly, [ask(promql).result for promql in self._queries.ages], at_seconds)
        newest = [ask(promql).result for promql in self._queries.newest]
        for answer in newest:
            assembly.add_newest(answer)
        if not warnings:
            self._check_servers(assembly, ask, self._stamps(newest), at_seconds)
        assembly.add_gpus(ask(self._queries.gpus, most=MOST_SERIES_OF_MANY).result)
        turn = self._rotation.next_turn(assembly.engine_count)
        self._add_histograms(assembly, ask, turn.matcher(self._config.pod_label))
        gateways = read_gateways(
            partial(
                self._crowds.query,
                deadline=deadline,
                at_seconds=at_seconds,
                most=MOST_SERIES_OF_MANY,
            ),
            self._config,
        )
        ended, time_seconds = self._monotonic(), self._clock.now_seconds()
        elapsed = ended - evaluated_at + behind_seconds
        self._server_clock.compare_own(time_seconds, ended)
        with no_collection():
            assembled = assembly.pods(elapsed)
            self._pace.check(assembled, at_seconds + elapsed)
            completed = self._rotation.completed(assembled, turn, ended)
            pods = {**completed, **self._crowds.pods()}
        mixed = assembly.mixed_namespaces
        problem = None
        if warnings:
            detail = "; ".join(dict.fromkeys(warnings))
            problem = SignalProblem(reason=Reason.METRICS_PARTIAL, detail=detail)
        return ClusterMetrics(
            pods=pods,
            gateways=None
            if gateways is None
            else _aged_gateways(gateways.workloads, elapsed, sure_seconds, mixed),
            backends={}
            if gateways is None
            else _aged_gateways(gateways.backends, elapsed, sure_seconds, mixed),
            problem=problem,
            time_seconds=time_seconds,
            clocks_set=self._server_clock.times_set,
        )

    def _future_stamps(
        self, ask: Callable[..., Answer], at_seconds: float, now_seconds: Callable[[], float]
    ) -> dict[Pod, float]:
        """Times of samples of the future, by pod: the clock was set back before the start."""
        future, stamps = at_seconds + _FUTURE_SECONDS, dict[Pod, float]()
        try:
            stamps = self._stamps(ask(promql, future, "").result for promql in self._queries.newest)
        except QueryRefusedError as refused:
            # Some stores refuse queries of the future; then this check is not possible.
            _LOG.info("samples in the future not looked for detail=%r", str(refused))
        # A scrape since the first query is no sample of the future.
        latest = now_seconds()
        return {pod: stamp for pod, stamp in stamps.items() if stamp > latest}

    def _stamps(self, answers: Iterable[Sequence[Any]]) -> dict[Pod, float]:
        """The time of the newest sample of each pod."""
        stamps: dict[Pod, float] = {}
        for one in (one for answer in answers for one in answer):
            pod, stamp = self._crowds.pod_of(one["metric"]), float(one["value"][1])
            stamps[pod] = max(stamp, stamps.get(pod, stamp))
        return stamps

    def _check_servers(
        self,
        assembly: Assembly,
        ask: Callable[[str], Answer],
        stamps: Mapping[Pod, float],
        at_seconds: float,
    ) -> None:
        """Raises: ImplausibleMetricsError if two servers answer in turn."""
        newer = assembly.newer_seconds(at_seconds, stamps)
        if newer and min(newer.values()) > SMALL_STEP_SECONDS:
            # A scrape came meanwhile, or the ages are another server's: then this answer is too.
            again = self._stamps(ask(promql).result for promql in self._queries.newest)
            newer = {"/".join(pod): again.get(pod, stamp) - stamp for pod, stamp in stamps.items()}
        self._one_server.check(newer)

    def _add_ages(
        self, assembly: Assembly, answers: Sequence[Sequence[Any]], at_seconds: float
    ) -> None:
        """Add the trusted ages: of samples whose timestamps are of the clock's present setting.

        A process does not know whether the clock was set back before its start, except for a pod
        with samples in the future.
        Raises: ImplausibleMetricsError if there are ages and none is trusted.
        """
        after, future = self._server_clock.sure_after_seconds, self._future or {}

        def is_sure(labels: Mapping[str, str], age: float) -> bool:
            least = max(after, future.get(self._crowds.pod_of(labels), after)) if future else after
            return at_seconds - age > least

        sure = sum([assembly.add_ages(answer, is_sure) for answer in answers])
        if any(answers) and not sure:
            detail = "the clock of Prometheus was set: how old its samples are is not known yet"
            raise ImplausibleMetricsError(detail)

    def _add_histograms(self, assembly: Assembly, ask: Callable[[str], Answer], whose: str) -> None:
        """Add the histograms of these pods; native ones where an engine has no classic ones."""
        for promql in histogram_queries(self._profiles, self._config, whose):
            answer = ask(promql)
            with no_collection():
                assembly.add_histograms(answer.result)
        if not assembly.lacks_classic:
            return
        self._edges.begin()
        for promql in native_queries(self._profiles, self._config, whose):
            answer = ask(promql)
            with no_collection():
                assembly.add_native(answer.histograms, self._edges)

    def _too_slow(self) -> str:
        """Message that the whole reading took too long, not only its last query."""
        gateway = self._config.gateway
        of_gateway = 0 if gateway is None else 1 + (gateway.latency is not None)
        count = 1 + self._queries.count + of_gateway
        seconds = self._config.reading_timeout_seconds
        return f"the reading's {count} queries did not end within {seconds:.3g} s"


def _unavailable(detail: str) -> ClusterMetrics:
    return _failed(Reason.PROMETHEUS_UNAVAILABLE, detail)


def _failed(reason: Reason, detail: str) -> ClusterMetrics:
    return ClusterMetrics(problem=SignalProblem(reason=reason, detail=detail))


def _plus(age: float | None, elapsed: float) -> float | None:
    return None if age is None else age + elapsed


def _aged_gateways(
    gateways: Mapping[Counted, GatewaySample],
    elapsed: float,
    sure_seconds: float,
    mixed_namespaces: Collection[str],
) -> dict[Counted, GatewaySample]:
    """The same counters, older by the duration of the reading; only those with a trusted age.

    mixed_namespaces: whose counters are those of several clusters, and left out.
    """
    return {
        workload: replace(
            sample,
            instances=tuple(
                replace(instance, age_seconds=_plus(instance.age_seconds, elapsed))
                for instance in sample.instances
                if (instance.age_seconds or 0.0) < sure_seconds
            ),
        )
        for workload, sample in gateways.items()
        if workload[0] not in mixed_namespaces
    }
