"""An insight over several pools: what a feature reports of all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servingslo.plugins import Aspect, Key
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import ObjectiveReport
from servingslo.policy.insights import INSIGHT
from servingslo.policy.planner import Seen
from servingslo.policy.pools.decision import PathUse
from servingslo.policy.pools.inputs import FleetTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTick:
    """One tick of several pools, after their counts are decided.

    seen, decisions: by pool. objectives: of a whole path, as observed.
    """

    targets: FleetTargets
    seen: Mapping[str, Seen]
    decisions: Mapping[str, Decision]
    path: PathUse | None
    objectives: tuple[ObjectiveReport, ...]
    now_seconds: float


class FleetInsight:
    """What one feature learns of all pools together; by default what the pool that has it reports.

    key: as of its insight.
    """

    def __init__(self, key: Key[Any]) -> None:
        self.key = key

    def whole(self, tick: FleetTick, _memories: Mapping[str, object]) -> tuple[object, object]:
        """The report on all pools and the memory; None each if there is nothing."""
        found = (self.key.of(one.features) for one in tick.decisions.values())
        return next((one for one in found if one is not None), None), None

    def of_writer(self, reports: Mapping[str, object], _whole: Mapping[str, object]) -> object:
        """The report of the pool that the route is read for, once that of the whole is known."""
        return self.key.of(reports)


FLEET_INSIGHT: Aspect[FleetInsight] = Aspect("fleet")
Values = dict[str, object]


def whole(tick: FleetTick, memories: Mapping[str, object]) -> tuple[Values, Values]:
    """Reports on all pools, and the memories, by name of the feature."""
    found = {one.key.name: one.whole(tick, memories) for one in _parts()}
    return _known({name: report for name, (report, _) in found.items()}), _known(
        {**memories, **{name: memory for name, (_, memory) in found.items()}}
    )


def of_writer(reports: Mapping[str, object], told: Mapping[str, object]) -> Values:
    """The reports of the pool that the route is read for. told: of all pools."""
    return _known({**reports, **{one.key.name: one.of_writer(reports, told) for one in _parts()}})


def _parts() -> tuple[FleetInsight, ...]:
    own = {one.key.name: one for one in FLEET_INSIGHT.parts()}
    keys = (one.key for one in INSIGHT.parts())
    return tuple(own.get(key.name) or FleetInsight(key) for key in keys)


def _known(values: Values) -> Values:
    return {name: value for name, value in values.items() if value is not None}
