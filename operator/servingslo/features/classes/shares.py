"""How many replicas sheddable classes may order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from servingslo.models.numerics import ROUNDING
from servingslo.plugins import Key
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.rules.needs import CountFor


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShares:
    """Of the most replicas, the shares up to which sheddable classes order some, by class."""

    ratios: Mapping[str, float]


SHARES: Key[ClassShares] = Key("classes", ClassShares)


def count_with_shares(context: TickContext, wanted: int, count_for: CountFor) -> int:
    """The count with what sheddable classes may order; `wanted` if none may, or if none is known.

    wanted: for the classes that order all replicas that they need. A class of a smaller share adds
    its load only up to that share.
    """
    stated, most = SHARES.of(context.targets.features), context.targets.replicas.maximum
    if stated is None or most is None:
        return wanted
    added = 0.0
    for name, share in sorted(stated.ratios.items(), key=lambda one: -one[1]):
        flow = context.estimate.classes.get(name)
        if flow is None or flow.requests_per_second is None:
            continue
        added += flow.requests_per_second
        wanted = max(wanted, min(count_for(added), math.floor(share * most + ROUNDING)))
    return wanted


PART = count_with_shares
