"""The engines' own bound on what they accept, as it is written together with batch limits.

A change restarts every pod, so it is made alone only if the bound is missing or far off. It need
not follow the replica count: each replica has its own bound.
"""

import math
from dataclasses import dataclass

from servingslo.policy.knobs.in_flight.engines import (
    QUEUE,
    bound_problem,
    is_asked,
    standing_limits,
)
from servingslo.policy.knobs.in_flight.gateway import HEADROOM
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.rules.batch_search import LimitsPlan

# Prefix of the values that another client took back.
REFUSED = "refused_"
# A bound that is off by less stays until the limits change. The right bound of one replica moves by
# a few per cent with every mix, and by half with another kind of requests.
FAR_OFF_RATIO = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineQueue:
    """The bound in the pod template, None if it has none, and the wanted bound.

    today, better: with the limits in force, and with the better ones. refused: the bound that was
    taken back.
    """

    before: int | None
    today: int
    better: int
    refused: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is worth a rollout of its own."""
        return _is_far(self.before, self.today) and _is_far(self.refused, self.today)


def engine_queue(context: TickContext, today: LimitsPlan, better: LimitsPlan) -> EngineQueue | None:
    """The engines' own bound; None if it is not to be written."""
    standing = standing_limits(context)
    if not is_asked(context.targets) or bound_problem(context) is not None or standing is None:
        return None
    return EngineQueue(
        before=standing.values[QUEUE],
        today=math.ceil(HEADROOM * today.in_flight_limit),
        better=math.ceil(HEADROOM * better.in_flight_limit),
        refused=standing.values.get(f"{REFUSED}{QUEUE}"),
    )


def _is_far(bound: int | None, wanted: int) -> bool:
    return bound is None or not wanted / FAR_OFF_RATIO <= bound <= FAR_OFF_RATIO * wanted
