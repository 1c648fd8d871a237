"""Sessions whose prompts begin alike: what the prefix cache saves, and routing by session."""

import dataclasses

import numpy as np
import pytest
from sim_fleets import FLEET, Script, agreeing, trace, with_sessions

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.transforms import scaled, superposed, window

SHARED = 640


def sessions(count: int, rate: float = 4.0, seconds: float = 300.0) -> Trace:
    """Moderate requests, each with one of `count` long common beginnings."""
    return with_sessions(trace(rate, seconds), count, SHARED, np.random.default_rng(5))


def hit_ratio(script: Script) -> float:
    """Share of prompt tokens that came from the cache, at the last look, over all pods."""
    engines = [pod.engines[0] for pod in script.seen[-1].pods]
    cached = sum(engine.cached_prompt_tokens_total for engine in engines)
    return cached / sum(engine.prompt_tokens_total for engine in engines)


def test_second_request_of_a_session_skips_the_prefill_of_what_is_shared():
    """Same prompt, same engine: only what is not shared is computed again."""
    pair = Trace(
        arrival_seconds=np.array([0.0, 10.0, 20.0]),
        prompt_tokens=np.array([1000, 1000, 1000]),
        output_tokens=np.array([2, 2, 2]),
        duration_seconds=30.0,
        sessions=np.array([0, 0, -1]),
        shared_tokens=np.array([800, 800, 800]),
    )
    result = agreeing(Script(), trace=pair)
    cost = FLEET.engine_law.prefill_per_token_seconds

    assert result.ttft_seconds[0] - result.ttft_seconds[1] == pytest.approx(800 * cost)
    assert result.ttft_seconds[2] == pytest.approx(result.ttft_seconds[0])


def test_affine_routing_keeps_sessions_on_their_engine_and_load_even():
    """A higher share from the cache than least loaded gives, and no engine left behind."""
    fleet = dataclasses.replace(
        FLEET, initial_replicas=4,
        limits=dataclasses.replace(FLEET.engine_limits, kv_capacity_tokens=30_000),
    )  # fmt: skip
    spread, affine = Script(), Script()
    load = sessions(40, rate=6.0)
    agreeing(spread, fleet, trace=load)
    agreeing(affine, dataclasses.replace(fleet, routing=Routing.PREFIX_AFFINE), trace=load)
    served = [pod.engines[0].finished_total["stop"] for pod in affine.seen[-1].pods]

    assert hit_ratio(affine) > hit_ratio(spread) + 0.1
    assert min(served) > 0.5 * max(served)


def test_sessions_and_priorities_survive_files_and_transformations(tmp_path):
    """Copies of a trace are other people: their sessions are other ones."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_seconds,prompt_tokens,output_tokens,class,priority,session,shared_tokens\n"
        "1,100,10,chat,-1,0,64\n2,200,20,batch,5,-1,0\n3,300,30,chat,0,1,96\n"
    )
    read = read_trace(path)
    write_trace(read, path)
    again = read_trace(path)
    double = scaled(again, 2.0, np.random.default_rng(1), shift_seconds=0.5)
    plain = window(trace(), 0.0, 3.0)
    mixed = superposed(again, plain)

    assert again.priorities is not None
    assert again.priorities.tolist() == [-1, 5, 0]
    assert again.sessions is not None
    assert again.sessions.tolist() == [0, -1, 1]
    assert again.shared_tokens is not None
    assert again.shared_tokens.tolist() == [64, 0, 96]
    assert double.sessions is not None
    assert sorted(double.sessions.tolist()) == [-1, -1, 0, 1, 2, 3]
    assert mixed.sessions is not None
    assert mixed.priorities is not None
    assert sorted(set(mixed.sessions.tolist())) == [-1, 0, 1]
    assert len(mixed.priorities) == len(mixed) == len(plain) + 3


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param("session", "-2", id="session"),
        pytest.param("shared_tokens", "-1", id="shared"),
        pytest.param("priority", "high", id="priority"),
    ],
)
def test_bad_further_column_is_refused(tmp_path, column, value):
    """The message leads to the cell."""
    path = tmp_path / "bad.csv"
    path.write_text(f"arrival_seconds,prompt_tokens,output_tokens,{column}\n1,2,3,{value}\n")

    with pytest.raises(InvalidInputError, match=f":2: {column}"):
        read_trace(path)
