"""Histograms of more engines than one reading takes: in turns, each with its own counters."""

import string
from dataclasses import replace

import numpy as np
import pytest
from estimation_fleet import SimulatedFleet, poisson

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.rotation import HistogramRotation
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows.sample_pairs import without_histograms
from servingslo.policy.ports import PodMetrics
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

CONFIG = PrometheusConfig(url="http://prometheus.test:9090")
NAMESPACE = "team"
# Generated names of pods end in these as well as in others.
NAMES = ("chat-5d8f7-x7k2b", "chat-5d8f7-q9zlm", "chat-5d8f7-vv4ct", "chat-5d8f7-h2d6w")


def _others(count: int) -> dict[tuple[str, str], PodMetrics]:
    ends = string.digits + string.ascii_lowercase
    pod = PodMetrics(engines=(EngineSample(engine="0", running=1.0, gauges_age_seconds=1.0),))
    return {("other", f"pod-{n}{ends[n % len(ends)]}"): pod for n in range(count)}


@pytest.mark.parametrize("engines", [501, 600, 1400, 4000, 100_000])
def test_every_pod_has_one_turn_in_a_round_and_no_reading_has_all(engines: int) -> None:
    """Whatever its name ends in; a round is no longer than is allowed, however many there are."""
    rotation = HistogramRotation(CONFIG, CATALOGUE)
    turns = min(-(-engines // CONFIG.histogram_engines_each_tick), CONFIG.histogram_every_ticks)
    drawn = [rotation.next_turn(engines) for _ in range(turns)]
    for end in string.printable:
        assert sum(turn.holds(f"pod-{end}") for turn in drawn) == 1
    matchers = [turn.matcher("pod") for turn in drawn]
    assert len(set(matchers)) == turns
    assert all(matcher.startswith('pod=~".*[') for matcher in matchers)


def test_few_engines_are_read_whole_with_every_reading() -> None:
    """Up to the limit nothing is left for another turn."""
    turn = HistogramRotation(CONFIG, CATALOGUE).next_turn(500)
    assert not turn.matcher("pod")
    assert turn.holds("any")


def _as_read(
    rotation: HistogramRotation, sample: FleetSample, others: dict[tuple[str, str], PodMetrics]
) -> FleetSample:
    """A fleet's sample as a cluster's reader hands it on, where it is not alone."""
    own = {(NAMESPACE, pod.name): PodMetrics(engines=pod.engines) for pod in sample.pods}
    turn = rotation.next_turn(len(own) + len(others))
    asked = {
        key: metrics
        if turn.holds(key[1])
        else replace(metrics, engines=tuple(map(without_histograms, metrics.engines)))
        for key, metrics in (own | others).items()
    }
    read = rotation.completed(asked, turn, sample.time_seconds)
    return replace(
        sample,
        pods=tuple(replace(pod, engines=read[NAMESPACE, pod.name].engines) for pod in sample.pods),
    )


@pytest.mark.parametrize("engines", [600, pytest.param(4000, marks=pytest.mark.acceptance)])
def test_laws_are_learnt_and_rates_are_true_in_a_cluster_of_many_engines(engines: int) -> None:
    """Four pods among hundreds: the law of the engine, and what arrives within a tenth."""
    kind = engine_kind("h100-8b")
    rng = np.random.default_rng(3)
    seconds, rate = 1200.0, 24.0
    arrivals = poisson(rate, seconds, rng)
    fleet = SimulatedFleet(kind=kind, replicas=0)
    for name in NAMES:
        fleet.add(name, -200.0)
    others = _others(engines - len(NAMES))
    rotation = HistogramRotation(CONFIG, CATALOGUE)
    state, rates = EstimatorState(), []
    estimate: Estimate | None = None
    prompts, outputs = rng.integers(200, 1800, len(arrivals)), rng.integers(20, 400, len(arrivals))
    for sample in fleet.run(arrivals, prompts, outputs, until=seconds):
        state, estimate = update(state, _as_read(rotation, sample, others))
        rates.append(estimate.arrival_rate_per_second or 0.0)
    assert estimate is not None
    assert estimate.law.trusted, estimate.law
    assert estimate.law.law is not None
    fitted = estimate.law.law.step_fixed_seconds
    assert fitted == pytest.approx(kind.law.step_fixed_seconds, rel=0.1)
    settled = np.array(rates[8:])
    assert settled.mean() == pytest.approx(rate, rel=0.1)
    # Poisson at 24/s over 15 s scatters by 5 %: four deviations and what is counted out of step.
    assert np.abs(settled / rate - 1.0).max() < 0.3
    assert estimate.prompt_tokens_mean == pytest.approx(prompts.mean(), rel=0.1)
