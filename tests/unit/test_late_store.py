"""A store that shows its samples late: used until they are too old, and as old as they are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine_pages import NAMESPACE, vllm_page
from tests.unit.managed_store import ManagedStore, _Parser, series_of
from tests.unit.policy_world import TARGETS

from servingslo.adapters.prometheus.client import Answer
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.estimation.sample import PodSample
from servingslo.explain.conditions.metrics import metrics_fresh_verdict
from servingslo.policy.inputs import Limits, Observation
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState

TICK_SECONDS = 15.0
PODS = ("chat-0", "chat-1")


class _VictoriaMetrics(ManagedStore):
    """Evaluates a query of now `off` seconds before, and tells that it is of now."""

    off = 30.0

    def query(self, promql, *, deadline, at_seconds=None):
        """The answer of an instant query, a vector for a scalar."""
        now = self.now()
        asked = now if at_seconds is None else at_seconds
        at = now - self.off if abs(now - asked) < self.off else asked
        if promql == "time()":
            return Answer(result=[{"metric": {}, "value": [asked, f"{at}"]}])
        self.series = [one for one in self.series if one.at_seconds <= at]
        found = _Parser(promql, self.series, at).whole()
        return Answer(result=[{"metric": m, "value": [asked, f"{v!r}"]} for m, v in found])


def _told(late, *, ticks=12, store=ManagedStore, ages=None, rate=2.0, scrape=15.0):
    """Decisions of ticks over pods whose samples are so late; and the ages that were read.

    ages: of the samples at a tick, by the number of the pod; of all pods the same without it.
    """
    now, state, decisions = 1_700_000_000.0, PlannerState(), []
    store = store(lambda: now, [])
    config = PrometheusConfig(url="http://store.test")
    reader = PrometheusReader(config, client=store, monotonic=lambda: now - 1.6e9)
    for tick in range(ticks):
        now += TICK_SECONDS
        store.series = []
        for number, pod in enumerate(PODS):
            age = late if ages is None else ages(tick, number)
            at = (now - age - 1.0) // scrape * scrape + 1.0
            page = vllm_page(rate * (at - 1.69e9))
            store.series += series_of(
                page, at, namespace=NAMESPACE, pod=pod, instance=f"{pod}:8000"
            )
        metrics = reader._read()
        assert metrics.problem is None
        pods = tuple(
            PodSample(
                name=pod, ready=True, age_seconds=9e3, ready_for_seconds=9e3,
                engines=metrics.pods[NAMESPACE, pod].engines,
            )
            for pod in PODS
        )  # fmt: skip
        seen = Observation(
            time_seconds=now, namespace=NAMESPACE, name="chat", desired_replicas=2,
            current_replicas=2, runtime="vllm", pods=pods,
        )  # fmt: skip
        decision, state = plan(seen, TARGETS, Limits(), state, now)
        decisions.append((decision, pods[0].engines[0].counters_age_seconds))
    reader.close()
    return decisions


@settings(max_examples=8, deadline=None)
@given(late=st.floats(0.0, 100.0), scrape=st.sampled_from([5.0, 15.0, 30.0]))
def test_a_store_that_is_always_late_is_read(late, scrape) -> None:
    """As far as spec.fallback.staleAfter; the rate is the same as without the delay."""
    stale = TARGETS.fallback.stale_after_seconds
    for decision, age in _told(late, scrape=scrape)[4:]:
        verdict = metrics_fresh_verdict(decision)
        assert (str(verdict.status) == "True") is (age <= stale), verdict.message
        if age <= stale:
            assert decision.demand.arrival_rate_per_second == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(("late", "least"), [(125.0, 120), (200.0, 210)])
def test_a_store_that_is_too_late_says_how_late_and_what_to_do(late, least) -> None:
    """With the bound and the field."""
    *_, (decision, _) = _told(late)
    verdict = metrics_fresh_verdict(decision)
    assert (str(verdict.status), str(verdict.reason)) == ("False", "MetricsStale")
    assert f"older than {least} s, usual are 45 s" in verdict.message
    assert "spec.fallback.staleAfter is 120 s: raise it" in verdict.message


@pytest.mark.parametrize("late", [2.0, 50.0])
def test_a_pod_that_is_scraped_no_more_is_named(late) -> None:
    """Its age grows while the others' does not: that is no delay of the store."""
    told = _told(late, ages=lambda tick, pod: late + (15.0 * max(tick - 5, 0) if pod else 0.0))
    first = [metrics_fresh_verdict(decision) for decision, _ in told]
    assert str(first[5].status) == "True"
    assert str(first[-1].reason) == "MetricsPartial"
    assert first[-1].message.startswith("some samples are missing: of pod chat-1, older than ")


def test_all_pods_scraped_no_more_are_no_late_store() -> None:
    """Nothing new comes, so nothing is known of a delay."""
    told = _told(0.0, ages=lambda tick, _: 2.0 + 15.0 * max(tick - 5, 0))
    reasons = [str(decision.metrics) for decision, _ in told]
    assert reasons[5] == "MetricsFresh"
    assert reasons[9:] == ["MetricsStale"] * 3


@pytest.mark.parametrize("off", [0.0, 5.0, 30.0, 60.0])
def test_a_store_that_answers_for_an_earlier_moment_tells_true_ages(off) -> None:
    """VictoriaMetrics: by -search.latencyOffset, which its answer of the time shows."""

    class Store(_VictoriaMetrics):
        pass

    Store.off = off
    told = _told(off + 3.0, store=Store)
    for decision, age in told[3:]:
        assert off <= age <= off + 20.0
        assert str(decision.metrics) == "MetricsFresh"
        assert decision.demand.arrival_rate_per_second == pytest.approx(4.0, rel=0.02)
