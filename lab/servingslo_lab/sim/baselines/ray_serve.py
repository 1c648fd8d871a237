"""Ray Serve: ongoing requests over a target, with delays before it moves.

Source: Ray Serve, autoscaling_policy.py (replica_queue_length_autoscaling_policy), defaults of
AutoscalingConfig: target_ongoing_requests 2, upscale_delay_s 30, downscale_delay_s 600,
look_back_period_s 30. The delays are from its documentation and are not verified against a running
system.
"""

import math

from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import Scrape, View
from servingslo_lab.sim.fleets.cluster import Wanted

DEFAULTS = {"target_ongoing": 2.0, "upscale_delay_seconds": 30.0, "downscale_delay_seconds": 600.0,
            "look_back_seconds": 30.0}  # fmt: skip
GRID = {"target_ongoing": (2.0, 30.0, 45.0, 60.0, 80.0, 100.0),
        "downscale_delay_seconds": (300.0, 600.0)}  # fmt: skip


def _ongoing(scrape: Scrape) -> float | None:
    values = scrape.values(view.in_system)
    return sum(values.values()) if values else None


class RayServe:
    """Scales only after the wanted direction was the same for the whole delay."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()
        self._above_since: float | None = None
        self._below_since: float | None = None

    def decide(self, observation: Observation) -> Wanted:
        """The count by ongoing requests, once it has been asked for during the whole delay."""
        seen = self._view.add(observation)
        ongoing = self._view.mean(_ongoing, self._parameters["look_back_seconds"])
        if ongoing is None:
            return Wanted()
        wanted = self._setting.clamped(math.ceil(ongoing / self._parameters["target_ongoing"]))
        now, current = seen.time_seconds, seen.replicas
        above, below = self._above_since, self._below_since
        self._above_since = (now if above is None else above) if wanted > current else None
        self._below_since = (now if below is None else below) if wanted < current else None
        if self._above_since is not None:
            return self._after("upscale_delay_seconds", now - self._above_since, wanted)
        if self._below_since is not None:
            return self._after("downscale_delay_seconds", now - self._below_since, wanted)
        return Wanted()

    def _after(self, delay: str, waited_seconds: float, wanted: int) -> Wanted:
        if waited_seconds < self._parameters[delay]:
            return Wanted()
        self._above_since = self._below_since = None
        return Wanted(replicas=wanted)
