"""The service law of engines whose answers are one token, as in a prefill pool."""

import math
from dataclasses import replace

import numpy as np
import pytest

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import LawFit, learn, solution, standard_error_ratio
from servingslo.estimation.law.rows import busy_ratio, regression_rows
from servingslo.estimation.law.trust import judge
from servingslo.estimation.windows.counters import Window
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.traces.workloads import RateCourse, generated, ramp, uniform_lengths

# Ten requests of 1,000 tokens in fifteen seconds, 0.1 s each until their only token.
WINDOW = Window(
    pod="a", engine="0", seconds=15.0, first_tokens=10.0, ttft_sum_seconds=1.0, step_count=10.0,
    generated_tokens=10.0, prompt_tokens=10_000.0, inter_token_sum_seconds=0.0,
    inter_token_count=0.0,
)  # fmt: skip


@pytest.mark.parametrize("in_system", [0.01, 0.3, 1.0, 4.0, 50.0])
def test_one_engine_alone_is_idle_as_a_single_queue(in_system):
    """P(empty) = 1 / (1 + L), whatever the work of a request in processor sharing."""
    assert busy_ratio(in_system, 1) == pytest.approx(in_system / (1.0 + in_system), abs=2e-6)


@pytest.mark.parametrize("work_ratio", [0.2, 0.6, 0.9])
def test_two_engines_are_busy_as_two_servers(work_ratio):
    """M/M/2 holds 2ρ / (1 − ρ²)."""
    assert busy_ratio(work_ratio / (1.0 - work_ratio**2), 2) == pytest.approx(work_ratio, abs=0.01)


def test_many_engines_hold_what_they_serve():
    """Nobody waits while one of fifty is idle."""
    assert busy_ratio(0.7, 50) == pytest.approx(0.7, abs=0.01)
    assert 0.98 < busy_ratio(30.0, 50) < 1.0


def test_a_window_tells_steps_and_prompts_and_nothing_of_decoding():
    """1 = (a·steps + c·prefilled) / busy time."""
    (row,) = regression_rows(WINDOW)
    busy_seconds = 15.0 * (1.0 / 15.0) / (1.0 + 1.0 / 15.0)

    assert row.x == pytest.approx((10.0 / busy_seconds, 0.0, 1e4 / busy_seconds), rel=1e-4)
    assert row.sequences == 0.0
    assert row.scored


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"generated_tokens": 11.0}, id="a longer answer"),
        pytest.param({"first_tokens": 2.0, "generated_tokens": 2.0}, id="too few to be sure"),
        pytest.param({"step_count": None}, id="no steps"),
        pytest.param({"ttft_sum_seconds": None}, id="no time to first token"),
        pytest.param({"cached_tokens": 1e4}, id="nothing prefilled"),
        pytest.param({"restarted": True}, id="restarted"),
        pytest.param({"paired": False}, id="not of one moment"),
    ],
)
def test_other_windows_without_gaps_tell_nothing(changed):
    """As before: no equation is better than a wrong one."""
    assert regression_rows(replace(WINDOW, **changed)) == ()


def learnt(windows: int, seed: int = 1) -> LawFit:
    """The fit to windows of an engine with a = 15 ms and c = 0.08 ms, busy times off by 10 %."""
    rng = np.random.default_rng(seed)
    fit = LawFit(configuration=Configuration())
    for _ in range(windows):
        steps, tokens = rng.integers(20, 60), rng.uniform(900, 1400)
        busy = (0.015 + 0.08e-3 * tokens) * steps * math.exp(rng.normal(0.0, 0.1))
        held = busy / (15.0 - busy) if busy < 14.0 else 20.0
        window = replace(
            WINDOW, step_count=float(steps), first_tokens=float(steps),
            generated_tokens=float(steps), prompt_tokens=tokens * steps,
            ttft_sum_seconds=15.0 * held,
        )  # fmt: skip
        fit = learn(fit, regression_rows(window))
    return fit


def test_what_decoding_would_cost_need_not_be_known():
    """The law is trusted; at twice the tokens a step it is still right."""
    fit, estimate = judge(learnt(40))

    assert estimate.trusted
    assert estimate.reason is Reason.MODEL_TRUSTED
    law = estimate.law
    assert law is not None
    for tokens in (600.0, 1200.0, 2400.0):
        found = law.step_fixed_seconds + tokens * law.prefill_per_token_seconds
        assert found == pytest.approx(0.015 + tokens * 0.08e-3, rel=0.1)
    error = standard_error_ratio(fit)
    assert error is not None
    assert 0.0 < error < 0.2


def test_the_split_of_a_step_stays_as_on_known_cards():
    """However many windows of equally full steps: neither a nor c is taken for nothing."""
    for seed in range(5):
        values = solution(learnt(200, seed))
        assert values is not None
        assert values[0] == pytest.approx(0.015, rel=0.3)
        assert values[2] == pytest.approx(0.08e-3, rel=0.1)


def prefilling(engine: str, course: RateCourse, seed: int = 1):
    """Requests of one token each, as a prefill pool sees them."""
    trace = generated(course, uniform_lengths((200, 2000), (1, 2)), np.random.default_rng(seed))
    return FleetSpec(engine=engine, initial_replicas=2), replace(
        trace, output_tokens=np.ones_like(trace.output_tokens)
    )


@pytest.mark.parametrize(
    ("engine", "rate"),
    [
        pytest.param("l4-small", 4.0, id="l4 at a quarter"),
        pytest.param("l4-small", 12.0, id="l4 at three quarters"),
        pytest.param("h100-8b", 12.0, id="h100 at a quarter"),
        pytest.param("h100-8b", 36.0, id="h100 at three quarters"),
    ],
)
def test_the_law_of_simulated_prefill_engines_is_found(engine, rate):
    """The time of a step, at any number of tokens, within a tenth."""

    class Learner:
        def __init__(self):
            self.state, self.estimate = EstimatorState(), None

        def decide(self, observation):
            sample = FleetSample(time_seconds=observation.time_seconds, pods=observation.pods)
            self.state, self.estimate = update(self.state, sample)
            return Wanted()

    course = RateCourse(times_seconds=(0.0, 600.0), rates_per_second=(rate, rate))
    fleet, trace = prefilling(engine, course)
    learner = Learner()
    simulate(fleet, trace, learner, seed=1)
    law, truth = learner.estimate.law.law, fleet.engine_law

    assert learner.estimate.law.trusted
    for tokens in (500.0, 2000.0):
        found = law.step_fixed_seconds + tokens * law.prefill_per_token_seconds
        expected = truth.step_fixed_seconds + tokens * truth.prefill_per_token_seconds
        assert found == pytest.approx(expected, rel=0.12)


def test_a_prefill_pool_steps_down_again():
    """After the peak it goes back to what little demand needs, by the law and not by saturation."""
    course = ramp(
        6.0, 30.0, up_seconds=240.0, hold_seconds=120.0, down_seconds=120.0, rest_seconds=700.0
    )
    fleet, trace = prefilling("l4-small", course)
    objective = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0)
    planner = Production(replace(benchmark_targets(max_replicas=20), objectives=(objective,)))
    result = simulate(fleet, trace, planner, seed=1)
    counts = [decision.replicas_after for decision in planner.decisions]

    assert max(counts) >= 4
    assert counts[-1] <= 2
    assert planner.decisions[-1].model.source == "fit"
    assert result.share_in_slo(1.0, math.inf) > 0.85
