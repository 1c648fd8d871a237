"""The verdict on batch limits: it rests on clients' records, and it can fail."""

import dataclasses

import pytest

from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo_lab.cli.demo.limits_verdict import LimitsFigures, Shares, missed, table

OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
    Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.1),
)
TTFT, TPOT = (objective.key for objective in OBJECTIVES)
GOOD = LimitsFigures(
    name="too-few", objectives=OBJECTIVES, bad=False, ended="BatchingChanged",
    limits_before="4 / 2048", limits_after="39 / 2048", same_template=False, most_new_pods=1,
    replicas=(3, 3), before=Shares(requests=100, within={TTFT: 0.2, TPOT: 1.0}),
    after=Shares(requests=900, within={TTFT: 0.99, TPOT: 0.995}),
)  # fmt: skip
HARM = dataclasses.replace(
    GOOD, name="harm", bad=True, ended="BatchingRolledBack", same_template=True
)


def test_what_was_promised_and_kept_is_no_miss() -> None:
    """Both kinds of fleet, and a table that names them."""
    assert missed(GOOD) == missed(HARM) == ()
    assert "too-few" in table([GOOD, HARM])


@pytest.mark.parametrize(
    ("figures", "change", "words"),
    [
        pytest.param(GOOD, {"ended": "BatchingRolledBack"}, "no other limits", id="taken-back"),
        pytest.param(GOOD, {"before": GOOD.after}, "held before", id="nothing-to-mend"),
        pytest.param(GOOD, {"after": GOOD.before}, "missed after", id="not-mended"),
        pytest.param(GOOD, {"after": None}, "missed after", id="never-settled"),
        pytest.param(GOOD, {"replicas": (3, 4)}, "replicas were", id="another-count"),
        pytest.param(GOOD, {"most_new_pods": 2}, "2 pods", id="two-at-once"),
        pytest.param(HARM, {"ended": "BatchingChanged"}, "not taken back", id="kept"),
        pytest.param(HARM, {"same_template": False}, "not taken back", id="not-to-the-letter"),
    ],
)
def test_what_is_not_kept_is_named(
    figures: LimitsFigures, change: dict[str, object], words: str
) -> None:
    """Each promise by itself."""
    (found,) = missed(dataclasses.replace(figures, **change))
    assert words in found
