"""Other autoscalers' own code: what is sent to it, what it answers, and what it cannot.

Tests of a peer's own decisions run where it is installed or built, and say so elsewhere.
"""

import json
import shutil
import sys
from dataclasses import replace

import pytest
from tests.unit.rule_world import SETTING, World, lengths
from tests.unit.sim_fleets import FLEET, Script, run, trace

from servingslo.errors import InvalidInputError, ServingSLOError
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.events import EngineStep, Events
from servingslo_lab.sim.kept import source_digest
from servingslo_lab.sim.peers import aibrix, dynamo, knative
from servingslo_lab.sim.peers.dynamo_profile import decode_step, profiled_steps
from servingslo_lab.sim.peers.line_process import (
    LineProcess,
    encoded,
    program_path,
)
from servingslo_lab.sim.policies import policy_of

ECHO = "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)"


def dynamo_or_skip() -> None:
    """Skip, with the reason, where its planner cannot be imported."""
    try:
        dynamo.planner()
    except InvalidInputError as error:
        pytest.skip(f"ai-dynamo is not installed here: {error}")


def built_or_skip(program: str) -> None:
    """Skip, with the reason, where a peer's program is neither built nor can be."""
    if not program_path(program).exists():
        pytest.skip(
            f"{program}'s program is not built here: "
            f"{'make benchmark-peers builds it' if shutil.which('go') else 'it needs Go'}"
        )


class Answers:
    """A line process that remembers what it was sent and gives the same answer."""

    def __init__(self, answer: dict[str, object]) -> None:
        self.given, self.sent = answer, []

    def __call__(self, setting: dict[str, object]) -> "Answers":
        """Start."""
        self.setting = setting
        return self

    def answer(self, observation: dict[str, object]) -> dict[str, object]:
        """The answer to every line."""
        json.loads(encoded(observation))
        self.sent.append(observation)
        return self.given


# The line protocol


def test_a_line_process_answers_each_line_and_ends():
    """The echo of the setting is its answer to the first observation, here."""
    process = LineProcess([sys.executable, "-c", ECHO], {"setting": 1})
    assert process.answer({"seconds": 2.5}) == {"setting": 1}
    assert process.answer({}) == {"seconds": 2.5}
    process.close()


def test_a_program_that_ends_is_named_with_what_it_said():
    """Its standard error is the reason."""
    process = LineProcess([sys.executable, "-c", "import sys; sys.exit('no such strategy')"], {})
    with pytest.raises(ServingSLOError, match="no such strategy"):
        process.answer({"seconds": 1.0})


# What AIBrix is sent


def pods(*usages: float | None) -> Observation:
    """Ready pods with this KV use; None for one that starts."""
    shown = [
        PodSample(name=f"p{place}")
        if usage is None
        else PodSample(
            name=f"p{place}",
            ready=True,
            engines=(EngineSample(engine="0", kv_usage_ratio=usage, running=3.0, waiting=1.0),),
        )
        for place, usage in enumerate(usages)
    ]
    return Observation(
        time_seconds=30.0, namespace="a", name="b", desired_replicas=len(shown), pods=tuple(shown)
    )


def test_apa_sees_a_starting_pod_as_zero_and_no_pod_without_a_node():
    """Its fetcher returns 0 for a pod that does not answer; one without a node has no address."""
    waiting = PodSample(name="new", unschedulable_reason="no GPU")
    seen = pods(0.5, None)
    assert aibrix.kv_of_pods(seen) == [0.5, 0.0]
    assert aibrix.kv_of_pods(replace(seen, pods=(*seen.pods, waiting))) == [0.5, 0.0]


def test_kpa_is_sent_the_total_and_its_answer_is_bounded():
    """Twice four requests; 90 replicas are more than the fleet may have."""
    answers = Answers({"replicas": 90, "reason": ""})
    rule = aibrix.kpa(SETTING, aibrix.KPA_DEFAULTS, answers)
    assert rule.decide(pods(0.1, 0.2)) == Wanted(replicas=SETTING.maximum)
    assert answers.sent == [{"seconds": 30.0, "replicas": 2, "values": [8.0]}]
    assert answers.setting["strategy"] == "KPA"


# What engines report of each step


class Subscribed(Script):
    """A script that keeps the events too."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Events] = []

    def receive(self, events: Events) -> None:
        """Keep them."""
        self.events.append(events)


def test_steps_add_up_to_what_is_scraped_at_the_same_time():
    """Running, waiting and arrivals agree, and a step lasts as long as the law says."""
    script = Subscribed()
    arrivals = trace(rate=12.0)
    fleet = replace(FLEET, scrape_lag_seconds=0.0)
    run(script, fleet, trace=arrivals)
    law = FLEET.engine_law
    assert len(script.events) == len(script.seen) > 10
    busy = 0
    for seen, events in zip(script.seen, script.events, strict=True):
        assert events.arrived == sum(arrivals.arrival_seconds <= seen.time_seconds)
        for pod in seen.pods:
            step, engine = events.steps[pod.name], pod.engines[0]
            assert step.waiting + step.preempted == engine.waiting
            if not step.duration_seconds:
                continue
            busy += 1
            assert step.prefilling + step.decoding == engine.running
            emitting = (step.duration_seconds - law.step_fixed_seconds
                        - law.prefill_per_token_seconds * step.prefill_tokens
                        - law.context_per_token_seconds * step.context_tokens
                        ) / law.step_per_sequence_seconds  # fmt: skip
            assert step.decoding - 1e-6 <= emitting <= engine.running + 1e-6
    assert busy > 10


# The profile


def test_the_profile_covers_the_engine_within_its_limits():
    """36 steps, as many as six by six, none with more than the memory holds."""
    steps = profiled_steps(SETTING.law, SETTING.limits)
    assert max(step.decoding for step in steps) <= SETTING.limits.max_num_seqs
    assert max(step.context_tokens for step in steps) <= SETTING.limits.kv_capacity_tokens
    assert 3 < len(steps) <= 36
    assert decode_step(SETTING.law, 10, 100) == EngineStep(
        duration_seconds=pytest.approx(0.02), decoding=10, context_tokens=1000
    )


# Names


def test_a_peer_is_observed_at_its_own_interval():
    """The rest of the fleet stays."""
    paced = policy_of("real:dynamo-load").paced(FLEET)
    assert (paced.scrape_interval_seconds, paced.scrape_lag_seconds) == (5.0, 0.0)
    assert replace(paced, scrape_interval_seconds=15.0, scrape_lag_seconds=5.0) == FLEET
    assert policy_of("real:hpa").paced(FLEET) == FLEET
    assert policy_of("knative").paced(FLEET) == FLEET


def test_kept_runs_of_a_peer_end_with_its_version(monkeypatch):
    """Another ai-dynamo is another run; runs of rules do not depend on it."""
    source_digest.cache_clear()
    before, rule = source_digest("real:dynamo-sla"), source_digest("knative")
    monkeypatch.setattr(dynamo, "_version", lambda _name: "9.9.9")
    source_digest.cache_clear()
    assert source_digest("real:dynamo-sla") != before
    assert source_digest("knative") == rule
    source_digest.cache_clear()


# The peers themselves


def test_knative_is_sent_the_total_and_the_ready_pods():
    """Twice four requests; a pod that starts is none of the ready ones."""
    answers = Answers({"replicas": 90})
    rule = knative.PodAutoscaler(SETTING, knative.DEFAULTS, answers)
    assert rule.decide(pods(0.1, 0.2, None)) == Wanted(replicas=SETTING.maximum)
    assert answers.sent == [{"seconds": 30.0, "ready": 2, "replicas": 3, "in_system": 8.0}]
    assert answers.setting == {"annotations": {"autoscaling.knative.dev/target": "100"}}


def knative_world() -> World:
    """Its autoscaler, scraped each second; two pods, and 120 requests for 100 s."""
    built_or_skip(knative.PROGRAM)
    kpa = World(policy_of("real:knative-kpa").rule(SETTING), tick_seconds=knative.TICK_SECONDS)
    calm = [kpa.look(2, each={"running": 50.0, "waiting": 10.0}) for _ in range(100)]
    assert calm == [2] * 100
    return kpa


def test_knative_panics_in_a_crowd_and_releases_nothing_meanwhile():
    """Ten times 120 want 18 pods at 70 % of 100: the mean of 6 s is there in 6 s.

    Then nothing is released for a minute, and later half of the ready pods at most.
    """
    kpa = knative_world()
    crowd = [kpa.look(2, each={"running": 500.0, "waiting": 100.0}) for _ in range(7)]
    assert crowd == [5, 5, 10, 10, 15, 15, 18]
    calm = [kpa.look(18, each={"running": 1.0, "waiting": 0.0}) for _ in range(130)]
    assert calm[:59] == [18] * 59
    assert calm[-1] == 9


def dynamo_world(policy: str, step: EngineStep, replicas: int = 2) -> World:
    """Its planner after a minute of this step on every engine."""
    rule = policy_of(policy).rule(SETTING)
    found = World(rule)
    rule.receive(Events(arrived=0, steps={f"p{n}": step for n in range(replicas)}))
    return found


def test_dynamo_adds_one_if_every_engine_is_above_its_target():
    """49 sequences take 59 ms a step, of 50 ms allowed."""
    dynamo_or_skip()
    loaded = replace(decode_step(SETTING.law, 49, 300), waiting=20, waiting_tokens=60_000)
    planner = dynamo_world("real:dynamo-load", loaded)
    assert [planner.look(2, each=lengths(10.0, 100.0, 10.0)) for _ in range(3)][-1] == 3


def mixed(batch: int, prompt: int) -> EngineStep:
    """A step that computes one prompt beside its decodes."""
    decodes = decode_step(SETTING.law, batch, 300)
    law = SETTING.law
    more = law.step_per_sequence_seconds + law.prefill_per_token_seconds * prompt
    seconds = decodes.duration_seconds + more
    return replace(decodes, duration_seconds=seconds, prefilling=1, prefill_tokens=prompt)


def test_dynamo_orders_for_the_requests_that_were_started():
    """200 a second, and 20 decodes a step of 50 ms are 40 a second of an engine: 5 replicas.

    Its throughput loop decides after 180 s, from a fit that may be off by one replica. It knows
    the cost of a mixed step only from steps with a prompt in them.
    """
    dynamo_or_skip()
    rule = policy_of("real:dynamo-throughput").rule(SETTING)
    planner, wanted = World(rule), []
    for tick in range(14):
        steps = {f"p{n}": mixed(20 + tick, 50 * tick + 100 * n) for n in range(2)}
        rule.receive(Events(arrived=tick * 3000, steps=steps))
        wanted.append(planner.look(2, each=lengths(10.0 + tick, 100.0, 10.0)))
    assert wanted[:12] == [2] * 12
    assert wanted[12] in {5, 6}
