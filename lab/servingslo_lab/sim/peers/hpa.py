"""The HorizontalPodAutoscaler on requests running and waiting in each pod.

Its controller has no package to import. The arithmetic is the controller's as written in
`baselines.horizontal`; `behavior` gives the answer of Kubernetes v1.36.3 on each step of 300
timelines that its normalization code decided (tests/golden/test_behavior_timelines.py). A custom
metric has no default target: the default here is the concurrency of Knative and AIBrix.
"""

from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.hpa import PodsMetrics
from servingslo_lab.sim.baselines.setting import Parameters, Setting

VERSION = "Kubernetes v1.36.3 (recorded timelines)"
DEFAULTS = {"in_system": 100.0, "down_window_seconds": 300.0}
GRID = {"in_system": (20.0, 30.0, 45.0, 70.0, 100.0)}


def on_requests(setting: Setting, parameters: Parameters) -> PodsMetrics:
    """Requests running and waiting, on average over pods."""
    targets = ((view.in_system, parameters["in_system"]),)
    return PodsMetrics(setting, targets, parameters["down_window_seconds"])
