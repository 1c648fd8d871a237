"""Replicas on call: what is stated, which pods take no requests, and what is decided of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from servingslo.plugins import Key
from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.decisions import KnobDecision

# The knob and its actuator.
WARM_REPLICAS = "warm-replicas"
# Of each pod with the label, in the observation: whether it takes requests.
SERVES, ON_CALL = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmTargets:
    """Replicas that may sleep.

    least, most: how many beyond those that are awake. cost_ratio: of a sleeping replica, of the
    price of one that is awake.
    """

    most: int
    cost_ratio: float
    least: int = 0


TARGETS: Key[WarmTargets] = Key("warm", WarmTargets)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmDecision(KnobDecision):
    """Which replicas are awake.

    awake: the count that is needed awake. on_call: pods that take no requests. asleep: how many of
    them sleep. wake_seconds: from an order to wake one until it serves. cost_per_hour: of
    all replicas, None without a price. takes_out: pods that get no requests from now on. sleeps:
    of those, the idle ones that are put to sleep. wakes: pods that are woken and serve again.
    """

    awake: int
    on_call: tuple[str, ...] = ()
    asleep: int = 0
    wake_seconds: float
    cost_per_hour: float | None = None
    takes_out: tuple[str, ...] = ()
    sleeps: tuple[str, ...] = ()
    wakes: tuple[str, ...] = ()

    @property
    def orders(self) -> bool:
        """Whether anything is to be done."""
        return bool(self.takes_out or self.sleeps or self.wakes)

    def hold(self) -> "WarmDecision":
        """Do nothing to any pod."""
        return self.of_pods(())

    def of_pods(self, pods: Collection[str]) -> "WarmDecision":
        """Do it to these pods alone."""
        return replace(
            self,
            takes_out=tuple(one for one in self.takes_out if one in pods),
            sleeps=tuple(one for one in self.sleeps if one in pods),
            wakes=tuple(one for one in self.wakes if one in pods),
        )


# Its place in documents and in the status.
DECISION: Key[KnobDecision] = Key("warm", WarmDecision)


def warm_of(knobs: Mapping[str, object]) -> WarmDecision | None:
    """What is decided, from the decisions of all knobs; None if none may sleep."""
    found = knobs.get(WARM_REPLICAS)
    return found if isinstance(found, WarmDecision) else None


def pods_on_call(standing: InForce | None) -> frozenset[str]:
    """The pods that take no requests."""
    values = {} if standing is None else standing.values
    return frozenset(pod for pod, value in values.items() if value == ON_CALL)
