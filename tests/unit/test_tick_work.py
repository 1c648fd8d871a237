"""What one tick works out, and how often: once, and handed on."""

import cProfile
import pstats
from dataclasses import replace

import pytest
from policy_world import TARGETS, Run, World

from servingslo.estimation.windows import freshness
from servingslo.estimation.windows.freshness import assess
from servingslo.policy.inputs import BatchingMode, BatchingTargets, Limits
from servingslo.policy.planner import plan
from servingslo.policy.replicas.signals import read_signals

STALE_SECONDS = 60.0


@pytest.fixture(scope="module")
def ticks():
    """Observations of a steady fleet and the state before the last."""
    targets = replace(TARGETS, batching=BatchingTargets(mode=BatchingMode.OFF))
    story = Run(World(rate=lambda _: 16.0, replicas=6), targets, Limits())
    story.until(600.0)
    state = story.state
    story.tick()
    return story, state


@pytest.fixture(scope="module")
def calls(ticks):
    """How often each function is called in the last tick, by module and name."""
    story, state = ticks
    observation = story.observations[-1]
    profile = cProfile.Profile()
    profile.runcall(plan, observation, story.targets, Limits(), state, observation.time_seconds)
    counted = pstats.Stats(profile).stats
    return {
        (path.rsplit("/", 1)[-1], name): row[1] for (path, _, name), row in counted.items()
    }, len(observation.pods)


@pytest.mark.parametrize(
    ("module", "name", "each"),
    [
        pytest.param("freshness.py", "metrics_of", True, id="metrics of a pod"),
        pytest.param("parts.py", "latency_report", False, id="parts of the latency"),
    ],
)
def test_a_tick_works_it_out_once(calls, module, name, each):
    """Signals and estimators, learners and report use the same answer. each: once a pod."""
    counted, pods = calls
    assert counted[module, name] == (pods if each else 1)


def test_what_is_known_of_pods_is_what_would_be_found(ticks, monkeypatch):
    """Ready pods are known from the signals; only others are judged anew."""
    story, _ = ticks
    observation = story.observations[-1]
    odd = replace(observation.pods[0], name="leaving", deleting=True)
    pods = (*observation.pods, odd)
    found = assess(pods, STALE_SECONDS, 15.0)
    known = read_signals(observation, STALE_SECONDS, 15.0).metrics
    judged = []
    metrics_of = freshness.metrics_of

    def noted(pod, *ages):
        judged.append(pod.name)
        return metrics_of(pod, *ages)

    monkeypatch.setattr(freshness, "metrics_of", noted)
    assert assess(pods, STALE_SECONDS, 15.0, known) == found
    assert judged == ["leaving"]
