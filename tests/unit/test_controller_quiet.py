"""A tick at which nothing new was read is neither planned nor recorded; anything new is planned."""

from dataclasses import replace

import pytest
from tests.unit.controller_fakes import UID, Operator, record_of
from tests.unit.policy_world import World, steady

from servingslo.cli.decision_document import last_document
from servingslo.controller.quiet import Settled, settled
from servingslo.controller.recordings.recording import Recorder, replay
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.policy.inputs import Observation, SignalProblem
from servingslo.reasons import Reason

SCRAPE_SECONDS = 30.0
_ENGINE_AGES = ("gauges_age_seconds", "counters_age_seconds", "histograms_age_seconds")


def _engine(age_seconds: float, **known) -> EngineSample:
    numbers = {"running": 2.0, "generation_tokens_total": 50.0}
    return EngineSample(engine="0", **(numbers | dict.fromkeys(_ENGINE_AGES, age_seconds) | known))


def _observation(time_seconds: float, *engines: EngineSample, **known) -> Observation:
    pods = tuple(
        PodSample(name=f"p{i}", ready=True, ready_for_seconds=time_seconds - 1000.0, engines=(one,))
        for i, one in enumerate(engines)
    )
    return Observation(
        time_seconds=time_seconds,
        namespace="n",
        name="a",
        **{"pods": pods, "desired_replicas": len(pods)} | known,
    )


BEFORE = _observation(2000.0, _engine(5.0), _engine(9.0))
SAME = (_engine(20.0), _engine(24.0))


def test_it_stands_while_only_time_passes():
    """All numbers are of the same scrapes, which are older by the time that passed."""
    assert Settled(BEFORE).stands(_observation(2015.0, *SAME), SCRAPE_SECONDS)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(_observation(2015.0, SAME[0], _engine(3.0)), id="a new scrape"),
        pytest.param(
            _observation(2015.0, SAME[0], _engine(24.0, histograms_age_seconds=3.0)),
            id="histograms at their turn",
        ),
        pytest.param(
            _observation(2015.0, SAME[0], _engine(24.0, running=3.0)), id="another number"
        ),
        pytest.param(_observation(2015.0, SAME[0]), id="a pod less"),
        pytest.param(_observation(2015.0, *SAME, desired_replicas=3), id="another count"),
        pytest.param(
            _observation(2015.0, *SAME, problems=(SignalProblem(reason=Reason.METRICS_PARTIAL),)),
            id="a problem",
        ),
        pytest.param(
            replace(
                _observation(2015.0, *SAME),
                pods=tuple(
                    replace(pod, ready_for_seconds=20.0) for pod in _observation(2015.0, *SAME).pods
                ),
            ),
            id="ready anew",
        ),
    ],
)
def test_anything_new_is_planned(now):
    """A scrape, a number, a pod, a count, a problem."""
    assert not Settled(BEFORE).stands(now, SCRAPE_SECONDS)


def test_a_scrape_that_is_due_is_planned():
    """So a scrape that does not come is noticed as early as ever."""
    late = _observation(2023.0, _engine(28.0), _engine(32.0))
    assert not Settled(BEFORE).stands(late, SCRAPE_SECONDS)
    assert Settled(BEFORE).stands(late, 2 * SCRAPE_SECONDS)
    assert not Settled(BEFORE).stands(late, None)


async def _settled_operator(recorder: Recorder | None = None) -> Operator:
    """One replica whose demand needs no more, after ten minutes."""
    operator = Operator(
        world=World(rate=steady(0.5), replicas=1), recorder=recorder or Recorder(None)
    )
    operator.apply(record_of())
    for _ in range(60):
        await operator.tick()
    return operator


async def _look_again(operator: Operator, seconds: float) -> None:
    """Some seconds later, before the next scrape."""
    fleet = operator.fleet
    fleet.now += seconds
    fleet._seen = replace(
        fleet._seen,
        pods=tuple(
            replace(
                pod,
                engines=tuple(
                    replace(one, **{name: getattr(one, name) + seconds for name in _ENGINE_AGES})
                    for one in pod.engines
                ),
            )
            for pod in fleet._seen.pods
        ),
    )
    await operator.look()


async def test_a_quiet_tick_is_neither_planned_nor_recorded(tmp_path):
    """The state stays, and a replay ends in the decision that was made live."""
    path = tmp_path / "recording.jsonl"
    operator = await _settled_operator(Recorder(path))
    state, recorded = operator.reconciler._memories[UID].state, len(path.read_text().splitlines())
    for _ in range(2):
        await _look_again(operator, 5.0)
    assert operator.reconciler._memories[UID].state is state
    assert len(path.read_text().splitlines()) == recorded
    await operator.tick()
    assert operator.reconciler._memories[UID].state is not state
    operator.recorder.close()
    *_, last = replay(path.read_text().splitlines())
    decided = operator.reporter._reported[UID].said[""].last
    assert last.decision == decided
    assert last_document(operator.resources.status())["replicasAfter"] == decided.replicas_after


async def test_a_change_of_the_spec_is_planned_at_once():
    """Though nothing new was scraped."""
    operator = await _settled_operator()
    state = operator.reconciler._memories[UID].state
    operator.apply(record_of(generation=2, replicas={"min": 2, "max": 12}))
    await _look_again(operator, 5.0)
    assert operator.reconciler._memories[UID].state is not state
    assert operator.fleet.scaled == [(1, 2)]


async def test_a_tick_that_failed_is_planned_again(monkeypatch):
    """Its status tells a failure until a decision is reported again."""
    operator = await _settled_operator()
    state = operator.reconciler._memories[UID].state

    async def broken(*_):
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(operator.fleet, "read_workload", broken)
        await _look_again(operator, 5.0)
    await _look_again(operator, 5.0)
    assert operator.reconciler._memories[UID].state is not state


async def test_a_decision_that_waits_does_not_settle():
    """A cooldown ends with time alone."""
    operator = await _settled_operator()
    decision = operator.reporter._reported[UID].said[""].last
    observation = operator.reconciler._memories[UID].settled.observation
    assert settled(observation, decision) is not None
    waits = replace(decision, limited_by=Reason.MAX_REPLICAS_REACHED)
    assert settled(observation, waits) is None
    assert settled(replace(observation, rollout_in_progress=True), decision) is None
