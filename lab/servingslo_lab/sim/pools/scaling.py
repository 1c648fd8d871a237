"""Autoscalers of several pools: one for all of them, or one for each."""

import math
from collections.abc import Mapping
from typing import Protocol

from servingslo.policy.inputs import Observation
from servingslo_lab.sim.fleets.cluster import Autoscaler, Wanted


class FleetAutoscaler(Protocol):
    """Anything that decides for several pools from their observations."""

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """The current requests by pool, in the order in which they are carried out."""


class Each:
    """Each pool by an autoscaler of its own, which sees only that pool."""

    def __init__(self, scalers: Mapping[str, Autoscaler]) -> None:
        self.scalers = scalers

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """What each of them asks for."""
        return {name: one.decide(observations[name]) for name, one in self.scalers.items()}


class Constant:
    """Constant replica counts."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._wanted = {name: Wanted(replicas=count) for name, count in counts.items()}

    def decide(self, _observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """The counts."""
        return self._wanted


class FixedRatio:
    """One pool by an autoscaler, the other by a fixed ratio to its replica count.

    leader, follower: names of the pools. ratio: replicas of the follower for one of the leader,
    rounded up. most: largest replica count of the follower.
    Source: a fixed xPyD split, as in the deployment guides of Dynamo and llm-d.
    """

    def __init__(
        self, leader: str, scaler: Autoscaler, follower: str, *, ratio: float, most: int
    ) -> None:
        self._leader, self._scaler = leader, scaler
        self._follower, self._ratio, self._most = follower, ratio, most

    def decide(self, observations: Mapping[str, Observation]) -> Mapping[str, Wanted]:
        """The leader's request, and the follower's replicas in proportion."""
        wanted = self._scaler.decide(observations[self._leader])
        leading = wanted.replicas
        if leading is None:
            leading = observations[self._leader].desired_replicas or 0
        following = max(math.ceil(leading * self._ratio - 1e-9), 1)
        return {
            self._leader: wanted,
            self._follower: Wanted(replicas=min(following, self._most)),
        }
