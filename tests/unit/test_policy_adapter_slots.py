"""Adapters that find no slot are a constraint of their own: sized by, reported, never by tokens."""

from dataclasses import dataclass, field, replace

import numpy as np
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import World, run, steady

from servingslo.adapters.gauges import metric_samples
from servingslo.explain.document import as_dict
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.models.engine.adapter_slots import least_engines
from servingslo.models.objectives import LatencyMetric
from servingslo.reasons import Action, Constraint, Reason

RATE = 3.0
SLOTS = 2
# Requests in flight of each of six adapters, whatever the number of engines.
REQUESTS = dict.fromkeys(("sql", "chat", "code", "law", "tone", "math"), 1.0)
# More than half of the requests find a slot at two engines; the objectives allow 5 % without.
NEEDED = least_engines(list(REQUESTS.values()), SLOTS, 0.05, 100)
SECONDS = 900.0


@dataclass
class AdapterWorld(World):
    """Engines that name adapters as vLLM does, drawn for loads that are spread evenly."""

    draws: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))
    slots: int = SLOTS

    def _sample(self, engine):
        engines = max(len(self.service.engines), 1)
        named = [n for n, load in REQUESTS.items() if self.draws.poisson(load / engines) > 0]
        return {
            **super()._sample(engine),
            "adapters": tuple(named),
            "adapter_slots": self.slots,
            "waiting_by_reason": {"deferred": float(max(len(named) - self.slots, 0))},
        }


def test_adapters_without_slots_order_replicas_and_are_named():
    """In steps of at most twice what serves, up to the number that the law of slots asks for."""
    story = run(AdapterWorld(rate=steady(RATE), replicas=2)).until(SECONDS)
    bound = [d for d in story.decisions if d.reason is Reason.ADAPTER_SLOTS_BOUND]
    assert bound
    assert bound[0].action is Action.SCALE_UP
    assert all(d.replicas_after <= 2 * max(d.replicas.ready, 1) for d in bound)
    last = story.decisions[-1]
    assert last.binding is Constraint.ADAPTER_SLOTS
    (need,) = [n for n in last.needs if n.constraint is Constraint.ADAPTER_SLOTS]
    assert NEEDED is not None
    assert abs(need.replicas - NEEDED) <= 0.35 * NEEDED
    told = text(bound[0])
    assert "adapter-slots needs" in told
    assert "slots an engine" in told
    gauges = {s.name: s.value for s in metric_samples(last)}
    assert gauges["servingslo_adapter_slots"] == SLOTS
    names = [one["name"] for one in as_dict(last)["models"]["adapterRequests"]]
    assert set(names) <= REQUESTS.keys()


def test_without_more_adapters_than_slots_nothing_is_asked_for():
    """The same world with six slots; the same decisions as without adapters."""
    ample = run(AdapterWorld(rate=steady(RATE), replicas=2, slots=6)).until(300)
    plain = run(World(rate=steady(RATE), replicas=2)).until(300)
    assert not [n for d in ample.decisions for n in d.needs if n.constraint == "adapter-slots"]
    assert [replace(d, models=None) for d in ample.decisions] == plain.decisions


def test_an_objective_on_tokens_alone_is_not_delayed_by_a_slot():
    """Waiting adapters are reported, and order nothing."""
    tokens = tuple(o for o in TARGETS.objectives if o.metric is LatencyMetric.TPOT)
    targets = replace(TARGETS, objectives=tokens)
    story = run(AdapterWorld(rate=steady(RATE), replicas=2), targets).until(300)
    assert not [n for d in story.decisions for n in d.needs if n.constraint == "adapter-slots"]
    assert any("adapters_waiting=" in log_line(d) for d in story.decisions)
