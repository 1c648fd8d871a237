"""What a decision reports of the split."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from servingslo.plugins import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitUse:
    """How variants share the traffic.

    rule: 'EvenByPod', or 'Observed' while a law is missing. shares_ratio: of the demand, by pool,
    at the counts decided.
    """

    rule: str
    shares_ratio: Mapping[str, float] = field(default_factory=dict)


SPLIT: Key[SplitUse] = Key("split", SplitUse)
