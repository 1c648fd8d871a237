"""Guards of the arithmetic are no settings: ten times as much, or a tenth, moves no percentile."""

import sys
from functools import _lru_cache_wrapper

import pytest
from tests.cards import H100, L4
from tests.validation.grid import conversation_lengths

from servingslo.models import numerics
from servingslo.models.engine.service_time import EngineLimits
from servingslo.models.fleet.latency import LatencyModel
from servingslo.models.objectives import Routing
from servingslo.models.workload import LengthDistribution, Workload

GUARDS = sorted(
    name
    for name in vars(numerics)
    if name.isupper() and name not in {"ALMOST_ONE", "LARGEST_LOAD", "TINY_PROBABILITY"}
)
LENGTHS = tuple(tokens[:2000].tolist() for tokens in conversation_lengths())
LIMITS = EngineLimits(max_num_seqs=128, max_num_batched_tokens=8192, kv_capacity_tokens=400_000.0)


def percentiles() -> list[float]:
    """TTFT and TPOT at p95 of steady and bursty loads, of one replica and of a pool."""
    prompt, output = map(LengthDistribution.from_samples, LENGTHS)
    found = []
    for law, dispersion in ((H100, 1.0), (L4, 3.0)):
        mix = Workload(
            arrival_rate_per_second=1.0, prompt=prompt, output=output, arrival_dispersion=dispersion
        )
        model = LatencyModel(mix, law, LIMITS)
        for replicas, routing in ((1, Routing.RANDOM), (4, Routing.POOLED)):
            for utilization in (0.05, 0.5, 0.9):
                rate = utilization * replicas * model.saturation_rate_per_second
                one = model.predict(rate, replicas, routing)
                found += [one.ttft_seconds(95.0), one.tpot_seconds(95.0)]
    return found


def forget() -> None:
    """Empties the caches of the models."""
    for name, module in list(sys.modules.items()):
        if name.startswith("servingslo.models"):
            for value in vars(module).values():
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_moves_no_percentile(guard, factor, monkeypatch):
    """By a part in a thousand."""
    expected, value = percentiles(), factor * getattr(numerics, guard)
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("servingslo.models") and hasattr(module, guard)
    ]
    for module in modules:
        monkeypatch.setattr(module, guard, value)
    forget()
    moved = percentiles()
    monkeypatch.undo()
    forget()
    assert moved == pytest.approx(expected, rel=1e-3)
