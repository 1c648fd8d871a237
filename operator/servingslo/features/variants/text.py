"""The split, for a person on call."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.explain.format import percent
from servingslo.features.variants.composition import SPLIT

_RULES = {"EvenByPod": "evenly by pod", "Observed": "as observed"}


class SplitText(Text):
    """How variants share the traffic."""

    def lines(self, reports: Reports) -> Iterator[str]:
        """The rule, and the share of each pool."""
        if (split := SPLIT.of(reports)) is not None:
            shares = (f"{name} {percent(share)}" for name, share in split.shares_ratio.items())
            yield f"Split: {_RULES.get(split.rule, split.rule)}: {', '.join(shares)}"


PART = SplitText()
