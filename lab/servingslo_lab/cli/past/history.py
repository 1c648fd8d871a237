"""Evaluate the queries of a reading at past times, to get what the reader would have read then."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from servingslo.adapters.prometheus.client import Answer, PrometheusClient, no_collection
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.gateways import read_gateways
from servingslo.adapters.prometheus.queries import (
    NOW,
    build_queries,
    narrowed,
    native_queries,
    told_time,
)
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.adapters.prometheus.reading.native import NativeEdges
from servingslo.adapters.prometheus.reading.servers import SeenServers
from servingslo.adapters.prometheus.refusals import MALFORMED
from servingslo.adapters.prometheus.vectors import Known
from servingslo.errors import MetricsUnavailableError
from servingslo.policy.ports import ClusterMetrics
from servingslo.runtimes.catalogue import known

Ask = Callable[[str], Answer]


def prometheus_now_seconds(config: PrometheusConfig) -> float:
    """Prometheus' current time. Raises: MetricsUnavailableError."""
    client = PrometheusClient(config)
    try:
        answer = client.query(NOW, deadline=time.monotonic() + config.reading_timeout_seconds)
        return told_time(answer.result)[0]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MetricsUnavailableError(MALFORMED) from error
    finally:
        client.close()


def read_history(
    config: PrometheusConfig, times_seconds: Sequence[float]
) -> Iterator[tuple[float, ClusterMetrics]]:
    """All engines at each of these times, on Prometheus' clock, and the gateway's counts.

    Histograms are included. If the gateway has no data, engines are read all the same.

    Raises: MetricsUnavailableError if Prometheus does not answer in full.
    """
    client, readings = PrometheusClient(config), Readings(config)
    try:
        for at_seconds in times_seconds:
            deadline = time.monotonic() + config.reading_timeout_seconds
            ask = partial(client.query, deadline=deadline, at_seconds=at_seconds)
            yield at_seconds, readings.assembled(ask)
    finally:
        client.close()


class Readings:
    """Readings at one time after another, each from the answers to the same queries.

    pods: a regular expression for the names of those that are read; '' for all.
    """

    def __init__(self, config: PrometheusConfig, pods: str = "") -> None:
        self._config, self._profiles, self._pods = config, known(), pods
        self._queries = build_queries(self._profiles, config)
        self._seen, self._edges, self._known = SeenServers(), NativeEdges(), Known()

    def assembled(self, ask: Ask) -> ClusterMetrics:
        """One reading. Raises: MetricsUnavailableError if it is not answered in full."""
        queries = self._queries
        assembly = Assembly(self._profiles, self._config, self._seen, self._known)
        adders: tuple[tuple[Sequence[str], Callable[[Any], object]], ...] = (
            ((*queries.gauges, *queries.counters, *queries.adapters), assembly.add_numbers),
            (queries.ages, assembly.add_ages),
            (queries.newest, assembly.add_newest),
            (queries.histograms, assembly.add_histograms),
        )
        try:
            for several, add in adders:
                for promql in several:
                    answer = _whole(ask(narrowed(promql, self._config, self._pods)))
                    with no_collection():
                        add(answer.result)
            if assembly.lacks_classic:
                self._edges.begin()
                for promql in native_queries(self._profiles, self._config):
                    found = _whole(ask(narrowed(promql, self._config, self._pods)))
                    assembly.add_native(found.histograms, self._edges)
            gateways = read_gateways(lambda promql: _whole(ask(promql)), self._config)
            pods = assembly.pods()
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise MetricsUnavailableError(MALFORMED) from error
        return ClusterMetrics(pods=pods, gateways=None if gateways is None else gateways.workloads)


def _whole(answer: Answer) -> Answer:
    if answer.warnings:
        raise MetricsUnavailableError("; ".join(answer.warnings))
    return answer
