"""Memory of a whole operator: it does not grow with ticks, lost pods or resources made anew.

Counted is what its own code made and still holds. Caches of models are emptied first: each is full
at some time and then stays as it is. So are what models have evaluated of the present mix of
requests, which ends with it, and the simulated engines around the operator.
"""

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from pathlib import Path

import pytest
from tests.chaos.cluster import NAME, SCRAPE_PHASE_SECONDS
from tests.chaos.story import TICK_SECONDS, Operator, Story

import servingslo

WARM_TICKS, TICKS = 40, 160
LOST_EVERY_TICKS, ANEW_EVERY_TICKS = 8, 40
# A string kept at each tick is more than that (86 bytes); measured is 2 KiB in all at most.
MOST_BYTES = 60 * (TICKS - WARM_TICKS)
_FOLDER = Path(servingslo.__file__).parent
COUNTED = (
    tracemalloc.Filter(inclusive=True, filename_pattern=f"{_FOLDER}/*"),
    tracemalloc.Filter(inclusive=False, filename_pattern=f"{_FOLDER}/models/*"),
)


@pytest.fixture
def traced() -> Iterator[None]:
    """Allocations are followed, and nothing is said."""
    logger = logging.getLogger("servingslo")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    logger.setLevel(before)


def _held() -> tracemalloc.Snapshot:
    for cached in gc.get_objects():
        # Not isinstance, which a weak reference to what is gone answers with an error.
        if type(cached) is _lru_cache_wrapper and cached.__module__.startswith(
            ("servingslo.", "servingslo_lab.")
        ):
            cached.cache_clear()
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces(COUNTED)


async def _lived(story: Story) -> tuple[tracemalloc.Snapshot, tracemalloc.Snapshot]:
    cluster, found = story.cluster, []
    cluster.put(NAME, story.spec)
    operator = story.operator = Operator(cluster)
    for tick in range(TICKS):
        cluster.pass_to(tick * TICK_SECONDS + SCRAPE_PHASE_SECONDS + 2.0)
        if tick % LOST_EVERY_TICKS == 1:
            cluster.lose_pods(1)
        if tick % ANEW_EVERY_TICKS == 0:
            cluster.put(NAME, story.spec, uid=f"uid-{tick}")
        await operator.tick()
        if tick in {WARM_TICKS - 1, TICKS - 1}:
            found.append(_held())
    operator.end()
    return found[0], found[1]


@pytest.mark.acceptance
def test_what_the_operator_holds_does_not_grow(traced: None) -> None:
    """In half an hour one pod is lost every two minutes, and the resource is made anew thrice."""
    before, after = asyncio.run(_lived(Story(4, 0)))
    grown = after.compare_to(before, "lineno")
    assert sum(one.size_diff for one in grown) < MOST_BYTES, [str(one) for one in grown[:8]]
