"""A few resources under one budget in virtual ticks: grants, orders within them, pods that end."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.features.budgets.sharing import Claim, Quota, Sharing, share_gpus, steady_quota

TICK_SECONDS = 15.0
# Keys of labels, and whether an object can have one.
LABELS = {
    "": False,
    "team": True,
    "Team.A_b-c": True,
    "example.com/team": True,
    "k" * 63: True,
    "k" * 64: False,
    "-team": False,
    "team-": False,
    "a b": False,
    "team=serving": False,
    "/team": False,
    "example.com/": False,
    "a/b/c": False,
    "Example.com/team": False,
    "a..b/team": False,
    "-a.com/team": False,
    "teäm": False,
}


@dataclass(slots=True)
class BudgetWorld:
    """Each tick: share, then every resource orders what it wants within its grant.

    claims: by uid. ending_ticks: how long the pod of a removed replica holds its GPUs.
    """

    claims: dict[str, Claim]
    ending_ticks: int = 2
    now_seconds: float = 0.0
    quota: Quota | None = None
    _ending: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _tick: int = 0

    def tick(self, gpus: int, wanted: Mapping[str, int] | None = None) -> Sharing:
        """One tick under a stated number of GPUs. wanted: by uid; others want what they wanted."""
        self._tick += 1
        self.now_seconds += TICK_SECONDS
        for uid, number in (wanted or {}).items():
            self.claims[uid] = replace(self.claims[uid], wanted_gpus=number)
        hold = max(claim.hold_seconds for claim in self.claims.values())
        self.quota = steady_quota(self.quota, gpus, hold, self.now_seconds)
        sharing = share_gpus(self.quota.gpus, tuple(self.claims.values()), self.now_seconds)
        for uid, claim in self.claims.items():
            self.claims[uid] = self._ordered(claim, sharing)
        return sharing

    def restart(self) -> None:
        """A new process: shares, grants and the quota's memory are gone; orders and pods stay."""
        self.quota = None
        for uid, claim in self.claims.items():
            self.claims[uid] = replace(claim, shared_gpus=None, needed_seconds=None)

    def used_gpus(self) -> int:
        """GPUs of ordered replicas and of pods that still end."""
        return sum(claim.held_gpus for claim in self.claims.values())

    def ordered_gpus(self) -> dict[str, int]:
        """GPUs of ordered replicas, by uid."""
        return {uid: claim.ordered_gpus for uid, claim in self.claims.items()}

    def _ordered(self, claim: Claim, sharing: Sharing) -> Claim:
        share = sharing.shares[claim.uid]
        each = claim.gpus_per_replica
        after = min(max(claim.wanted_gpus, claim.minimum_gpus), share.granted_gpus) // each * each
        after = after if claim.acts else claim.ordered_gpus
        ending = self._ending.setdefault(claim.uid, [])
        if after < claim.ordered_gpus:
            ending.append((self._tick + self.ending_ticks, claim.ordered_gpus - after))
        ending[:] = [(until, number) for until, number in ending if until > self._tick]
        return replace(
            claim,
            ordered_gpus=after,
            held_gpus=after + sum(number for _, number in ending),
            shared_gpus=share.share_gpus,
            needed_seconds=share.needed_seconds,
        )
