"""Of several pools, the one that the route is read for counts the answers of all."""

from collections.abc import Mapping

from servingslo.features.availability.answers import REPORT, AvailabilityReport
from servingslo.policy.pools.insights import FleetInsight, FleetTick


class FleetAvailability(FleetInsight):
    """Answered requests of the whole route."""

    key = REPORT

    def whole(
        self, tick: FleetTick, _memories: Mapping[str, object]
    ) -> tuple[AvailabilityReport | None, None]:
        """As of the pool that counts them."""
        return REPORT.of(tick.writer.features), None


PART = FleetAvailability()
