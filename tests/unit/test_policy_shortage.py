"""Capacity that is measured to be short while a trusted law says that it is enough."""

from dataclasses import replace

from tests.unit.policy_world import REPLICAS_ONLY, TICK_SECONDS, Run, World, steady

from servingslo.estimation.law.calibration import CalibrationState
from servingslo.policy.inputs import Limits
from servingslo.policy.planner import observe, plan
from servingslo.policy.replicas.saturation import MEMORY_SECONDS, Shortage, after_window
from servingslo.policy.stages import STAGES, measure_capacity
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

UNMEASURED = replace(
    STAGES, learners=tuple(one for one in STAGES.learners if one is not measure_capacity)
)


class Overstated(World):
    """Engines that take six sequences at once, and report 64."""

    def _sample(self, engine):
        return super()._sample(engine) | {"max_num_seqs": 64}


class Unmeasured(Run):
    """A planner that never compares its law with what is served."""

    def tick(self):
        """One tick without the comparison."""
        at = self.world.now + TICK_SECONDS
        decision, self.state = plan(
            self.world.observe(at), self.targets, self.limits, self.state, at, stages=UNMEASURED
        )
        self.decisions.append(decision)
        if decision.apply_replicas:
            self.world.scale(decision.replicas_after)
        return decision


def lived(run):
    """Half an hour at a rate for which the law, but not the engines, has enough with three."""
    world = Overstated(rate=steady(8.0), replicas=3, max_num_seqs=6)
    return run(world, REPLICAS_ONLY, Limits()).until(1800.0)


def test_what_is_served_overrules_the_law():
    """With a queue that grows at a trusted law, two windows order what was seen to be served."""
    with_it, without = lived(Run), lived(Unmeasured)
    short = next(d for d in with_it.decisions if with_it.at(d.time_seconds) and _ratio(d) < 1.0)
    assert _ratio(short) < 0.8
    assert short.replicas_after >= short.replicas_before
    attained = [run.share_within(1.0, 0.05, start=600.0) for run in (with_it, without)]
    assert attained[0] > attained[1] + 0.1, attained


def _ratio(decision):
    numbers = {name: value for one in decision.steps for name, value in one.inputs.items()}
    return numbers.get("measured_capacity_ratio", 1.0)


def test_two_windows_measure_and_kept_load_ends_it():
    """One short window is chance; a greater load that keeps the objectives is believed at once."""
    one = after_window(Shortage(), 0.6, 0.0, 15.0)
    two = after_window(one, 0.6, 0.0, 30.0)
    assert (one.ratio, two.ratio) == (1.0, 0.6)
    assert after_window(one, None, 0.0, 30.0) == Shortage(at_seconds=30.0)
    assert after_window(two, None, 0.9, 45.0).ratio == 0.9
    assert after_window(replace(two, at_seconds=0.0), None, 0.0, MEMORY_SECONDS).ratio == 1.0


def test_what_another_law_lacked_does_not_scale_the_present_one():
    """As what was learnt of its predictions: a stated law has given way to the fitted one."""
    story = Run(World(rate=steady(2.0), replicas=3), REPLICAS_ONLY, Limits()).until(300.0)
    at = 300.0 + TICK_SECONDS
    observation = story.world.observe(at)
    short = replace(story.state, shortage=Shortage(ratio=0.4, at_seconds=300.0))
    stated = CalibrationState(log_ratios={}, stated=engine_kind("l4-small").law)
    changed = replace(short, estimator=replace(short.estimator, calibration=stated))
    found = [
        observe(observation, REPLICAS_ONLY, Limits(), state, at, stages=UNMEASURED)
        for state in (short, changed)
    ]
    assert [seen.state.shortage.ratio for seen in found] == [0.4, 1.0]
