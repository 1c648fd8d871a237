"""The split, for a person on call."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.explain.format import counted, number, percent
from servingslo.features.variants.composition import SPLIT

_RULES = {"EvenByPod": "evenly by pod", "Observed": "as observed"}


class SplitText(Text):
    """How variants share the traffic."""

    def lines(self, reports: Reports) -> Iterator[str]:
        """The rule, the share of each pool, and what sold-out pools lack."""
        if (split := SPLIT.of(reports)) is None:
            return
        shares = (f"{name} {percent(share)}" for name, share in split.shares_ratio.items())
        yield f"Split: {_RULES.get(split.rule, split.rule)}: {', '.join(shares)}"
        if split.lacking:
            lacking = ", ".join(
                f"{name} lacks {counted(count, 'replica')}" for name, count in split.lacking.items()
            )
            extra = "the other pools do not carry that"
            if split.extra_hourly is not None:
                extra = f"other pools serve it for {number(split.extra_hourly)} more an hour"
            yield f"Sold out: {lacking}; {extra}"


PART = SplitText()
