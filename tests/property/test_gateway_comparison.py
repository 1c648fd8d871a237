"""Whether a gateway counts all that engines get, over random traffic and scrapes out of step."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.gateway.comparison import NOT_COMPARED, Comparison, Told

TICK_SECONDS = 15.0
# Nothing comes for so long before what is past the gateway, and after all.
BEFORE_SECONDS = AFTER_SECONDS = 300.0
# One of so many goes past the gateway.
PAST_EVERY = 3


@dataclass(frozen=True)
class Story:
    """Traffic of one rate for a while, and how often and from when on each side is scraped."""

    seed: int
    rate_per_second: float
    seconds: float
    burst: int
    scrape_seconds: tuple[float, float]
    begin_seconds: tuple[float, float]
    first_token_seconds: float


def _pair(least: float, most: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.floats(least, most), st.floats(least, most))


STORIES = st.builds(
    Story,
    seed=st.integers(0, 10_000),
    rate_per_second=st.sampled_from([0.01, 0.1, 2.0, 40.0]),
    seconds=st.floats(60.0, 180.0) | st.floats(180.0, 3600.0),
    burst=st.integers(1, 30),
    scrape_seconds=_pair(5.0, 60.0),
    begin_seconds=_pair(0.0, 60.0),
    first_token_seconds=st.floats(0.05, 10.0),
)


def _compared(
    story: Story, *, past: bool, before_seconds: float = BEFORE_SECONDS
) -> tuple[Comparison, int]:
    """What is known at the end, and how many requests came."""
    random = np.random.default_rng(story.seed)
    count = random.poisson(story.rate_per_second * story.seconds / story.burst)
    came = np.sort(before_seconds + random.uniform(0, story.seconds, count))
    came = np.repeat(came, story.burst)
    passed = came[np.arange(len(came)) % PAST_EVERY > 0] if past else came
    counted = np.sort(came + random.exponential(story.first_token_seconds, len(came)))
    known = NOT_COMPARED
    last: list[float | None] = [None, None]
    end = before_seconds + story.seconds + AFTER_SECONDS
    for tick in np.arange(TICK_SECONDS, end, TICK_SECONDS):
        windows: list[Told | None] = []
        for side, times in enumerate((passed, counted)):
            every, begin = story.scrape_seconds[side], story.begin_seconds[side]
            scrape = begin + (tick - begin) // every * every if tick >= begin else None
            before, last[side] = last[side], scrape
            if before is None or scrape is None or scrape == before:
                windows.append(None)
                continue
            requests = np.diff(np.searchsorted(times, [before, scrape]))[0]
            windows.append(Told(float(requests), scrape - before))
        known = known.counted(*windows)
    return known, len(came)


@given(STORIES, st.sampled_from([0.0, BEFORE_SECONDS]))
def test_a_gateway_that_passes_everything_on_is_never_left_short(
    story: Story, before_seconds: float
) -> None:
    """However rarely each is scraped, and whether or not requests came before it was known."""
    known, _ = _compared(story, past=False, before_seconds=before_seconds)
    assert not known.undercounts


@given(STORIES)
def test_a_third_past_it_is_known_and_stays_known(story: Story) -> None:
    """From a few requests on, and after any quiet."""
    known, count = _compared(story, past=True)
    assert known.undercounts or count < 10
