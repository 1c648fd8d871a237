"""What sheddable classes may order: up to their share of the most replicas."""

import math
from collections.abc import Callable

from servingslo.policy.replicas.context import TickContext


def count_with_shares(context: TickContext, wanted: int, count_for: Callable[[float], int]) -> int:
    """The count with what sheddable classes order; `wanted` if none may, or if none is known.

    wanted: for the classes that order all replicas that they need. count_for: the count that keeps
    the objectives with this much more load, in requests per second. A class of a smaller share adds
    its load only up to that share.
    """
    most = context.targets.replicas.maximum
    flows = context.estimate.classes
    sharing = sorted(
        (one for one in context.targets.classes if one.share_ratio > 0.0),
        key=lambda one: -one.share_ratio,
    )
    added = 0.0
    for one in sharing:
        flow = flows.get(one.name)
        if flow is None or flow.requests_per_second is None or most is None:
            continue
        added += flow.requests_per_second
        wanted = max(wanted, min(count_for(added), math.floor(one.share_ratio * most)))
    return wanted
