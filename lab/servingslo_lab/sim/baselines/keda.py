"""KEDA: thresholds on engine metrics, and a law on the ratio of latency to objective.

Both end in a HorizontalPodAutoscaler that KEDA creates.
Source: llm-d workload-autoscaling guide (thresholds of the endpoint picker; SLO law with its
constants and behavior); llm-d-autoscaling discussion 1517 (KV 60 %, waiting 30).
"""

import math

from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.policy.hpa_behavior import (
    Behavior,
    PolicyType,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
)
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.horizontal import (
    Horizontal,
    default_behavior,
    external_metric_replicas,
)
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import Scrape, View, histogram_quantile
from servingslo_lab.sim.fleets.cluster import Wanted

GUIDE_DEFAULTS = {"queue": 1.0, "running": 16.0, "cooldown_seconds": 300.0}
GUIDE_GRID = {"queue": (1.0, 4.0), "running": (16.0, 32.0, 64.0, 96.0, 128.0)}
RAW_DEFAULTS = {"kv_usage": 0.6, "waiting": 30.0, "cooldown_seconds": 300.0}
RAW_GRID = {"kv_usage": (0.2, 0.4, 0.6), "waiting": (1.0, 5.0, 30.0)}
LAW_DEFAULTS = {
    "up": 0.55,
    "down": 0.40,
    "down_window_seconds": 180.0,
    "down_period_seconds": 120.0,
}
LAW_GRID = {"up": (0.45, 0.55, 0.65, 0.8), "down": (0.2, 0.3, 0.4, 0.55),
            "down_period_seconds": (60.0, 120.0)}  # fmt: skip

_LAW_QUANTILE, _LAW_CAP = 0.9, 2.0
_LAW_MEAN_SECONDS, _LAW_RATE_SECONDS = 45.0, 60.0


def _sum(scrape: Scrape, name: str) -> float:
    read = {"waiting": view.waiting, "running": view.running, "kv_usage": view.kv_usage}[name]
    return sum(scrape.values(read).values())


class Thresholds:
    """ScaledObject whose triggers are sums over pods with a target for each pod.

    triggers: (gauge summed over pods, target per replica).
    """

    def __init__(
        self, setting: Setting, triggers: tuple[tuple[str, float], ...], cooldown: float
    ) -> None:
        self._triggers = triggers
        self._view = View()
        self._horizontal = Horizontal(
            default_behavior(int(cooldown)), minimum=setting.minimum, maximum=setting.maximum
        )

    def decide(self, observation: Observation) -> Wanted:
        """The count that the largest trigger asks for."""
        seen = self._view.add(observation)
        wanted = [
            external_metric_replicas(
                _sum(seen, name), target=target, live=seen.live, current=seen.replicas
            )
            for name, target in self._triggers
        ]
        return Wanted(replicas=self._horizontal.replicas(seen.replicas, wanted, seen.time_seconds))


def guide(setting: Setting, parameters: Parameters) -> Thresholds:
    """Queue and running requests per replica, as in the guide."""
    triggers = (("waiting", parameters["queue"]), ("running", parameters["running"]))
    return Thresholds(setting, triggers, parameters["cooldown_seconds"])


def raw(setting: Setting, parameters: Parameters) -> Thresholds:
    """KV use and waiting requests of vLLM, as in the script."""
    triggers = (("kv_usage", parameters["kv_usage"]), ("waiting", parameters["waiting"]))
    return Thresholds(setting, triggers, parameters["cooldown_seconds"])


def law_replicas(score: float, current: int, ready: int, *, up: float, down: float) -> int:
    """The SLO law: score is mean latency over objective; no change between down and up."""
    counted = ready / current if 0 < ready < current else 1.0
    if score > up:
        return current + max(math.ceil(current * (score * counted / up - 1.0) - 1e-9), 0)
    if score < down:
        return current - math.floor(current * (1.0 - score / down) + 1e-9)
    return current


class SLOLaw:
    """The law on P90 TTFT and TPOT against the objectives' thresholds."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting = setting
        self._up, self._down = parameters["up"], parameters["down"]
        self._view = View()
        self._scores: list[tuple[float, float]] = []
        self._horizontal = Horizontal(
            _law_behavior(parameters), minimum=setting.minimum, maximum=setting.maximum
        )

    def decide(self, observation: Observation) -> Wanted:
        """The count of the law, within its behavior."""
        seen = self._view.add(observation)
        now = seen.time_seconds
        self._scores.append((now, self._score()))
        self._scores = [(at, s) for at, s in self._scores if now - at < _LAW_MEAN_SECONDS]
        score = sum(s for _, s in self._scores) / len(self._scores)
        wanted = law_replicas(score, seen.replicas, seen.ready, up=self._up, down=self._down)
        return Wanted(replicas=self._horizontal.replicas(seen.replicas, [wanted], now))

    def _score(self) -> float:
        """P90 over threshold of the worse metric, capped; 0 without traffic."""
        ttft = self._view.window(_ttft, _LAW_RATE_SECONDS)
        tpot = self._view.window(_tpot, _LAW_RATE_SECONDS)
        first = None if ttft is None else histogram_quantile(ttft, _LAW_QUANTILE)
        later = None if tpot is None else histogram_quantile(tpot, _LAW_QUANTILE)
        worst = max(
            (first or 0.0) / self._setting.ttft_seconds, (later or 0.0) / self._setting.tpot_seconds
        )
        return min(worst, _LAW_CAP)


def _ttft(engine: EngineSample) -> HistogramSample | None:
    return engine.ttft_seconds


def _tpot(engine: EngineSample) -> HistogramSample | None:
    return engine.time_per_output_token_seconds


def _law_behavior(parameters: Parameters) -> Behavior:
    down_period = int(parameters["down_period_seconds"])
    return Behavior(
        scale_up=ScalingRules(
            stabilization_window_seconds=30,
            policies=(
                ScalingPolicy(type=PolicyType.PERCENT, value=100, period_seconds=60),
                ScalingPolicy(type=PolicyType.PODS, value=4, period_seconds=60),
            ),
        ),
        scale_down=ScalingRules(
            stabilization_window_seconds=int(parameters["down_window_seconds"]),
            policies=(ScalingPolicy(type=PolicyType.PODS, value=1, period_seconds=down_period),),
            select_policy=SelectPolicy.MAX,
        ),
    )
