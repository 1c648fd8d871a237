"""Storms over a resource with a CapacityBuffer, and what must hold of that.

    python -m tests.features.node_buffer.buffer_story 0:17

Its replicas are at any time between the owner's and the least of both bounds. After the resource is
deleted or paused, or a process starts that may write none, they are the owner's.
"""

import sys
from typing import Any

from tests.chaos.checker import violations
from tests.chaos.cluster import TARGET, Cluster
from tests.chaos.gateway import Objects
from tests.chaos.prometheus import NAMESPACE
from tests.chaos.shared import FAREWELLS, OwnersStory
from tests.chaos.story import FAULTS, Told

from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.features.node_buffer.actuator import NodeBuffer
from servingslo.features.node_buffer.buffers import capacity_buffers
from servingslo.policy.ports import ClusterMetrics

BUFFER = "llama"
_PATH = api_path("autoscaling.x-k8s.io/v1beta1", "capacitybuffers", namespace=NAMESPACE)
MOST, ALLOWED = 3, 2


class Buffer:
    """The CapacityBuffer of one workload, as its owner wrote it."""

    def __init__(self, cluster: Cluster, own: int) -> None:
        self.own, self.permitted = own, True
        self.objects = Objects(cluster)
        scaled = {"apiGroup": "apps", "kind": "Deployment", "name": TARGET}
        self.objects.put(_PATH, BUFFER, {"scalableRef": scaled, "replicas": own})
        self.broken: list[str] = []
        self.seen: set[int] = set()

    @property
    def _item(self) -> dict[str, Any]:
        return self.objects.items[f"{_PATH}/{BUFFER}"]

    @property
    def actuators(self) -> tuple[NodeBuffer, ...]:
        """The operator's own, on this object."""
        client: Any = self.objects
        return (NodeBuffer(capacity_buffers(client), ALLOWED if self.permitted else 0),)

    def added(self, metrics: ClusterMetrics) -> ClusterMetrics:
        """Nothing is measured of it."""
        return metrics

    def check(self, at: float) -> None:
        """What must hold of it at any time, whatever goes wrong."""
        found = self._item["spec"]["replicas"]
        self.seen.add(found)
        if not self.own <= found <= max(self.own, min(MOST, ALLOWED)):
            self.broken.append(f"t={at:.0f} buffer of {found}")

    def left(self) -> list[str]:
        """Why it is not as its owner had it."""
        found, noted = self._item["spec"]["replicas"], self._item["metadata"].get("annotations")
        return [f"{found} replicas, not {self.own}"] if found != self.own or noted else []


class BufferStory(OwnersStory):
    """A story with a buffer, whose nodes take two minutes."""

    def __init__(self, seed: int, fault_count: int = FAULTS, only: tuple[str, ...] = ()) -> None:
        super().__init__(seed, fault_count, only)
        self.spec = {
            **self.spec,
            "nodes": {"buffer": {"name": BUFFER, "max": MOST}, "lead": "2m"},
        }
        self.objects = Buffer(self.cluster, self.rng.choice((0, 0, 1)))
        self.farewell = self.rng.choice(FAREWELLS)


def lived(seed: int, faults: int = FAULTS) -> tuple[BufferStory, Told, tuple[str, ...]]:
    """A story, its record, and what was wrong with it."""
    story = BufferStory(seed, faults)
    told = story.run()
    return story, told, (*violations(told), *story.broken)


def main() -> None:
    """Stories by their seeds."""
    first, end = (int(one) for one in sys.argv[1].split(":"))
    faults = ticks = raised = wrong = 0
    for seed in range(first, end):
        story, told, broken = lived(seed)
        faults, ticks = faults + len(told.faults), ticks + told.ticks
        raised += len(story.objects.seen) > 1
        wrong += bool(broken)
        for one in broken:
            sys.stdout.write(f"seed {seed}: {one}\n")
    sys.stdout.write(
        f"{faults} faults in {end - first} stories of {ticks} ticks, {raised} with a raised "
        f"buffer, {wrong} with violations\n"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
