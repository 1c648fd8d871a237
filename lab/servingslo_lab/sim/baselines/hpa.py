"""HorizontalPodAutoscaler on metrics of the engines, and on a signal like CPU utilization.

Source: kubernetes.io, "Horizontal Pod Autoscaling"; see `horizontal` for the arithmetic.
"""

from collections.abc import Callable

from servingslo.estimation.sample import EngineSample
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.horizontal import (
    Horizontal,
    default_behavior,
    pods_metric_replicas,
)
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import View
from servingslo_lab.sim.fleets.cluster import Wanted

WAITING_DEFAULTS = {"waiting": 5.0, "down_window_seconds": 300.0}
WAITING_GRID = {"waiting": (0.25, 0.5, 1.0, 2.0, 5.0, 10.0), "down_window_seconds": (300.0, 600.0)}
KV_DEFAULTS = {"kv_usage": 0.8, "down_window_seconds": 300.0}
KV_GRID = {"kv_usage": (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6),
           "down_window_seconds": (120.0, 300.0, 600.0)}  # fmt: skip
BOTH_DEFAULTS = {"waiting": 5.0, "kv_usage": 0.8, "down_window_seconds": 300.0}
BOTH_GRID = {"waiting": (1.0, 5.0), "kv_usage": (0.2, 0.3, 0.4, 0.6),
             "down_window_seconds": (300.0,)}  # fmt: skip
BUSY_DEFAULTS = {"busy": 0.8, "down_window_seconds": 300.0}
BUSY_GRID = {"busy": (0.5, 0.65, 0.8, 0.9), "down_window_seconds": (300.0,)}
_BUSY_WINDOW_SECONDS = 60.0

_Read = Callable[[EngineSample], float | None]


class PodsMetrics:
    """An HPA over gauges of pods; the largest of its proposals decides."""

    def __init__(
        self, setting: Setting, targets: tuple[tuple[_Read, float], ...], down_window: float
    ) -> None:
        self._targets = targets
        self._view = View()
        self._horizontal = Horizontal(
            default_behavior(int(down_window)), minimum=setting.minimum, maximum=setting.maximum
        )

    def decide(self, observation: Observation) -> Wanted:
        """The count that the metrics ask for, within the behavior."""
        seen = self._view.add(observation)
        wanted = []
        for read, target in self._targets:
            values = seen.values(read)
            wanted.append(
                pods_metric_replicas(
                    list(values.values()),
                    missing=seen.live - len(values),
                    current=seen.replicas,
                    target=target,
                )
            )
        return Wanted(replicas=self._horizontal.replicas(seen.replicas, wanted, seen.time_seconds))


class Busy:
    """An HPA on the share of time that engines compute, like GPU utilization.

    A step runs whenever there is a request, so the signal is 1 long before the limits are reached.
    It is the rate of steps times their mean time, which is the mean time between tokens.
    """

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._view = View()
        self._target = parameters["busy"]
        self._horizontal = Horizontal(
            default_behavior(int(parameters["down_window_seconds"])),
            minimum=setting.minimum,
            maximum=setting.maximum,
        )

    def decide(self, observation: Observation) -> Wanted:
        """The count that utilization asks for, within the behavior."""
        seen = self._view.add(observation)
        steps = self._view.rate(_steps, _BUSY_WINDOW_SECONDS)
        gaps = self._view.window(lambda engine: engine.inter_token_seconds, _BUSY_WINDOW_SECONDS)
        wanted = seen.replicas
        if steps is not None and gaps is not None and gaps.mean is not None and seen.ready:
            busy = min(steps / seen.ready * gaps.mean, 1.0)
            wanted = pods_metric_replicas(
                [busy] * seen.ready,
                missing=seen.unready,
                current=seen.replicas,
                target=self._target,
            )
        replicas = self._horizontal.replicas(seen.replicas, [wanted], seen.time_seconds)
        return Wanted(replicas=replicas)


def _steps(engine: EngineSample) -> float | None:
    return None if engine.iteration_tokens is None else engine.iteration_tokens.count


def on_waiting(setting: Setting, parameters: Parameters) -> PodsMetrics:
    """Waiting requests per pod."""
    targets = ((view.waiting, parameters["waiting"]),)
    return PodsMetrics(setting, targets, parameters["down_window_seconds"])


def on_kv(setting: Setting, parameters: Parameters) -> PodsMetrics:
    """Share of the KV cache in use."""
    targets = ((view.kv_usage, parameters["kv_usage"]),)
    return PodsMetrics(setting, targets, parameters["down_window_seconds"])


def on_both(setting: Setting, parameters: Parameters) -> PodsMetrics:
    """Waiting requests and KV use, whichever requires more."""
    targets = ((view.waiting, parameters["waiting"]), (view.kv_usage, parameters["kv_usage"]))
    return PodsMetrics(setting, targets, parameters["down_window_seconds"])
