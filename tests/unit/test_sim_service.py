"""The gateway in front of simulated engines: routing, engines that come and go."""

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.fleets.service import Service, WhenNoEngine
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine, Outcome

LAW = ServiceLaw(
    step_fixed_seconds=0.01, step_per_sequence_seconds=0.001, prefill_per_token_seconds=0.0001
)
LIMITS = EngineLimits(max_num_seqs=4, max_num_batched_tokens=256, kv_capacity_tokens=65536)


def add(service: Service, name: str, now: float, max_queued: int | None = None) -> Engine:
    """Add an engine under this name."""
    engine = Engine(law=LAW, limits=LIMITS, requests=service.requests, max_queued=max_queued)
    service.add(name, engine, now)
    return engine


def offer(service: Service, now: float, output: int = 50) -> None:
    """Offer one request."""
    service.offer(arrival=now, prompt_tokens=10, output_tokens=output)


def test_least_loaded_routing_counts_what_is_in_flight_at_the_arrival():
    """A request that has just ended no longer counts, even if nobody looked in between."""
    service = Service()
    one, other = add(service, "a", 0.0), add(service, "b", 0.0)
    offer(service, 0.0, output=1000)
    offer(service, 0.0, output=5)
    short = one if one.row.heap[0] else other
    busy = {one.in_system, other.in_system}
    offer(service, 1.0, output=1000)
    offer(service, 1.0, output=1000)
    offer(service, 1.0, output=1000)

    assert busy == {1}
    assert short is not None
    assert {one.in_system, other.in_system} == {2}


def test_gateway_passes_over_engines_whose_queue_is_full():
    """The engine with fewer requests gets none while its own queue has no room."""
    service = Service()
    full, other = add(service, "a", 0.0), add(service, "b", 0.0)
    for _ in range(6):
        offer(service, 0.0)
    full.row.ints[layout.WAITING_BOUND] = 0
    for _ in range(4):
        offer(service, 0.0)

    assert (full.in_system, other.in_system) == (3, 7)


def test_requests_fail_while_no_engine_is_ready():
    """A gateway without endpoints answers 503."""
    service = Service()
    offer(service, 1.0)

    assert [record.outcome for record in service.advance(2.0)] == [Outcome.FAILED]


def test_requests_wait_for_the_first_engine_when_the_gateway_holds_them():
    """Waiting at the gateway counts into the time to the first token."""
    service = Service(when_no_engine=WhenNoEngine.WAIT)
    offer(service, 1.0)
    offer(service, 2.0)
    waiting = service.waiting_at_gateway
    add(service, "a", 10.0)
    records = service.advance(100.0)

    assert waiting == 2
    assert [record.outcome for record in records] == [Outcome.FINISHED] * 2
    assert min(record.ttft_seconds or 0.0 for record in records) > 8.0


def test_draining_engine_finishes_what_it_has_and_takes_no_more():
    """Graceful shutdown."""
    service = Service()
    add(service, "a", 0.0)
    offer(service, 0.0, output=100)
    add(service, "b", 0.5)
    service.remove("a", 0.5, drain=True)
    offer(service, 0.6, output=1)
    during = set(service.draining)
    records = service.advance(100.0)

    assert during == {"a"}
    assert service.draining == {}
    assert [record.outcome for record in records] == [Outcome.FINISHED] * 2
