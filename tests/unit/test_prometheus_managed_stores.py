"""Stores that take whole metric names only: every engine is read from them as from Prometheus."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.managed_store import REFUSALS, ManagedStore, Series

from servingslo.adapters.prometheus.client import Answer
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.gateway_queries import gateway_query
from servingslo.adapters.prometheus.past.rates import past_rates_query
from servingslo.adapters.prometheus.queries import (
    GROUP_LABEL,
    HISTOGRAM_SUFFIXES,
    LONGEST_QUERY_CHARACTERS,
    build_queries,
)
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.errors import QueryRefusedError
from servingslo.runtimes import gateways
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.profile import MetricKind
from servingslo_lab.cli.past import exported

NOW = 1_000_000.0
CONFIG = PrometheusConfig(url="http://store.test")
_NAMES = sorted(
    {name for p in CATALOGUE for k in (MetricKind.GAUGE, MetricKind.COUNTER)
     for m in p.of_kind(k) for name in m.names}
)  # fmt: skip
_HISTOGRAMS = sorted({n for p in CATALOGUE for m in p.of_kind(MetricKind.HISTOGRAM)
                      for n in m.names})  # fmt: skip
_GAUGES = {n for p in CATALOGUE for m in p.of_kind(MetricKind.GAUGE) for n in m.names}
_OF_GAUGES = ("pod", "instance", "engine")
# Few label sets for many names: those that `or` takes for each other without the names.
_LABELS = st.fixed_dictionaries(
    {"pod": st.sampled_from(["a", "b"]), "instance": st.sampled_from(["10.0.0.1:8000"])},
    optional={
        "engine": st.sampled_from(["0", "1"]),
        "model_name": st.sampled_from(["m", "lora"]),
    },
)
_PAGES = st.lists(
    st.tuples(st.sampled_from(_NAMES), _LABELS, st.integers(0, 1000)), min_size=1, max_size=25
)
_BUCKETS = st.lists(
    st.tuples(st.sampled_from(_HISTOGRAMS), _LABELS, st.integers(0, 1000)), max_size=8
)
_REFUSED = st.frozensets(st.sampled_from([*REFUSALS, "future"]))


def _series(numbers, histograms) -> list[Series]:
    found = {}
    for name, labels, value in numbers:
        own = {k: v for k, v in labels.items() if name not in _GAUGES or k in _OF_GAUGES}
        one = {"__name__": name, "namespace": "team", **own}
        found[tuple(sorted(one.items()))] = Series(one, float(value), NOW - 4.0)
    for name, labels, value in histograms:
        for suffix, extra in (("_bucket", {"le": "+Inf"}), ("_sum", {}), ("_count", {})):
            one = {"__name__": name + suffix, "namespace": "team", **labels, **extra}
            found[tuple(sorted(one.items()))] = Series(one, float(value), NOW - 4.0)
    return list(found.values())


def _directly(series: list[Series]):
    """The pods of these series without any query between."""
    assembly = Assembly(CATALOGUE, CONFIG)
    as_answer = [{"metric": s.labels, "value": [NOW, f"{s.value}"]} for s in series]
    ends = tuple(f"{name}{suffix}" for name in _HISTOGRAMS for suffix in HISTOGRAM_SUFFIXES)
    assembly.add_numbers([one for one in as_answer if one["metric"]["__name__"] not in ends])
    assembly.add_histograms([one for one in as_answer if one["metric"]["__name__"] in ends])
    for profile in CATALOGUE:
        for kind in MetricKind:
            suffix = "_count" if kind is MetricKind.HISTOGRAM else ""
            names = {name + suffix for name in profile.age_names(kind)}
            assembly.add_ages(
                {"metric": {**s.labels, GROUP_LABEL: f"{kind}/{profile.engine_label}"},
                 "value": [NOW, "4"]}
                for s in series if s.labels["__name__"] in names
            )  # fmt: skip
    return assembly.pods()


@settings(max_examples=40, deadline=None)
@given(numbers=_PAGES, histograms=_BUCKETS, refuses=_REFUSED)
def test_a_store_that_refuses_gives_what_any_store_does(numbers, histograms, refuses) -> None:
    """Whatever of PromQL is refused, no series is lost and none is taken for another."""
    series = _series(numbers, histograms)
    store = ManagedStore(lambda: NOW, series, refuses)
    reader = PrometheusReader(CONFIG, client=store, monotonic=lambda: 50.0)
    metrics = reader._read()
    reader.close()
    assert metrics.problem is None
    assert _undated(metrics.pods) == _undated(_directly(series))


def _undated(pods):
    """The pods without what the clocks of a reading add."""
    ages = dict.fromkeys(("gauges_age_seconds", "counters_age_seconds", "histograms_age_seconds"))
    return {
        pod: tuple(replace(e, **ages) for e in found.engines)
        for pod, found in pods.items() if found.engines
    }  # fmt: skip


def test_no_query_of_any_kind_needs_what_a_managed_store_refuses() -> None:
    """Neither a reading, nor a gateway's counts, nor past rates."""
    queries = build_queries(CATALOGUE, CONFIG)
    each = [*queries.gauges, *queries.counters, *queries.ages, *queries.histograms]
    each += queries.adapters
    each += [*queries.newest, queries.gpus, past_rates_query(CATALOGUE, CONFIG)]
    known = [v for v in vars(gateways).values() if isinstance(v, gateways.GatewayProfile)]
    each += [gateway_query(profile, CONFIG) for profile in known]
    assert len(known) >= 3
    for promql in each:
        assert not [name for name, pattern in REFUSALS.items() if pattern.search(promql)]
        # Each selector names its metric whole.
        unquoted = re.sub(r'"[^"]*"', '""', promql)
        assert unquoted.count("{") == unquoted.count('{__name__=""') > 0


@pytest.mark.parametrize("namespaces", [0, 1, 20, 100])
def test_a_query_is_never_longer_than_an_address_may_be(namespaces) -> None:
    """Many namespaces make each metric's selector long; then there are more queries."""
    names = tuple(f"team-{number:03}" for number in range(namespaces))
    config = replace(CONFIG, namespaces=names)
    store = ManagedStore(lambda: NOW, _series([("vllm:num_requests_running", {"pod": "a"}, 3)], []))
    store.series[0].labels["namespace"] = names[-1] if names else "team"
    reader = PrometheusReader(config, client=store, monotonic=lambda: 50.0)
    metrics = reader._read()
    reader.close()
    (pod,) = metrics.pods.values()
    assert pod.engines[0].running == 3.0
    one_name = 2 * len(config.of_engines) + 1000
    assert max(map(len, store.asked)) <= max(LONGEST_QUERY_CHARACTERS, one_name)


def test_the_number_of_queries_is_as_small_as_before() -> None:
    """Whole names fit into one query of each kind, for every runtime that is known."""
    queries = build_queries(CATALOGUE, CONFIG)
    assert (len(queries.gauges), len(queries.counters), len(queries.ages)) == (1, 1, 1)
    assert len(queries.adapters) == 1


@settings(max_examples=20, deadline=None)
@given(late=st.floats(1.5, 60.0), at=st.integers(1, 4), usual=st.sampled_from([0.0, -0.4, -30.0]))
def test_an_answer_of_another_moment_is_refused(late, at, usual) -> None:
    """Once: a store that always tells another time is read as it is."""

    class Cached(ManagedStore):
        off = usual

        def query(self, promql, *, deadline, at_seconds=None):
            answer = super().query(promql, deadline=deadline, at_seconds=at_seconds)
            if promql == "time()":
                return answer
            asked = now if at_seconds is None else at_seconds
            told = [{**one, "value": [asked + self.off, one["value"][1]]} for one in answer.result]
            return replace(answer, result=told)

    now = NOW
    series = _series([("vllm:num_requests_running", {"pod": "a"}, 3)], [])
    store = Cached(lambda: now, series)
    reader = PrometheusReader(CONFIG, client=store, monotonic=lambda: now - 9e5)
    problems = []
    for reading in range(6):
        now += 15.0
        for one in series:
            one.at_seconds = now - 2.0
        store.off = usual - late if reading == at else usual
        problems.append(reader._read().problem)
    reader.close()
    refused = [place for place, problem in enumerate(problems) if problem is not None]
    assert refused == [at]
    assert problems[at].reason.value == "MetricsImplausible"
    assert f"{late:.1f} s before the moment" in problems[at].detail


def test_a_store_without_subqueries_tells_the_past_but_for_changes() -> None:
    """What it cannot tell is unknown; the rest of the table is there."""

    class Store:
        def query_range(self, promql, *, start_seconds, end_seconds, step_seconds, deadline):
            if REFUSALS["subquery"].search(promql):
                raise QueryRefusedError("HTTP 400: subqueries are not supported")
            label = re.search(r"by \((\w+)", promql)[1]
            metric = {label: "x", "percentile": "95"}
            values = [[t, "3"] for t in range(start_seconds, end_seconds + 1, step_seconds)]
            return Answer(result=[{"metric": metric, "values": values}])

        def close(self) -> None:
            """Nothing is held."""

    question = exported.Question(
        namespace="team", name="chat", end_seconds=7200, interval_seconds=600, count=3
    )
    rows = exported.read_exported(CONFIG, question, Store())
    assert [row.replicas_greatest for row in rows] == [3.0] * 3
    assert [row.replica_changes for row in rows] == [None] * 3
