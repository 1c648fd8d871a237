"""The split that is learnt from simulated gateways in front of h100-8b and l4-small."""

from pathlib import Path

import numpy as np
import pytest

from servingslo.policy.pools.variants.learning import (
    SplitSample,
    SplitState,
    learn_split,
    learned_split,
)
from servingslo.policy.pools.variants.split import SplitRule
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import VariantsSpec
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace, read_trace

CONVERSATION = read_trace(
    Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
)
OBJECTIVES = Objectives(ttft_seconds=1.0, tpot_seconds=0.05, share=0.99)
# What a replica of each carries of this trace within these objectives at 99 %, by the latency
# model, in pools of two and of six.
EACH = {"h100-8b": 13.8, "l4-small": 2.49}
RATES = {name: each.__mul__ for name, each in EACH.items()}
COUNTS = [
    {"h100-8b": fast, "l4-small": slow} for fast, slow in ((2, 6), (3, 6), (3, 10), (2, 10), (2, 6))
]
PART_SECONDS = 500.0


class Learner:
    """Counts that change, and a planner that only learns from them."""

    def __init__(self):
        self.state = SplitState()
        self._before = None

    def decide(self, observations):
        """The counts of this part of the trace."""
        now = next(iter(observations.values())).time_seconds
        arrived = {
            name: {
                pod.name: sum(
                    sum(engine.finished_total.values()) + engine.running + engine.waiting
                    for engine in pod.engines
                )
                for pod in one.pods
            }
            for name, one in observations.items()
        }
        if self._before is not None:
            requests = {
                name: sum(n - self._before[name].get(pod, 0.0) for pod, n in pods.items())
                for name, pods in arrived.items()
            }
            serving = {
                name: sum(pod.ready and not pod.deleting for pod in one.pods)
                for name, one in observations.items()
            }
            sample = SplitSample(time_seconds=now, serving=serving, requests=requests)
            self.state = learn_split(self.state, sample, RATES)
        self._before = arrived
        part = min(int(now / PART_SECONDS), len(COUNTS) - 1)
        return {name: Wanted(replicas=count) for name, count in COUNTS[part].items()}


def played(rate, **gateway):
    """Learner and result of a constant rate, or of one for each part."""
    rng = np.random.default_rng(5)
    rates = [rate] * len(COUNTS) if isinstance(rate, float) else rate
    arrivals = np.concatenate(
        [
            (part + np.sort(rng.random(rng.poisson(one * PART_SECONDS)))) * PART_SECONDS
            for part, one in enumerate(rates)
        ]
    )
    chosen = rng.integers(0, len(CONVERSATION), len(arrivals))
    trace = Trace(
        arrival_seconds=arrivals,
        prompt_tokens=CONVERSATION.prompt_tokens[chosen],
        output_tokens=CONVERSATION.output_tokens[chosen],
        duration_seconds=PART_SECONDS * len(COUNTS),
    )
    start = ColdStart(mean_seconds=1.0, variation_ratio=0.0)
    pools = {
        name: FleetSpec(engine=name, initial_replicas=count, cold_start=start)
        for name, count in COUNTS[0].items()
    }
    learner = Learner()
    result = simulate_pools(VariantsSpec(pools=pools, **gateway), trace, learner, seed=0)
    return learner, OBJECTIVES.share_of(result.result)


@pytest.mark.parametrize(
    ("rule", "rate", "gateway"),
    [
        pytest.param(SplitRule.BY_LOAD, 25.0, {"routing": Routing.LEAST_LOADED}, id="least loaded"),
        pytest.param(SplitRule.EVEN_BY_POD, 15.0, {"routing": Routing.ROUND_ROBIN}, id="in turn"),
        pytest.param(SplitRule.EVEN_BY_POD, 15.0, {"routing": Routing.RANDOM}, id="at random"),
        pytest.param(
            SplitRule.FIXED_WEIGHTS,
            20.0,
            {"weights": {"h100-8b": 0.6, "l4-small": 0.4}},
            id="by pool",
        ),
    ],
)
def test_the_rule_of_a_gateway_is_learnt(rule, rate, gateway):
    """Over forty minutes in which counts change four times."""
    learner, _ = played(rate, **gateway)
    split = learned_split(learner.state)
    assert (split.rule, split.source) == (rule, "learned")
    if rule is SplitRule.FIXED_WEIGHTS:
        assert split.weights["h100-8b"] == pytest.approx(0.6, abs=0.03)
