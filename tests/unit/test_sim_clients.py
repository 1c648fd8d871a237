"""Clients that give up and come back: timeouts, retries, backoff, and the storm they make."""

import dataclasses

import numpy as np
import pytest
from sim_fleets import FLEET, Script, agreeing, run, trace

from servingslo_lab.sim.fleets.fleet import ClientSpec, ColdStart, read_fleet
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.traces.trace import Trace


def burst(count: int, output: int = 400, seconds: float = 120.0) -> Trace:
    """So many equal requests within a tenth of a second."""
    return Trace(
        arrival_seconds=np.linspace(0.0, 0.1, count),
        prompt_tokens=np.full(count, 100),
        output_tokens=np.full(count, output),
        duration_seconds=seconds,
    )


def test_refused_request_is_sent_again_after_a_backoff_that_doubles():
    """Three retries without jitter: after 1, 2 and 2 (the largest) seconds, then it is over."""
    fleet = dataclasses.replace(
        FLEET,
        max_queued=1,
        clients=ClientSpec(
            retries=3, backoff_seconds=1.0, largest_backoff_seconds=2.0, jitter_ratio=0.0
        ),
    )
    result = agreeing(Script(), fleet, trace=burst(2, output=2000, seconds=300.0))

    assert result.status.tolist() == [layout.FINISHED, layout.REJECTED]
    assert result.attempts is not None
    assert result.attempts.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("clients", "aborted"),
    [
        pytest.param(ClientSpec(first_token_timeout_seconds=1.0, retries=0), True, id="waiting"),
        pytest.param(ClientSpec(timeout_seconds=2.0, retries=0), True, id="running"),
        pytest.param(ClientSpec(timeout_seconds=100.0, retries=0), False, id="patient"),
        pytest.param(
            ClientSpec(first_token_timeout_seconds=50.0, timeout_seconds=100.0), False, id="both"
        ),
    ],
)
def test_client_gives_up_when_its_patience_ends(clients, aborted):
    """A request that was given up frees its place for the next."""
    fleet = dataclasses.replace(FLEET, clients=clients)
    result = agreeing(Script(), fleet, trace=burst(100, output=400))
    ends = result.status == layout.ABORTED

    assert bool(ends.any()) is aborted
    assert set(result.status[~ends].tolist()) <= {layout.FINISHED}
    limit = clients.timeout_seconds or np.inf
    assert (result.latency_seconds[~ends] <= limit).all()
    assert not result.good(1e9, 1e9)[ends].any()


def test_engine_forgets_what_clients_gave_up():
    """After a storm of timeouts nothing is left running, waiting or in memory."""
    fleet = dataclasses.replace(
        FLEET, clients=ClientSpec(first_token_timeout_seconds=0.5, timeout_seconds=3.0, retries=4)
    )
    script = Script()
    agreeing(script, fleet, trace=burst(400, output=300, seconds=200.0))
    engine = script.seen[-1].pods[0].engines[0]

    assert (engine.running, engine.waiting, engine.kv_usage_ratio) == (0.0, 0.0, 0.0)


def test_requests_of_a_pod_that_fails_are_sent_to_another():
    """A lost connection is no lost request."""
    base = dataclasses.replace(
        FLEET, initial_replicas=4, mean_seconds_to_failure=60.0,
        cold_start=ColdStart(mean_seconds=5.0),
    )  # fmt: skip
    once = agreeing(Script(), base, trace=trace())
    fleet = dataclasses.replace(base, clients=ClientSpec(retries=8, jitter_ratio=0.5))
    again = agreeing(Script(), fleet, trace=trace())

    assert (once.status == layout.FAILED).sum() > 20
    assert (again.status == layout.FAILED).sum() == 0
    assert again.attempts is not None
    assert (again.attempts > 1).sum() >= 20


def storm(clients: ClientSpec) -> tuple[float, float]:
    """Share in SLO after an overload of three minutes has passed, and attempts per request."""
    rng = np.random.default_rng(8)
    arrivals = np.sort(np.concatenate([rng.uniform(0, 600, 1200), rng.uniform(120, 300, 2700)]))
    load = Trace(
        arrival_seconds=arrivals,
        prompt_tokens=np.full(len(arrivals), 400),
        output_tokens=np.full(len(arrivals), 150),
        duration_seconds=600.0,
    )
    fleet = dataclasses.replace(FLEET, initial_replicas=1, clients=clients)
    result = run(Script(), fleet, trace=load)
    after = result.arrival_seconds > 330.0
    assert result.attempts is not None
    return float(result.good(1.0, 0.05)[after].mean()), float(result.attempts.mean())


def test_impatient_clients_keep_an_overload_alive():
    """A retry storm: the more often clients ask again, the longer the fleet does not recover."""
    patient_share, patient_attempts = storm(ClientSpec(first_token_timeout_seconds=5.0, retries=0))
    storm_share, storm_attempts = storm(
        ClientSpec(first_token_timeout_seconds=5.0, retries=20, largest_backoff_seconds=1.0)
    )

    assert patient_attempts == 1.0
    assert storm_attempts > 1.5
    assert patient_share > 0.9
    assert storm_share < patient_share - 0.2


def test_a_fleet_file_with_clients_and_batches_is_read(tmp_path):
    """Fields that are not there by default."""
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "engine: l4-small\n"
        "clients: {first_token_timeout_seconds: 5, timeout_seconds: 60}\n"
        "drain_seconds: 30\n"
        "dynamic_batching: {instances: 2, max_queue_delay_seconds: 0.005}\n"
    )
    fleet = read_fleet(path)

    assert fleet.clients == ClientSpec(first_token_timeout_seconds=5.0, timeout_seconds=60.0)
    assert fleet.dynamic_batching is not None
    assert fleet.drain_seconds == 30.0
