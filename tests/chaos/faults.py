"""What can go wrong, drawn by a seed: kinds, when, for how long, and how badly."""

import random
from dataclasses import dataclass

# Of pods' pages; see `prometheus.distorted`.
PAGES = (
    "no-page", "truncated", "garbage", "negative", "nan", "some-nan", "counters-missing",
    "gauges-missing", "some-missing", "reset", "kept-page", "idle-gauges", "percent",
    "doubled-parts",
)  # fmt: skip
# Of Prometheus itself.
PROMETHEUS = (
    "down", "empty", "slow", "partial", "repeated", "shuffled", "two-servers", "second-source",
    "clock-ahead", "clock-behind", "scrapes-stop",
)  # fmt: skip
# Of requests to the API server, and of its watch.
SERVER = ("409", "410", "429", "500", "timeout", "cut", "watch-gap")
PODS = ("node-gone", "pod-restart", "begun-anew", "pod-slow", "gpu-shortage", "rollout")
OPERATOR = ("killed", "frozen", "thawed", "wall-clock")
PEOPLE = (
    "paused", "recommend", "bounds", "recreated", "deleted", "by-hand", "put-back", "hpa", "rival",
    "target-gone",
)  # fmt: skip
FAMILIES = {
    "page": PAGES, "prometheus": PROMETHEUS, "server": SERVER, "pods": PODS,
    "operator": OPERATOR, "people": PEOPLE,
}  # fmt: skip
KINDS = tuple(kind for kinds in FAMILIES.values() for kind in kinds)
# Where the operator may be killed or frozen: before and after each of its steps.
POINTS = (
    "read", "read-done", "view", "scalers", "look", "looked", "write", "written", "event",
    "status", "status-written",
)  # fmt: skip
LONGEST_TICKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. start, ticks: of the story's ticks, from the first of its storm. seed: its own."""

    kind: str
    start: int
    ticks: int
    seed: int

    def rng(self) -> random.Random:
        """What else of it is drawn."""
        return random.Random(self.seed)

    @property
    def end(self) -> int:
        """The first tick without it."""
        return self.start + self.ticks


def draw(rng: random.Random, count: int, ticks: int, only: tuple[str, ...] = ()) -> list[Fault]:
    """So many faults within so many ticks, by when they begin. only: of these kinds or families."""
    kinds = [
        [kind for kind in of if not only or kind in only or family in only]
        for family, of in FAMILIES.items()
    ]
    kinds = [of for of in kinds if of]
    faults = [
        Fault(
            kind=rng.choice(rng.choice(kinds)),
            start=rng.randrange(ticks),
            ticks=1 + min(int(rng.expovariate(0.5)), LONGEST_TICKS - 1),
            seed=rng.getrandbits(32),
        )
        for _ in range(count)
    ]
    return sorted(faults, key=lambda fault: fault.start)
