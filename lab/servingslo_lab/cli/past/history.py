"""Evaluate the queries of a reading at past times, to get what the reader would have read then."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from servingslo.adapters.prometheus.client import (
    Answer,
    PrometheusClient,
    PrometheusConfig,
    no_collection,
)
from servingslo.adapters.prometheus.gateways import read_gateways
from servingslo.adapters.prometheus.queries import NOW, build_queries, native_queries, told_time
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.adapters.prometheus.reading.native import NativeEdges
from servingslo.adapters.prometheus.reading.servers import SeenServers
from servingslo.adapters.prometheus.refusals import MALFORMED
from servingslo.errors import MetricsUnavailableError
from servingslo.policy.ports import ClusterMetrics
from servingslo.runtimes.catalogue import known


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
    profiles = known()
    queries = build_queries(profiles, config)
    client = PrometheusClient(config)
    seen, edges = SeenServers(), NativeEdges()
    try:
        for at_seconds in times_seconds:
            deadline = time.monotonic() + config.reading_timeout_seconds
            assembly = Assembly(profiles, config, seen)
            adders: tuple[tuple[str, Callable[[Any], object]], ...] = (
                *((promql, assembly.add_numbers) for promql in queries.gauges),
                *((promql, assembly.add_numbers) for promql in queries.counters),
                *((promql, assembly.add_numbers) for promql in queries.adapters),
                *((promql, assembly.add_ages) for promql in queries.ages),
                *((promql, assembly.add_newest) for promql in queries.newest),
                *((promql, assembly.add_histograms) for promql in queries.histograms),
            )

            def ask(
                promql: str, at_seconds: float = at_seconds, deadline: float = deadline
            ) -> Answer:
                answer = client.query(promql, deadline=deadline, at_seconds=at_seconds)
                if answer.warnings:
                    raise MetricsUnavailableError("; ".join(answer.warnings))
                return answer

            for promql, add in adders:
                answer = ask(promql)
                with no_collection():
                    add(answer.result)
            if assembly.lacks_classic:
                edges.begin()
                for promql in native_queries(profiles, config):
                    assembly.add_native(ask(promql).histograms, edges)
            gateways = read_gateways(partial(ask, deadline=deadline, at_seconds=at_seconds), config)
            yield (
                at_seconds,
                ClusterMetrics(
                    pods=assembly.pods(),
                    gateways=None if gateways is None else gateways.workloads,
                ),
            )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MetricsUnavailableError(MALFORMED) from error
    finally:
        client.close()
