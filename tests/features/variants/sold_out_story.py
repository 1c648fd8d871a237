"""A storm of faults over one model at two prices, of which the cheap one is often sold out.

In addition to what holds of every story: no count is lowered below what serves, as long as what
serves is needed; pods that wait for a place are not counted.
"""

import random

from tests.chaos.checker import need, violations
from tests.chaos.faults import Fault
from tests.chaos.story import FAULTS, STORM_TICKS, Story, _world

from servingslo.reasons import Reason

CHEAP, DEAR = "llama-cheap", "llama-dear"
PRICES = {CHEAP: 1.0, DEAR: 4.0}
# Shortages that last beyond the wait for a node, beside the drawn faults.
SHORTAGES = 3
# Of the rates of other stories, so that one card is too few.
CROWD = 3.0


class SoldOutStory(Story):
    """Both targets behind one Service, which sends each ready pod as many requests."""

    def __init__(self, seed: int, fault_count: int = FAULTS, only: tuple[str, ...] = ()) -> None:
        super().__init__(seed, fault_count, only)
        rng, cluster = random.Random(f"sold-out/{seed}"), self.cluster  # noqa: S311  a story
        self._broken: list[str] = []
        whole = self.rate
        self.rate = lambda seconds: CROWD * whole(seconds)
        cluster.worlds = {
            name: _world(rng, lambda at, name=name: self._part(name) * self.rate(at), named=name)
            for name in PRICES
        }
        cluster.struck = CHEAP
        own = {"targetRef", "replicas", "batching"}
        self.spec = {
            **{name: value for name, value in self.spec.items() if name not in own},
            "pools": [
                {
                    "name": name.removeprefix("llama-"),
                    **{one: self.spec[one] for one in own},
                    "targetRef": {**self.spec["targetRef"], "name": name},
                    "cost": {"gpuHourly": price},
                }
                for name, price in PRICES.items()
            ],
        }
        ticks = STORM_TICKS // SHORTAGES
        # An even seed strikes the cheap target.
        self._lasting = [
            Fault(kind="gpu-shortage", start=start, ticks=ticks, seed=2 * rng.getrandbits(30))
            for start in range(0, SHORTAGES * ticks, ticks)
        ]
        self.told.faults += self._lasting
        self.spilt, post = 0, cluster.post

        async def noted(ref, event, now):
            self.spilt += event.reason is Reason.OTHER_POOL_SHORT
            await post(ref, event, now)

        cluster.post = noted

    @property
    def broken(self) -> tuple[str, ...]:
        """Where fewer pods were left to serve than serve what comes."""
        return tuple(self._broken)

    def _part(self, name: str) -> float:
        """The share of the requests that a target gets."""
        ready = {one: len(world.service.engines) for one, world in self.cluster.worlds.items()}
        whole = sum(ready.values())
        return ready[name] / whole if whole else 1.0 / len(ready)

    def _begin(self, fault: Fault) -> None:
        super()._begin(fault)
        if fault in self._lasting:
            # Cards are taken away, with the pods that had them.
            cards = fault.rng().choice((0, 1, 1))
            self.cluster.room(cards)
            self.cluster.lose_pods(max(len(self.cluster.world.pods) - cards, 0))

    def _at_point(self, point: str) -> None:
        if point == "written":
            write, cluster = self.cluster.writes[-1], self.cluster
            fewer = len(cluster.worlds[write.target].service.engines) < write.ready
            most = write.spec is None or write.after == self._most(write.target, write.spec)
            if fewer and not most and len(cluster.engines) < need(write.lasting, write.target):
                self._broken.append(
                    f"t={write.at:.0f} {write.target} {write.before}->{write.after}: "
                    f"{len(cluster.engines)} serve {write.lasting:.2f}/s"
                )
        super()._at_point(point)

    @staticmethod
    def _most(target: str, spec: dict) -> int:
        pools = spec["pools"]
        return next(p["replicas"]["max"] for p in pools if p["targetRef"]["name"] == target)


def lived(seed: int, faults: int = FAULTS) -> tuple[SoldOutStory, tuple[str, ...]]:
    """A story that was lived, and what was wrong with it."""
    story = SoldOutStory(seed, faults)
    told = story.run()
    return story, (*violations(told), *story.broken)
