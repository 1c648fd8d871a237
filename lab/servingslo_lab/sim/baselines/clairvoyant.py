"""Schedules from the trace itself, which no autoscaler knows; used as references."""

import math

from servingslo.models.engine.service_time import FloatArray
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Wanted


class Static:
    """A constant replica count."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def decide(self, _observation: Observation) -> Wanted:
        """The count."""
        return Wanted(replicas=self._replicas)


class Foresight:
    """Knows mean demand one cold start ahead, and at no other future time.

    work_per_second: of the trace, for each interval_seconds. per_replica: work of one replica.
    """

    def __init__(
        self,
        work_per_second: FloatArray,
        *,
        interval_seconds: float,
        per_replica: float,
        ahead_seconds: float,
    ) -> None:
        self._work = work_per_second
        self._interval = interval_seconds
        self._per_replica = per_replica
        self._ahead = ahead_seconds

    def decide(self, observation: Observation) -> Wanted:
        """The count for the greater of demand now and when a pod ordered now is ready."""
        now = observation.time_seconds
        wanted = max(self._at(now), self._at(now + self._ahead))
        return Wanted(replicas=max(math.ceil(wanted / self._per_replica - 1e-9), 1))

    def _at(self, time: float) -> float:
        place = min(int(time / self._interval), len(self._work) - 1)
        return float(self._work[place])
