"""Knative Serving's pod autoscaler, by its own decision, windows and defaults.

`programs/knative` holds what is called. Its queue proxies report the mean concurrency of each
second; here the engines report requests that run or wait at that moment. Its scraper reads a sample
of more than three pods; here all are read. A count of zero is not reached.
Source: knative/serving v0.50.0, pkg/autoscaler (scaling, metrics, aggregation, config).
"""

from functools import partial

from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.peers.line_process import Lines, identity, started

PROGRAM = "knative"
VERSION = "Knative Serving v0.50.0"
# scrapeTickInterval of pkg/autoscaler/metrics/collector.go. It decides at every second scrape.
TICK_SECONDS, LAG_SECONDS = 1.0, 0.0
# container-concurrency-target-default; of it 70 % are the target, by its own defaults.
DEFAULTS = {"in_system": 100.0}
GRID = {"in_system": (10.0, 20.0, 30.0, 45.0, 70.0, 100.0)}
_TARGET = "autoscaling.knative.dev/target"

_start: Lines = partial(started, PROGRAM)


class PodAutoscaler:
    """On requests in the system."""

    def __init__(self, setting: Setting, parameters: Parameters, start: Lines = _start) -> None:
        self._setting = setting
        self._lines = start({"annotations": {_TARGET: f"{parameters['in_system']:g}"}})

    def decide(self, observation: Observation) -> Wanted:
        """What its reconciler would order."""
        ready = view.ready_pods(observation)
        answer = self._lines.answer(
            {
                "seconds": observation.time_seconds,
                "ready": len(ready),
                "replicas": observation.desired_replicas or 0,
                "in_system": view.all_in_system(ready),
            }
        )
        return Wanted(replicas=self._setting.clamped(int(answer["replicas"])))


sources = partial(identity, PROGRAM)
