"""Shares one number of GPUs among resources: minimum, priority, requests kept by a GPU.

A share is what a resource should have; a grant is what it may order now. A share that falls lowers
the grant at once, so that the donor steps down. A grant rises only into GPUs that nobody holds:
neither ordered replicas, nor grants of others, nor pods that still end.

Worked example: 8 GPUs, chat (priority 10) holds 2 and wants 6, batch (priority 0) holds 6 and wants
6, with a minimum of 1. The shares are 6 and 2. Batch is granted 2 at once; chat is granted 2 until
the first pods of batch are gone, then what they left, up to 6.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

# A quota that moves by this share around its mean is the same quota.
# Source: the operator's requirement that noise of 5 % of a quota moves no grant.
NOISE_RATIO = 0.05
# From the lowest to the highest value of such noise.
_WITHIN_NOISE = (1.0 + NOISE_RATIO) / (1.0 - NOISE_RATIO)
# Names of one message: a budget may have hundreds of resources.
MOST_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What one resource wants and holds, in whole GPUs.

    minimum_gpus: of its least replica count. ordered_gpus: of its ordered replicas. held_gpus: of
    ordered replicas and of pods that still end. gpus_per_replica: the least step. kept_per_gpu:
    requests per second that one more GPU keeps within their objectives. hold_seconds: its cold
    start. acts: whether it can step down; one that cannot keeps what it has. after_gpus: of the
    replicas that were just decided. waiting_gpus: wanted only for work that may wait.
    """

    minimum_gpus: int = 0
    wanted_gpus: int = 0
    ordered_gpus: int = 0
    held_gpus: int = 0
    gpus_per_replica: int = 1
    kept_per_gpu: float = 0.0
    hold_seconds: float = 0.0
    acts: bool = True
    after_gpus: int = 0
    waiting_gpus: int = 0

    @property
    def live_gpus(self) -> int:
        """GPUs that are wanted for what cannot wait."""
        return self.wanted_gpus - self.waiting_gpus

    def within(self, most: int | None) -> "Wants":
        """The same, with no more wanted than a further budget leaves for it; None is no budget."""
        if most is None or self.wanted_gpus <= most:
            return self
        wanted = max(most, self.minimum_gpus)
        waiting = max(wanted - self.live_gpus, 0)
        return replace(self, wanted_gpus=wanted, waiting_gpus=waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Wants):
    """What one resource claims. name: for people.

    shared_gpus: the last share, None before the first. needed_seconds: when it last wanted as much
    as that.
    """

    uid: str
    name: str
    priority: int = 0
    shared_gpus: int | None = None
    needed_seconds: float | None = None

    @property
    def ending_gpus(self) -> int:
        """GPUs of pods that are no longer ordered and still exist."""
        return max(self.held_gpus - self.ordered_gpus, 0)

    @property
    def base_gpus(self) -> int:
        """GPUs that are shared out to it or ordered by it now."""
        return max(self.shared_gpus or 0, self.ordered_gpus)

    @property
    def floor_gpus(self) -> int:
        """GPUs that are never taken from it: within its minimum, or all if it cannot step down."""
        return min(self.minimum_gpus, self.base_gpus) if self.acts else self.ordered_gpus


@dataclass(frozen=True, slots=True)
class Names:
    """Some resources: the first names, in the order of the rules, and how many there are."""

    first: tuple[str, ...] = ()
    count: int = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        """All of them."""
        return self.of("")

    def of(self, reader: str) -> str:
        """'n/chat, n/search and 3 more', for the tenants of a namespace; '' may read all names."""
        shown = [name for name in self.first if not reader or name.startswith(f"{reader}/")]
        if not shown:
            return "another namespace"
        more = self.count - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


NOBODY = Names()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one resource gets of its claim.

    share_gpus: what it should have. granted_gpus: what it may order now. donors: resources whose
    GPUs it waits for. holders: those that have more than their minimum while it is short.
    receivers: those that get what it has to release. needed_seconds: for its next claim.
    """

    claim: Claim
    share_gpus: int
    granted_gpus: int
    donors: Names = NOBODY
    holders: Names = NOBODY
    receivers: Names = NOBODY
    needed_seconds: float | None = None

    @property
    def lacking_gpus(self) -> int:
        """GPUs that are wanted and not granted."""
        return max(self.claim.wanted_gpus - self.granted_gpus, 0)

    @property
    def lost_per_second(self) -> float:
        """Requests per second that the lacking GPUs would keep."""
        return self.lacking_gpus * self.claim.kept_per_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The shares of one budget, by uid, and the GPUs that nobody holds or waits for.

    minimums_fit: whether the budget has room for every minimum.
    """

    shares: Mapping[str, Share]
    spare_gpus: int
    minimums_fit: bool

    @property
    def granted_gpus(self) -> int:
        """GPUs of all grants."""
        return sum(share.granted_gpus for share in self.shares.values())

    @property
    def wanted_gpus(self) -> int:
        """GPUs that all plans want."""
        return sum(share.claim.wanted_gpus for share in self.shares.values())

    @property
    def lacking_gpus(self) -> int:
        """GPUs that are wanted and not granted."""
        return sum(share.lacking_gpus for share in self.shares.values())

    @property
    def lost_per_second(self) -> float:
        """Requests per second that those would keep."""
        return sum(share.lost_per_second for share in self.shares.values())


NOTHING_SHARED = Sharing(shares={}, spare_gpus=0, minimums_fit=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The number of GPUs that is shared, without the noise of the stated one.

    gpus: shared now. stated: the last stated number, unchanged since since_seconds.
    """

    gpus: int
    stated: int
    since_seconds: float


def steady_quota(
    before: Quota | None, stated: int, hold_seconds: float, now_seconds: float
) -> Quota:
    """The quota after a stated number: a fall counts at once, a rise of noise once it lasts.

    hold_seconds: the longest cold start of the claimants.
    """
    if before is None:
        return Quota(gpus=stated, stated=stated, since_seconds=now_seconds)
    since = before.since_seconds if stated == before.stated else now_seconds
    noise = before.gpus < stated <= before.gpus * _WITHIN_NOISE
    waits = noise and now_seconds - since < hold_seconds
    return Quota(gpus=before.gpus if waits else stated, stated=stated, since_seconds=since)


def share_gpus(gpus: int, claims: Sequence[Claim], now_seconds: float) -> Sharing:
    """The grants of this tick. gpus: to share, 0 or more.

    Grants and pods that still end exceed `gpus` only if they did so before; then none rises.
    """
    claims = sorted(claims, key=lambda claim: (-claim.priority, -claim.kept_per_gpu, claim.uid))
    shares = _shares(gpus, claims, now_seconds)
    granted = _grants(gpus, claims, shares)
    spare = gpus - sum(
        max(shares[one.uid], granted[one.uid], one.ordered_gpus) + one.ending_gpus for one in claims
    )
    return Sharing(
        shares=_reported(claims, shares, granted, now_seconds),
        spare_gpus=max(spare, 0),
        minimums_fit=sum(max(claim.minimum_gpus, claim.floor_gpus) for claim in claims) <= gpus,
    )


def _shares(gpus: int, claims: Sequence[Claim], now_seconds: float) -> dict[str, int]:
    """What each should have, by uid: rounds in the order of the rules, each as far as GPUs last."""
    found = {claim.uid: claim.floor_gpus for claim in claims}
    left = max(gpus - sum(found.values()), 0)
    for _, group in groupby(claims, key=lambda claim: claim.priority):
        left = _fill(list(group), found, left, lambda claim: claim.minimum_gpus)
    for _, group in groupby(claims, key=lambda claim: claim.priority):
        equals = [claim for claim in group if claim.acts]
        rounds = (_in_use, lambda claim: _kept(claim, now_seconds), _live, _all_in_use, _wanted)
        for wanted in rounds:
            left = _fill(equals, found, left, wanted)
    return found


def _in_use(claim: Claim) -> int:
    """What it has and needs for live requests: its equals never take that."""
    return min(claim.live_gpus, claim.base_gpus)


def _live(claim: Claim) -> int:
    return claim.live_gpus


def _all_in_use(claim: Claim) -> int:
    return min(claim.wanted_gpus, claim.base_gpus)


def _kept(claim: Claim, now_seconds: float) -> int:
    """What it needed less than a cold start ago, at most one replica more than it has ordered."""
    since = claim.needed_seconds
    lasts = since is not None and now_seconds - since < claim.hold_seconds
    most = claim.ordered_gpus + claim.gpus_per_replica
    return min((claim.shared_gpus or 0) - claim.waiting_gpus, most) if lasts else 0


def _wanted(claim: Claim) -> int:
    return claim.wanted_gpus


def _fill(
    claims: Sequence[Claim], found: dict[str, int], left: int, wanted: Callable[[Claim], int]
) -> int:
    """Raise the shares towards `wanted`, best use of a GPU first; returns what is left.

    Among those alike, whoever has least gets the next replica, as long as one fits.
    """
    for _, group in groupby(claims, key=lambda claim: claim.kept_per_gpu):
        short = {one.uid: one for one in group if found[one.uid] < wanted(one)}
        missing = sum(wanted(one) - found[uid] for uid, one in short.items())
        if missing <= left:
            found.update({uid: wanted(one) for uid, one in short.items()})
            left -= missing
            continue
        heap = [(found[uid], uid) for uid in short]
        heapq.heapify(heap)
        while heap:
            has, uid = heapq.heappop(heap)
            step = min(short[uid].gpus_per_replica, wanted(short[uid]) - has)
            if 0 < step <= left:
                found[uid], left = has + step, left - step
                heapq.heappush(heap, (has + step, uid))
    return left


def _grants(gpus: int, claims: Sequence[Claim], shares: Mapping[str, int]) -> dict[str, int]:
    """What each may order now: its share, as far as GPUs are free."""
    found = {claim.uid: min(claim.ordered_gpus, shares[claim.uid]) for claim in claims}
    free = gpus - sum(claim.ordered_gpus + claim.ending_gpus for claim in claims)
    for claim in claims:
        missing = shares[claim.uid] - found[claim.uid]
        step = claim.gpus_per_replica
        rise = missing if missing <= free else max(free, 0) // step * step
        found[claim.uid] += rise
        free -= rise
    return found


def _reported(
    claims: Sequence[Claim],
    shares: Mapping[str, int],
    granted: Mapping[str, int],
    now_seconds: float,
) -> dict[str, Share]:
    """Each share, with those at whose expense it is or who get what it releases."""
    releasing = {one.uid: one.name for one in claims if _releases(one, granted[one.uid])}
    above = {one.uid: one.name for one in claims if shares[one.uid] > one.minimum_gpus}
    waiting = {one.uid: one.name for one in claims if shares[one.uid] > one.ordered_gpus}
    found = {}
    for claim in claims:
        share, grant = shares[claim.uid], granted[claim.uid]
        waits = share > grant
        lacks = claim.wanted_gpus > grant and not waits
        needs = claim.acts and claim.wanted_gpus >= share
        found[claim.uid] = Share(
            claim=claim,
            share_gpus=share,
            granted_gpus=grant,
            donors=_others(releasing, claim) if waits else NOBODY,
            holders=_others(above, claim) if lacks else NOBODY,
            receivers=_others(waiting, claim) if grant < claim.ordered_gpus else NOBODY,
            needed_seconds=now_seconds if needs else claim.needed_seconds,
        )
    return found


def _others(names: Mapping[str, str], claim: Claim) -> Names:
    """The resources of these names but one. names: by uid."""
    others: Iterable[str] = (name for uid, name in names.items() if uid != claim.uid)
    return Names(tuple(islice(others, MOST_NAMES)), len(names) - (claim.uid in names))


def _releases(claim: Claim, granted: int) -> bool:
    return claim.held_gpus > granted or claim.ending_gpus > 0


def with_drawn(sharing: Sharing, uid: str, gpus: int) -> Sharing:
    """The sharing after a resource ordered this many GPUs, its grant included.

    What is beyond its grant is taken from the spare GPUs.
    """
    share = sharing.shares[uid]
    beyond = gpus - share.granted_gpus
    if beyond <= 0:
        return sharing
    drawn = replace(share, share_gpus=max(share.share_gpus, gpus), granted_gpus=gpus)
    return replace(
        sharing,
        shares={**sharing.shares, uid: drawn},
        spare_gpus=max(sharing.spare_gpus - beyond, 0),
    )
