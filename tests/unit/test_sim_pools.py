"""Prefill and decode in pools of their own.

1. Both backends agree to the last bit, whatever starts, fails, drains or is refused.
2. Every request ends in one way, or is still in a pool; pools that are empty hold no memory.
3. A prefill pool is an engine that answers with one token; a decode pool steps by the law alone.
4. Blocks stay held until the cache is sent, and a preempted sequence is computed anew.
5. At the same load and cost the tail of TPOT is shorter than in one pool.
"""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from sim_fleets import Script, run, trace

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec, SlowPods, Spot
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import (
    FirstToken,
    PoolsSpec,
    Transfer,
    read_pools,
)
from servingslo_lab.sim.pools.scaling import Each
from servingslo_lab.sim.pools.together import PoolsResult
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.backend import INTERPRETED, compiled_backend
from servingslo_lab.sim.traces.trace import Trace

SMALL = FleetSpec(engine="l4-small", cold_start=ColdStart(mean_seconds=20, variation_ratio=0.3))
LAW, LIMITS = SMALL.engine_law, SMALL.engine_limits
AT_ONCE = Transfer(fixed_seconds=0.0, tokens_per_second=1e12)
AT_PREFILL = PoolsSpec(first_token=FirstToken.PREFILL)


def requests(*lines: tuple[float, int, int], duration: float = 100.0) -> Trace:
    """Arrival, prompt and output of each request."""
    arrival, prompt, output = (np.array(column) for column in zip(*lines, strict=True))
    return Trace(
        arrival_seconds=arrival.astype(float),
        prompt_tokens=prompt,
        output_tokens=output,
        duration_seconds=duration,
    )


def served(
    spec: PoolsSpec, requests: Trace, *scripts: Script, seed: int = 3, backend=INTERPRETED
) -> PoolsResult:
    """A run of both pools; they stay as they are without scripts."""
    prefill, decode = scripts or (Script(), Script())
    scaler = Each(dict(zip(spec.names, (prefill, decode), strict=True)))
    return simulate_pools(spec, requests, scaler, seed=seed, backend=backend)


def agreeing(spec: PoolsSpec, requests: Trace, *scripts: Script, seed: int = 3) -> PoolsResult:
    """The result of both backends, which must be the same; so must what the autoscalers saw."""
    results, seen = [], []
    for backend in (INTERPRETED, compiled_backend()):
        for script in scripts:
            script.seen = []
        results.append(served(spec, requests, *scripts, seed=seed, backend=backend))
        seen.append([script.seen for script in scripts])
    one, other = results
    for name in ("ttft_seconds", "tpot_seconds", "latency_seconds", "status"):
        assert np.array_equal(getattr(one.result, name), getattr(other.result, name)), name
    for name in ("ticks", "replica_seconds"):
        assert getattr(one, name) == getattr(other, name), name
    assert seen[0] == seen[1]
    return one


def random_pool(rng: np.random.Generator) -> FleetSpec:
    """Any combination of features that pools have."""
    seqs = int(rng.integers(1, 48))
    return replace(
        SMALL,
        limits=EngineLimits(
            max_num_seqs=seqs,
            max_num_batched_tokens=int(rng.integers(max(seqs, 32), 2048)),
            kv_capacity_tokens=int(rng.integers(1_100, 30_000)),
        ),
        initial_replicas=int(rng.integers(0, 4)),
        routing=list(Routing)[rng.integers(0, 3)],
        max_queued=int(rng.integers(1, 60)) if rng.random() < 0.5 else None,
        mean_seconds_to_failure=40.0 if rng.random() < 0.5 else None,
        slow_pods=SlowPods(share_ratio=0.3, factor=2.0),
        gpu_quota=4 if rng.random() < 0.3 else None,
        drain=rng.random() < 0.7,
        drain_seconds=5.0 if rng.random() < 0.5 else None,
        spot=Spot(events_per_hour=120.0, lost_ratio=0.5) if rng.random() < 0.3 else None,
    )


def random_script(rng: np.random.Generator) -> Script:
    """Another count now and then."""
    return Script(*((t, Wanted(replicas=int(rng.integers(0, 5)))) for t in (15.0, 30.0, 60.0)))


@pytest.mark.parametrize("seed", range(12))
def test_pools_agree_in_both_backends_and_lose_no_request(seed):
    """Compiled and interpreted runs are equal; every request has one end, its times in order."""
    rng = np.random.default_rng([seed, 77])
    spec = PoolsSpec(
        first_token=list(FirstToken)[seed % 2],
        skip_prompt_tokens=int(rng.choice([0, 300])),
        gpu_quota=5 if rng.random() < 0.3 else None,
        prefill=replace(random_pool(rng), cached_ratio=float(rng.choice([0.0, 0.5]))),
        decode=random_pool(rng),
        transfer=Transfer(
            fixed_seconds=float(rng.choice([0.0, 0.01, 1.0])),
            tokens_per_second=float(rng.choice([1e3, 1e6])),
        ),
    )
    offered = trace(rate=float(rng.uniform(1.0, 15.0)), seconds=90.0, seed=seed)
    found = agreeing(spec, offered, random_script(rng), random_script(rng), seed=seed).result
    assert len(found.status) == len(offered)
    over = found.status >= layout.FINISHED
    assert over.any()
    assert np.isfinite(found.tpot_seconds).sum() == (found.status == layout.FINISHED).sum()
    assert (found.ttft_seconds > 0).all()
    finished = found.status == layout.FINISHED
    assert (found.latency_seconds[finished] >= found.ttft_seconds[finished]).all()
    assert not (over & ~np.isin(found.status, END)).any()


END = (layout.FINISHED, layout.REJECTED, layout.FAILED, layout.INVALID)


def test_a_decode_pool_under_load_steps_as_its_closed_form_says():
    """Without costs of context the mean step is a / (1 − λ·O·b), whatever the prompts."""
    law = ServiceLaw(
        step_fixed_seconds=10e-3, step_per_sequence_seconds=0.2e-3, prefill_per_token_seconds=1e-6
    )
    rate, output, seconds = 20.0, 101, 600.0
    arrivals = np.sort(np.random.default_rng(5).uniform(0.0, seconds, int(rate * seconds)))
    offered = Trace(
        arrival_seconds=arrivals,
        prompt_tokens=np.full(len(arrivals), 900),
        output_tokens=np.full(len(arrivals), output),
        duration_seconds=seconds,
    )
    limits = replace(LIMITS, max_num_seqs=512, kv_capacity_tokens=1_000_000)
    pool = replace(SMALL, law=law, limits=limits, initial_replicas=1)
    found = served(
        PoolsSpec(prefill=pool, decode=pool, transfer=AT_ONCE), offered,
        backend=compiled_backend(),
    ).result  # fmt: skip
    step = law.step_fixed_seconds / (1.0 - rate * (output - 1) * law.step_per_sequence_seconds)
    calm = found.arrival_seconds > 30.0
    assert found.tpot_seconds[calm].mean() == pytest.approx(step, rel=0.03)


def test_a_transfer_takes_its_fixed_time_and_that_of_its_tokens():
    """The second token is later by fixed + tokens / rate, the first one is not."""
    one = requests((1.0, 1000, 51))
    pool = replace(SMALL, initial_replicas=1)
    slow = Transfer(fixed_seconds=0.25, tokens_per_second=2000.0)
    at_once, later = (
        served(replace(AT_PREFILL, prefill=pool, decode=pool, transfer=transfer), one).result
        for transfer in (AT_ONCE, slow)
    )
    assert later.ttft_seconds == pytest.approx(at_once.ttft_seconds)
    assert later.latency_seconds - at_once.latency_seconds == pytest.approx([0.75])


def test_short_prompts_go_to_decode_directly():
    """They are prefilled there, and measured there, whichever engine else emits first tokens."""
    pool = replace(SMALL, initial_replicas=1)
    alone = run(Script(), pool, trace=requests((1.0, 199, 30)))
    for first_token in FirstToken:
        spec = PoolsSpec(
            prefill=pool, decode=pool, transfer=Transfer(fixed_seconds=1.0),
            first_token=first_token, skip_prompt_tokens=200,
        )  # fmt: skip
        prefill, decode = Script(), Script()
        both = requests((1.0, 199, 30), (20.0, 200, 30))
        found = agreeing(spec, both, prefill, decode).result
        assert found.ttft_seconds[0] == pytest.approx(alone.ttft_seconds[0])
        assert found.tpot_seconds[0] == pytest.approx(alone.tpot_seconds[0])
        late = found.ttft_seconds[1] > 1.0
        assert late == (first_token is FirstToken.DECODE)
        seen = [
            script.seen[-1].pods[0].engines[0].prompt_tokens.sum for script in (prefill, decode)
        ]
        assert seen == [200, 199 + 200 + (first_token is FirstToken.PREFILL)]


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        pytest.param("engine: b200", "engine kind", "h100-8b", id="engine"),
        pytest.param("routing: prefix-affine", "d.routing", "random", id="routing"),
        pytest.param("cached_ratio: 0.5", "d.cached_ratio", "0", id="cache"),
        pytest.param("scheduling: priority", "d.scheduling", "fcfs", id="queue"),
        pytest.param("role: Prefill", "pools.role", "one Prefill and one Decode", id="roles"),
        pytest.param("role: Combined", "pools.role", "only Combined", id="mixed"),
        pytest.param("name: p", "pools.name", "of its own", id="names"),
        pytest.param("size: 3", "size", "", id="unknown"),
    ],
)
def test_pools_that_make_no_sense_are_refused(tmp_path, text, field, allowed):
    """The error names the field and what is allowed."""
    second = {"name": "d", "role": "Decode"} | yaml.safe_load(text)
    refuses(tmp_path, {"pools": [{"name": "p", "role": "Prefill"}, second]}, field, allowed)


def refuses(folder, document, field, allowed) -> None:
    """Reading the document fails with this field and what is allowed."""
    path = folder / "pools.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=field) as error:
        read_pools(path)
    assert allowed in str(error.value)


def test_pools_are_read_from_yaml(tmp_path):
    """What is not said has its default."""
    path = tmp_path / "pools.yaml"
    path.write_text(
        """
        pools:
        - {name: d, role: Decode}
        - {name: p, role: Prefill, engine: l4-small, initial_replicas: 2}
        transfer: {fixed_seconds: 0.01}
        skip_prompt_tokens: 64
        """,
        encoding="utf-8",
    )
    found = read_pools(path)
    assert found == PoolsSpec(
        prefill=FleetSpec(engine="l4-small", initial_replicas=2),
        transfer=Transfer(fixed_seconds=0.01),
        skip_prompt_tokens=64,
        names=("p", "d"),
    )
    assert found.first_token is FirstToken.DECODE
