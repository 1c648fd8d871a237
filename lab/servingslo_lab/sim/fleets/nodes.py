"""Nodes of one replica each, which a node autoscaler orders for waiting pods and for a buffer.

A node takes minutes. One that nothing needs any more goes after a while. All are paid from their
order on, as clouds bill them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from servingslo_lab.sim.fleets.fleet import NodeSpec


@dataclass
class Nodes:
    """The nodes of a cluster.

    at: calls something at a later time. draw: the start time of the next node. placed: called when
    a node is up. ahead: nodes that are kept free. most: that there may be; None for any number.
    """

    spec: NodeSpec
    at: Callable[[float, Callable[[], None]], None]
    draw: Callable[[], float]
    placed: Callable[[], None]
    most: int | None = None
    up: int = 0
    starting: int = 0
    ahead: int = 0
    _now: float = 0.0
    _paid: float = 0.0
    _spare_since: float | None = field(default=None)

    def balance(self, now: float, holding: int, waiting: int) -> None:
        """Order what lacks for pods and buffer, and let go what is spare for long enough."""
        self._count_until(now)
        wanted = holding + waiting + self.ahead
        wanted = wanted if self.most is None else min(wanted, self.most)
        for _ in range(wanted - self.up - self.starting):
            self.starting += 1
            self.at(now + self.draw(), self._starts)
        if self.up <= max(wanted, holding):
            self._spare_since = None
            return
        if self._spare_since is None:
            self._spare_since = now
            self.at(now + self.spec.idle_seconds, self.placed)
        if now - self._spare_since >= self.spec.idle_seconds:
            self.up = max(wanted, holding)
            self._spare_since = None

    def paid_seconds(self, end: float) -> float:
        """Time of all nodes until then."""
        self._count_until(end)
        return self._paid

    def _starts(self) -> None:
        # Counted up to now by whoever is called.
        self.starting -= 1
        self.up += 1
        self.placed()

    def _count_until(self, now: float) -> None:
        self._paid += (self.up + self.starting) * (now - self._now)
        self._now = now
