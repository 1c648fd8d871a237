"""Two other rules for several pools beside ours: AIBrix's optimizer, and TokenScale's.

    python -m tests.benchmarks.pools_peers [--rows "crowd by load"] [--seeds 3]

AIBrix's is the installed `aibrix`: its `Optimizer` over profiles, an integer program of the
cheapest cards, for pools on several cards. It gets what its gateway and profiler would tell it:
requests of the last 240 s by powers of two of their lengths, and what a card serves of each size
within the objectives (means, by the card's exact law; `factor` scales them). Its counts are taken
at once, without the windows of the pod autoscaler that reads them. TokenScale's is its published
rule for prefill and decode, at exact velocities, without its convertible decoders.
Source: aibrix 0.8.0, gpu_optimizer/optimizer, load_monitor/monitor.py (window, rate), app.py; R.
Lai et al., "TokenScale", arXiv 2512.03416, sections 4 and 5.
"""

import argparse
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from tests.benchmarks.pools import scenarios

from servingslo.models.engine.capacity import concurrency_cap, mu_effective_per_second
from servingslo.models.engine.service_time import request_demand
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.policies import OURS, policy_of
from servingslo_lab.sim.pools.cluster import simulate_pools
from servingslo_lab.sim.pools.fleet import PoolsSpec
from servingslo_lab.sim.pools.replay import costs_of, first_fleets, scaler_of
from servingslo_lab.sim.pools.scaling import FleetAutoscaler
from servingslo_lab.sim.scenario import Cell, Scenario
from servingslo_lab.sim.scoring import Objectives
from servingslo_lab.sim.traces.trace import Trace

# Its window of requests; parts of a card that it counts in, by its own defaults.
WINDOW_SECONDS, FRACTION = 240.0, 100.0
FACTORS = (1.0, 0.7, 0.5)
OUTPUTS, PROMPTS = [2.0**n for n in range(3, 11)], [2.0**n for n in range(6, 14)]


@dataclass(frozen=True, slots=True)
class Center:
    """Requests of one size, as its optimizer reads them."""

    signature: tuple[int, int]
    rate: float

    def get_signature(self, *_: object) -> tuple[int, int]:
        """The place in the profile."""
        return self.signature


def served_per_second(
    fleet: FleetSpec, prompt: float, output: float, objectives: Objectives, factor: float
) -> float:
    """Requests of this size that a replica serves within the objectives, on average."""
    law, limits = fleet.engine_law, fleet.engine_limits
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.constant(prompt),
        output=LengthDistribution.constant(output),
    )
    demand = request_demand(workload, law)
    if law.prefill_per_token_seconds * prompt > factor * objectives.ttft_seconds:
        return 0.0
    left = output * factor * objectives.tpot_seconds - demand.fixed_seconds
    most = min(concurrency_cap(workload, limits), max(left, 0.0) / demand.marginal_seconds)
    return mu_effective_per_second(demand, most)


class Optimizer:
    """AIBrix's optimizer on the requests of the trace."""

    def __init__(
        self, fleets: Mapping[str, FleetSpec], trace: Trace, objectives: Objectives, factor: float
    ) -> None:
        from aibrix.gpu_optimizer import optimizer  # type: ignore[import-not-found] # noqa: PLC0415

        logging.getLogger("aibrix").setLevel(logging.ERROR)
        self._fleets, self._trace = fleets, trace
        self._solver = optimizer.Optimizer(FRACTION)
        for name, fleet in fleets.items():
            table = [
                [served_per_second(fleet, p, o, objectives, factor) for p in PROMPTS]
                for o in OUTPUTS
            ]
            cost = fleet.dollars_per_hour / FRACTION
            self._solver.set_profile(
                optimizer.GPUProfile(gpu=name, cost=cost, tputs=table, indexes=[OUTPUTS, PROMPTS])
            )
        places = [
            np.clip(np.rint(np.log2(np.maximum(tokens, 1.0) / first)), 0, 7).astype(int)
            for tokens, first in (
                (trace.output_tokens, OUTPUTS[0]), (trace.prompt_tokens, PROMPTS[0]),
            )
        ]  # fmt: skip
        self._sizes = np.stack(places, axis=1)
        self._before = 0.0

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """The cheapest cards for the larger of the window's rate and the last interval's."""
        now = next(iter(observations.values())).time_seconds
        begins = max(now - WINDOW_SECONDS, 0.0)
        first, last, end = np.searchsorted(
            self._trace.arrival_seconds, (begins, self._before, now), side="right"
        )
        window, interval = now - begins, now - self._before
        self._before = now
        if end == first or interval <= 0.0:
            return {}
        sizes, counts = np.unique(self._sizes[first:end], axis=0, return_counts=True)
        centers = [
            Center((int(o), int(p)), count / window)
            for (o, p), count in zip(sizes, counts, strict=True)
        ]
        rate = max((end - first) / window, (end - last) / interval)
        self._solver.set_workload_distribution(centers, float(rate))
        found = self._solver.run() or {}
        return {
            name: Wanted(replicas=max(math.ceil(found[name] / FRACTION), 1))
            for name in self._fleets
            if name in found
        }


class TokenVelocity:
    """Tokens that come in over the tokens a second of a replica of the role, times a factor.

    Prefill: prompts over a prompt alone. Decode: all tokens of the requests that arrive over those
    of the requests that a batch completes, as large as memory and the TPOT objective allow.
    """

    def __init__(
        self, spec: PoolsSpec, trace: Trace, objectives: Objectives, factor: float
    ) -> None:
        self._arrivals, self._before = trace.arrival_seconds, 0.0
        all_tokens = trace.prompt_tokens + trace.output_tokens
        prompt, output = float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
        law, limits = spec.prefill.engine_law, spec.decode.engine_limits
        prefill = prompt / (law.step_fixed_seconds + law.prefill_per_token_seconds * prompt)
        law, held = spec.decode.engine_law, prompt + output / 2.0
        per = law.step_per_sequence_seconds + law.context_per_token_seconds * held
        room = (objectives.tpot_seconds - law.step_fixed_seconds) / per
        batch = min(room, limits.kv_capacity_tokens / held, limits.max_num_seqs)
        completed = batch / (output * (law.step_fixed_seconds + per * batch))
        columns = (trace.prompt_tokens, prefill), (all_tokens, completed * (prompt + output))
        self._needs = {
            name: np.concatenate([[0.0], np.cumsum(tokens) / (factor * velocity)])
            for name, (tokens, velocity) in zip(spec.names, columns, strict=True)
        }

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """Replicas for the tokens of the last interval."""
        now = next(iter(observations.values())).time_seconds
        first, end = np.searchsorted(self._arrivals, (self._before, now), side="right")
        interval, self._before = now - self._before, now
        if interval <= 0.0:
            return {}
        needs = {name: (of[end] - of[first]) / interval for name, of in self._needs.items()}
        return {name: Wanted(replicas=max(math.ceil(need), 1)) for name, need in needs.items()}


def scalers(
    scenario: Scenario, fleets: Mapping[str, FleetSpec], trace: Trace, seed: int
) -> Iterator[tuple[str, FleetAutoscaler]]:
    """Ours, and the peer of these pools at each factor."""
    spec = scenario.pools
    assert spec is not None
    cell = Cell(scenario=scenario, policy=policy_of(OURS), seed=seed)
    yield OURS, scaler_of(cell, spec, fleets, trace)
    for factor in FACTORS:
        if isinstance(spec, PoolsSpec):
            yield (
                f"tokenscale ({factor:g})",
                TokenVelocity(spec, trace, scenario.objectives, factor),
            )
        else:
            yield f"aibrix ({factor:g})", Optimizer(fleets, trace, scenario.objectives, factor)


def main() -> None:
    """Print share in SLO and dollars of every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="words in their names, with commas")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    words = [word for word in chosen.rows.split(",") if word]
    for name, scenario in scenarios().items():
        if scenario.pools is None or (words and not any(word in name for word in words)):
            continue
        for seed in range(1, chosen.seeds + 1):
            trace = scenario.trace(seed)
            fleets = first_fleets(scenario, scenario.pools, trace)
            for label, scaler in scalers(scenario, fleets, trace, seed):
                spec = scenario.pools.with_fleets(fleets)
                result = simulate_pools(spec, trace, scaler, seed=seed)
                dollars = sum(one.dollars for one in costs_of(spec, result))
                share = 100.0 * scenario.objectives.share_of(result.result)
                sys.stdout.write(f"| {name} | {seed} | {label} | {share:.2f} @ {dollars:.2f} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
