"""What a decision reports of the parts of the latency."""

from dataclasses import dataclass
from enum import StrEnum

from servingslo.plugins import Key


class Part(StrEnum):
    """A part of the time of a request, in the order in which a request passes it.

    GATEWAY: the gateway's time less the engine's: its own work, its connections and the network
    between. COMPUTE: of servers that answer a request at once. OTHER: of the engine's server, such
    as reading the request and splitting text into tokens.
    """

    GATEWAY = "gateway"
    QUEUE = "queue"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"
    COMPUTE = "compute"
    OTHER = "other"


class PartSource(StrEnum):
    """How a mean is known. DERIVED: as a difference of two measured means."""

    MEASURED = "measured"
    DERIVED = "derived"
    STATED = "stated"
    ASSUMED = "assumed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """One part over the recent window.

    percentile_seconds: at the report's percentile, of this part alone; None for a difference, whose
    percentiles are not the difference of two. missing: why the mean is not measured; '' if it is.
    grown_seconds: above its mean while the objectives were met; None while they are met.
    """

    part: Part
    source: PartSource
    mean_seconds: float | None = None
    percentile_seconds: float | None = None
    missing: str = ""
    grown_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReport:
    """The parts of the time of a request.

    percentile: the greatest of the objectives, percent. whole_mean_seconds,
    whole_percentile_seconds: of whole requests, whole_least_seconds: what it is at least;
    by_gateway: as the gateway measures them, else as
    the engines do. met_at_seconds: when the objectives were last met, as clients see them; None
    while they are, or if they never were. grew: the part that grew most since then, None if none
    did.
    """

    percentile: float
    parts: tuple[PartReport, ...]
    whole_mean_seconds: float | None = None
    whole_percentile_seconds: float | None = None
    whole_least_seconds: float | None = None
    by_gateway: bool = False
    met_at_seconds: float | None = None
    grew: Part | None = None

    def of(self, part: Part) -> PartReport | None:
        """The report on one part; None if a request does not have it."""
        return next((one for one in self.parts if one.part is part), None)


LATENCY: Key[LatencyReport] = Key("latency", LatencyReport)
