"""Windows between short scrapes put together, until they are long enough to judge a forecast by.

What judges forecasts was chosen at scrapes 15 s apart: by how much a rate may be beyond what was
expected, when a burst is over, for how many outcomes evidence lasts. A window of 5 s swings by the
root of three as much and comes three times as often, so that one crowd falls back and rises again
several times within itself, which reads as bursts that recur. The filters see every window.
"""

from dataclasses import dataclass, replace

from servingslo.estimation.rate_filters import RateWindow

# Windows of scrapes 15 s apart, Prometheus' default, stand alone, although they jitter.
LEAST_SPAN_SECONDS = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Windows that are one for those who judge. ended: whether it is long enough."""

    window: RateWindow
    ended: bool


def with_window(begun: RateWindow | None, window: RateWindow, gap_seconds: float) -> Span:
    """What was begun with one more window, which ended `gap_seconds` after the one before.

    Engines that are scraped at different moments give windows that overlap, so a window counts for
    no more time than has passed. What was begun before a hole in the windows is left out.
    """
    seconds = min(window.seconds, gap_seconds)
    if begun is None or gap_seconds > LEAST_SPAN_SECONDS:
        long_enough = seconds >= LEAST_SPAN_SECONDS
        return Span(
            window=window if long_enough else replace(window, seconds=seconds), ended=long_enough
        )
    together = begun.seconds + seconds
    share = seconds / together
    joined = replace(
        window,
        rate_per_second=begun.rate_per_second
        + share * (window.rate_per_second - begun.rate_per_second),
        error_ratio=begun.error_ratio + share * (window.error_ratio - begun.error_ratio),
        seconds=together,
    )
    return Span(window=joined, ended=together >= LEAST_SPAN_SECONDS)
