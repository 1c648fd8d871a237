"""Knative Pod Autoscaler: concurrency over a target, with a panic mode.

Ticks are those of the simulator, 15 s, while Knative's are 2 s. So its panic window of 6 s contains
only the newest scrape. A count of zero is not reached: the minimum is 1.
Source: Knative serving, pkg/autoscaler/scaling/autoscaler.go and config/core/configmaps/
autoscaler.yaml (defaults).
"""

import math

from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import Scrape, View
from servingslo_lab.sim.fleets.cluster import Wanted

DEFAULTS = {"target": 100.0, "utilization": 0.7, "stable_seconds": 60.0, "panic_threshold": 2.0}
GRID = {"target": (40.0, 60.0, 80.0, 100.0), "stable_seconds": (60.0, 300.0, 600.0),
        "panic_threshold": (1.5, 2.0)}  # fmt: skip
_PANIC_SECONDS = 6.0
_LARGEST_RISE, _LARGEST_FALL = 1000.0, 2.0


def _concurrency(scrape: Scrape) -> float | None:
    values = scrape.values(view.in_system)
    return sum(values.values()) if values else None


class PodAutoscaler:
    """The stable and the panic window, and the count that panic may not shrink."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting = setting
        self._per_pod = parameters["target"] * parameters["utilization"]
        self._stable_seconds = parameters["stable_seconds"]
        self._panic_threshold = parameters["panic_threshold"]
        self._view = View()
        self._panic_since: float | None = None
        self._panic_count = 0

    def decide(self, observation: Observation) -> Wanted:
        """The count of the stable window, in panic the largest of the panic window so far."""
        seen = self._view.add(observation)
        # The window that ends now excludes a scrape exactly at its beginning.
        stable = self._view.mean(_concurrency, self._stable_seconds - 1e-6)
        panic = self._view.mean(_concurrency, _PANIC_SECONDS)
        if stable is None or panic is None:
            return Wanted()
        ready = max(seen.ready, 1)
        most, least = ready * _LARGEST_RISE, math.floor(ready / _LARGEST_FALL)
        wanted_stable = min(max(math.ceil(stable / self._per_pod), least), most)
        raw_panic = math.ceil(panic / self._per_pod)
        wanted_panic = min(max(raw_panic, least), most)
        now = seen.time_seconds
        if raw_panic / ready >= self._panic_threshold:
            self._panic_since = now
        elif self._panic_since is not None and now - self._panic_since >= self._stable_seconds:
            self._panic_since = None
            self._panic_count = 0
        if self._panic_since is not None:
            self._panic_count = max(self._panic_count, int(wanted_panic), ready)
            return Wanted(replicas=self._setting.clamped(self._panic_count))
        return Wanted(replicas=self._setting.clamped(int(wanted_stable)))
