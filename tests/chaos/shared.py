"""Stories of resources that write into a gateway's objects: classes, or a fallback.

    python -m tests.chaos.run --seeds 0:17 --gateway classes

In addition to what holds of every story: weights and lanes stay within their bounds at any time,
and after the resource is deleted or paused, or a process starts that may not write into a gateway,
all objects are as their owners had them.
"""

import random
from typing import Any

from tests.chaos.checker import MOST_PER_ENGINE
from tests.chaos.cluster import NAME
from tests.chaos.gateway import Gateway, classes_of, degradation_of
from tests.chaos.story import FAULTS, TICK_SECONDS, Operator, Story

from servingslo.features.catalogue import FEATURES

KINDS = tuple(one for one in ("classes", "degradation") if one in FEATURES)
# The greatest rate, as a ratio to what all replicas that can be had serve at most.
CROWD = 1.3
# The administrator's switches, with a new process.
OFF = "switched off"
FAREWELLS = ("deleted", "paused", "recommend", OFF)
# Ticks after the end in which what was written is put back.
LAST_TICKS = 4


class OwnersStory(Story):
    """A story with objects of other owners, that ends with the resource or the operator turned off.

    objects: with the operator's actuators on them, and what must hold of them. farewell: how it
    ends.
    """

    objects: Any
    farewell: str

    @property
    def broken(self) -> tuple[str, ...]:
        """What did not hold of the objects."""
        return tuple(self.objects.broken)

    def made(self) -> Operator:
        """An operator that may write into the objects."""
        return Operator(self.cluster, self.objects)

    async def _live(self) -> None:
        await super()._live()
        cluster, objects = self.cluster, self.objects
        objects.permitted = self.farewell != OFF
        self.operator = self.made()
        for tick in range(LAST_TICKS):
            if tick == 1 and self.farewell != OFF:
                self._person(self.farewell, self.rng)
            cluster.pass_to(cluster.now + TICK_SECONDS)
            await self.operator.tick()
            objects.check(cluster.now)
        self.operator.end()
        if self.farewell != "deleted":
            assert NAME in cluster.records
        objects.broken += [f"after it was {self.farewell}: {one}" for one in objects.left()]

    def _set(self, tick: int) -> None:
        self.objects.check(self.cluster.now)
        super()._set(tick)


class GatewayStory(OwnersStory):
    """A story with a gateway."""

    def __init__(
        self, seed: int, fault_count: int = FAULTS, only: tuple[str, ...] = (), *, kind: str
    ) -> None:
        super().__init__(seed, fault_count, only)
        rng = random.Random(f"{kind}/{seed}")
        if kind == "classes":
            self.spec = classes_of(self.spec)
        else:
            most = rng.choice((1, 2))
            self.spec = degradation_of(self.spec, most)
            self._crowd(CROWD * most * MOST_PER_ENGINE)
        self.objects = self.gateway = Gateway(self.cluster, kind, rng)
        self.farewell = rng.choice(FAREWELLS)

    def _crowd(self, most: float) -> None:
        """The same demand over time, with this greatest rate."""
        whole = self.rate
        times = range(int(TICK_SECONDS * self.told.ticks))
        factor = most / max(whole(float(at)) for at in times)
        self.rate = self.cluster.world.rate = lambda seconds: factor * whole(seconds)
