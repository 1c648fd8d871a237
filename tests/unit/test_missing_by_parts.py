"""A histogram of which engines lack different parts: its sum here, its buckets there."""

import pytest
from tests.unit.engine_pages import vllm_page
from tests.unit.test_missing_series import _BUCKETS, _conditions, _without

from servingslo.explain.text import text


@pytest.mark.parametrize("metric", list(_BUCKETS))
def test_each_part_that_some_engine_lacks_is_named(metric) -> None:
    """No part is missing everywhere, and yet nobody observes the objective."""
    buckets = _BUCKETS[metric]
    lost = {"chat-0": buckets, "chat-1": buckets.replace("_bucket", "_sum")}
    told, decision = _conditions(
        lambda pod, seconds: _without(vllm_page(8.0 * seconds), lost[pod]), metric=metric
    )[-1]
    assert str(told["SLOMet"].reason) == "MetricsMissing"
    for words in (told["SLOMet"].message, text(decision), told["MetricsFresh"].message):
        assert all(part in words for part in lost.values())
