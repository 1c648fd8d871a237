"""AIBrix's pod autoscalers, by their own algorithms, windows and defaults.

`programs/aibrix` holds what is called. APA gets a pod metric: a pod that is scheduled and does not
serve counts as 0, as its fetcher counts one that does not answer. KPA divides the metric by the
target without the pod count, so a mean over pods cannot order what a growing fleet needs; it gets
the total, as an external metric.
Source: vllm-project/aibrix v0.7.0, pkg/controller/podautoscaler (algorithm, context, metrics).
"""

from collections.abc import Callable
from functools import partial

from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.peers.line_process import LineProcess, Lines, identity, started

PROGRAM = "aibrix"
VERSION = "aibrix v0.7.0"
# DefaultResyncInterval; metrics are fetched from the pods at that moment.
TICK_SECONDS, LAG_SECONDS = 10.0, 0.0
# Targets of its samples; the rest are defaults of NewBaseScalingContext and of its windows.
APA_DEFAULTS = {"kv_usage": 0.5, "up_tolerance": 0.1, "down_tolerance": 0.1,
                "stable_seconds": 180.0}  # fmt: skip
APA_GRID = {"kv_usage": (0.1, 0.15, 0.2, 0.3, 0.5)}
KPA_DEFAULTS = {"in_system": 100.0, "panic_threshold": 2.0, "stable_seconds": 180.0,
                "panic_seconds": 60.0}  # fmt: skip
KPA_GRID = {"in_system": (20.0, 30.0, 45.0, 70.0, 100.0)}
_ANNOTATION = "autoscaling.aibrix.ai/"

_start: Lines = partial(started, PROGRAM)


class PodAutoscaler:
    """One of its strategies; read: the metric's value or values of an observation."""

    def __init__(
        self, setting: Setting, lines: LineProcess, read: Callable[[Observation], list[float]]
    ) -> None:
        self._setting, self._lines, self._read = setting, lines, read

    def decide(self, observation: Observation) -> Wanted:
        """What its reconciler would order."""
        answer = self._lines.answer(
            {
                "seconds": observation.time_seconds,
                "replicas": observation.desired_replicas or 0,
                "values": self._read(observation),
            }
        )
        return Wanted(replicas=self._setting.clamped(int(answer["replicas"])))


def apa(setting: Setting, parameters: Parameters, start: Lines = _start) -> PodAutoscaler:
    """APA on the KV use of pods."""
    annotations = {
        f"{_ANNOTATION}scale-up-tolerance": str(parameters["up_tolerance"]),
        f"{_ANNOTATION}scale-down-tolerance": str(parameters["down_tolerance"]),
    }
    lines = start(
        {
            "strategy": "APA",
            "target": parameters["kv_usage"],
            "minimum": setting.minimum,
            "maximum": setting.maximum,
            "stable_seconds": parameters["stable_seconds"],
            "panic_seconds": parameters["stable_seconds"],
            "annotations": annotations,
        }
    )
    return PodAutoscaler(setting, lines, kv_of_pods)


def kpa(setting: Setting, parameters: Parameters, start: Lines = _start) -> PodAutoscaler:
    """KPA on all requests in the system."""
    lines = start(
        {
            "strategy": "KPA",
            "target": parameters["in_system"],
            "minimum": setting.minimum,
            "maximum": setting.maximum,
            "stable_seconds": parameters["stable_seconds"],
            "panic_seconds": parameters["panic_seconds"],
            "annotations": {f"{_ANNOTATION}panic-threshold": str(parameters["panic_threshold"])},
        }
    )
    return PodAutoscaler(setting, lines, all_in_system)


def kv_of_pods(observation: Observation) -> list[float]:
    """KV use of each pod with an address; 0 for one that does not serve yet."""
    found = []
    for pod in observation.pods:
        if pod.deleting or pod.unschedulable_reason is not None:
            continue
        usage = view.kv_usage(pod.engines[0]) if pod.ready and pod.engines else None
        found.append(usage or 0.0)
    return found


def all_in_system(observation: Observation) -> list[float]:
    """Requests running and waiting on ready pods, as one value; empty without a pod."""
    total = view.all_in_system(view.ready_pods(observation))
    return [] if total is None else [total]


sources = partial(identity, PROGRAM)
