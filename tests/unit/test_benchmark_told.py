"""The rule that is told of a rise late: what it plans for before and after."""

from dataclasses import replace

import numpy as np
from tests.benchmarks.matrix_told import FINE_SECONDS, Setting, Told

from servingslo.policy.inputs import Observation

SETTING = Setting(work_per_replica=0.5, extra_ratio=0.0, max_in_flight=7)
# Work of 1 for 300 s, then of 10.
WORK = np.repeat([1.0, 10.0], int(300.0 / FINE_SECONDS))


def wanted(now: float, setting: Setting = SETTING) -> int | None:
    """The count at this time of a rule that is told 30 s late and looks 90 s ahead."""
    rule = Told(WORK, setting, ahead_seconds=90.0, begins_seconds=300.0, told_seconds=330.0)
    return rule.decide(Observation(time_seconds=now, namespace="a", name="b")).replicas


def test_the_rise_is_unknown_until_it_is_told():
    """Work of 1 at half a replica's is 2 replicas, also after the rise began."""
    assert [wanted(now) for now in (0.0, 250.0, 315.0)] == [2, 2, 2]


def test_from_then_on_all_that_comes_is_known():
    """Work of 10 needs 20 replicas; what is ordered on top ends a cold start after being told."""
    assert wanted(330.0) == 20
    more = replace(SETTING, extra_ratio=0.5)
    assert [wanted(now, more) for now in (330.0, 419.0, 420.0)] == [30, 30, 20]
