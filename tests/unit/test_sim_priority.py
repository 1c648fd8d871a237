"""The priority queue of an engine beside its FIFO one, as vLLM's --scheduling-policy priority."""

import dataclasses

import numpy as np
import pytest
from sim_fleets import FLEET, Script, agreeing, trace

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine, Scheduling

LAW = ServiceLaw(
    step_fixed_seconds=0.010, step_per_sequence_seconds=0.001, prefill_per_token_seconds=0.0001
)


def engine(*, seqs: int = 1, kv_tokens: int = 65536, budget: int = 256) -> Engine:
    """An engine that orders its queue by priority."""
    limits = EngineLimits(
        max_num_seqs=seqs, max_num_batched_tokens=budget, kv_capacity_tokens=kv_tokens
    )
    return Engine(law=LAW, limits=limits, scheduling=Scheduling.PRIORITY)


def send(one: Engine, priority: int, now: float = 0.0, prompt: int = 10, output: int = 20) -> int:
    """Submit a request that must be accepted."""
    request = one.requests.add(
        arrival=now, prompt_tokens=prompt, output_tokens=output, priority=priority
    )
    assert one.submit(request, now)
    return request


def test_queue_is_served_by_priority_then_by_arrival():
    """Lower values first; equals in the order they came."""
    one = engine()
    sent = [send(one, priority, now=0.001 * i) for i, priority in enumerate([0, 5, 2, 5, 0, 2, 9])]

    assert one.advance(1e3) == [sent[i] for i in (0, 4, 2, 5, 1, 3, 6)]


def test_waiting_request_never_preempts_a_running_one():
    """Priority orders the queue and the victims of memory, nothing else."""
    one = engine()
    running = send(one, 9, output=100)
    one.advance(0.5)
    urgent = send(one, 0, now=0.5)

    assert one.advance(1e3) == [running, urgent]
    assert one.counter(layout.PREEMPTIONS) == 0


def test_least_urgent_is_preempted_when_memory_runs_out():
    """Not the latest, as with FIFO."""
    one = engine(seqs=8, kv_tokens=16 * 21)  # 20 usable blocks
    victim = send(one, 5, prompt=150, output=60)
    urgent = send(one, 0, prompt=100, output=60)

    assert one.advance(1e3) == [urgent, victim]
    q = one.requests.columns
    assert (q.preemptions[urgent], q.preemptions[victim]) == (0, 1)


@pytest.mark.parametrize("kv_tokens", [60_000, 16_000])
def test_urgent_class_keeps_its_latency_in_an_overload(kv_tokens):
    """What FIFO shares among all, priority gives to those who were promised it."""
    limits = dataclasses.replace(FLEET.engine_limits, kv_capacity_tokens=kv_tokens)
    load = trace(rate=20.0, seconds=120.0)
    urgent = np.random.default_rng(2).random(len(load)) < 0.25
    load = dataclasses.replace(load, priorities=np.where(urgent, 0, 1))
    shares = {}
    for scheduling in Scheduling:
        fleet = dataclasses.replace(FLEET, limits=limits, scheduling=scheduling)
        script = Script()
        result = agreeing(script, fleet, trace=load)
        shares[scheduling] = float((result.ttft_seconds[urgent] < 2.0).mean())

    assert shares[Scheduling.PRIORITY] > 0.9
    assert shares[Scheduling.FCFS] < 0.5


def test_queue_waits_for_the_memory_of_its_head_but_not_for_a_head_that_left():
    """When a blocked head gives up, the next request that fits joins at the end of the step."""
    one = engine(seqs=8, kv_tokens=16 * 33)
    send(one, 0, prompt=200, output=150)
    blocked = send(one, 0, prompt=400, output=10)
    fits = send(one, 0, prompt=50, output=10)
    one.advance(0.5)
    waiting = one.waiting
    one.abort(blocked, 0.5)
    one.advance(0.6)

    assert waiting == 2
    assert one.requests.columns.first_token[fits] == pytest.approx(0.53, abs=0.03)
