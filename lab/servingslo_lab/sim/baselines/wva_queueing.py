"""llm-d Workload Variant Autoscaler, queueing analyzer: a birth-death chain on mean latencies.

The service law that its filter would learn is exact here, so this is the rule at its best.
Source: llm-d-incubation/workload-variant-autoscaler pkg/analyzer (queuemodel.go,
queueanalyzer.go); the README's TTFT omits the last term, the code has it.
"""

import math
from dataclasses import dataclass

import numpy as np

from servingslo.models.engine.service_time import ServiceLaw
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import View, request_rate, served_lengths
from servingslo_lab.sim.baselines.wva import EverySecondTick
from servingslo_lab.sim.fleets.cluster import Wanted

DEFAULTS = {"headroom": 1.0, "window_seconds": 60.0}
GRID = {"headroom": (1.0, 1.2, 1.5, 1.8), "window_seconds": (60.0, 300.0)}
_ROOM_FACTOR = 11
_LOWEST, _HIGHEST = 0.001, 0.999
_BISECTIONS = 30
_LENGTH_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAnalyzer:
    """Mean TTFT and ITL of one replica. alpha, beta, gamma in seconds, as in the analyzer."""

    alpha: float
    beta: float
    gamma: float
    prompt: float
    output: float
    batch: int

    def _step(self, n: float) -> float:
        i, o = self.prompt, self.output
        return self.alpha + n * (self.beta * (i + o) / (o + 1) + self.gamma * (i + o / 2))

    def _prefill(self, n: float) -> float:
        return self._step(n) + (self.beta + self.gamma) * self.prompt

    def _decode(self, n: float) -> float:
        return self._step(n) + self.beta + self.gamma * (self.prompt + self.output / 2)

    def completion_rate(self, n: int) -> float:
        """μ(n), requests per second with n in service."""
        return n / (self._prefill(n) + self.output * self._decode(n))

    def latencies(self, rate: float) -> tuple[float, float]:
        """(TTFT, ITL), means in seconds at this arrival rate."""
        room = _ROOM_FACTOR * self.batch
        served = np.minimum(np.arange(1, room + 1), self.batch)
        rates = np.array([self.completion_rate(n) for n in range(1, self.batch + 1)])[served - 1]
        logs = np.concatenate([[0.0], np.cumsum(np.log(rate / rates))])
        p = np.exp(logs - logs.max())
        p /= p.sum()
        n = np.arange(room + 1)
        throughput = rate * (1.0 - p[-1])
        in_service = float((p * np.minimum(n, self.batch)).sum())
        wait = float((p * n).sum()) / throughput - in_service / throughput
        prefill = self._prefill(in_service)
        itl = (in_service / throughput - prefill) / self.output
        return wait + prefill + itl, itl

    def greatest_rate(self, ttft_seconds: float, itl_seconds: float) -> float:
        """The rate at which both means are at most their targets, requests per second."""
        low = _LOWEST * self.completion_rate(1)
        high = _HIGHEST * self.completion_rate(self.batch)

        def holds(rate: float) -> bool:
            ttft, itl = self.latencies(rate)
            return ttft <= ttft_seconds and itl <= itl_seconds

        if holds(high):
            return high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low


def analyzer_of(law: ServiceLaw, batch: int, prompt: float, output: float) -> QueueAnalyzer:
    """The analyzer's law for an engine: β is compute of a token, γ is reading one of the cache.

    The fixed cost of a sequence in a step is one token's compute in both laws; prompt tokens cost
    what the engine's prefill does.
    """
    return QueueAnalyzer(
        alpha=law.step_fixed_seconds,
        beta=law.prefill_per_token_seconds,
        gamma=law.context_per_token_seconds
        + max(law.step_per_sequence_seconds - law.prefill_per_token_seconds, 0.0)
        / (prompt + output / 2),
        prompt=prompt,
        output=output,
        batch=batch,
    )


class QueueingAnalyzer:
    """Current arrival rate divided by the current greatest rate of one replica."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()
        self._loop = EverySecondTick()

    def decide(self, observation: Observation) -> Wanted:
        """Λ over λ*, rounded up; headroom multiplies Λ (1 is the rule itself)."""
        seen = self._view.add(observation)
        lengths = served_lengths(self._view, _LENGTH_SECONDS)
        rate = request_rate(self._view, self._parameters["window_seconds"])
        if lengths is None or rate is None or not self._loop.due(seen.time_seconds):
            return Wanted()
        limits = self._setting.limits
        prompt, output = lengths
        held = prompt + output / 2
        batch = max(min(limits.max_num_seqs, int(limits.kv_capacity_tokens / held)), 1)
        analyzer = analyzer_of(self._setting.law, batch, prompt, output)
        each = analyzer.greatest_rate(self._setting.ttft_seconds, self._setting.tpot_seconds)
        wanted = math.ceil(self._parameters["headroom"] * rate / each)
        return Wanted(replicas=self._setting.clamped(wanted))
