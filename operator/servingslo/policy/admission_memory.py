"""What is computed for admission now and then, and holds for the ticks between."""

from dataclasses import dataclass
from typing import NamedTuple


class FullBatch(NamedTuple):
    """What a full batch of one engine may be with the mix of then.

    sequences: None without an inter-token objective.
    """

    mix_at_seconds: float
    sequences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionMemory:
    """The admitted rate, and what it was computed for.

    outdated_seconds: since when it is of another mix, or scaled from another number of replicas;
    None where it is not. steepness: see `sizing.GreatestRate`. full_batch: renewed a tick after the
    rate.
    """

    serving: int
    mix_at_seconds: float
    admitted_rate_per_second: float
    full_batch: FullBatch
    outdated_seconds: float | None = None
    steepness: float | None = None
