"""Pods that serve more slowly than their siblings: told by name, and only then."""

import pytest

from servingslo.estimation.law.rows import Row
from servingslo.estimation.pods.slowdown import LEAST_PACE_WINDOWS, observe, slow_pods
from servingslo.models.engine.service_time import ServiceLaw

LAW = ServiceLaw(
    step_fixed_seconds=0.01, step_per_sequence_seconds=0.0002, prefill_per_token_seconds=0.00003
)


def window(slowness: float) -> Row:
    """The equation of a window of 20 sequences whose steps took this many times the law's time."""
    step_seconds = slowness * LAW.step_seconds(20.0, 100.0)
    x = (1.0 / step_seconds, 20.0 / step_seconds, 100.0 / step_seconds)
    return Row(x=x, error_ratio=0.01, sequences=20.0, prefill_per_step_tokens=100.0)


def paces_of(slowness: dict[str, float], ticks: int = LEAST_PACE_WINDOWS):
    """The slowdowns after so many windows of each pod."""
    slowdowns = ()
    for _ in range(ticks):
        rows = {pod: [window(value)] for pod, value in slowness.items()}
        slowdowns = observe(slowdowns, rows, LAW, frozenset(slowness))
    return slowdowns


@pytest.mark.parametrize(
    ("slowness", "slow"),
    [
        pytest.param({"a": 1.0, "b": 1.0, "c": 2.0}, {"c": 2.0}, id="one-of-three"),
        pytest.param({"a": 0.8, "b": 2.4}, {"b": 3.0}, id="one-of-two"),
        pytest.param({"a": 3.0, "b": 3.0, "c": 3.0}, {}, id="all-alike"),
        pytest.param({"a": 1.0, "b": 1.2}, {}, id="scatter"),
        pytest.param({"a": 2.0}, {}, id="no-sibling"),
    ],
)
def test_a_pod_is_slow_only_beside_its_siblings(slowness, slow):
    """The ratio is that of the steps, whatever the law of all of them says."""
    found = {pod.pod: pod.ratio for pod in slow_pods(paces_of(slowness))}
    assert found == pytest.approx(slow)


def test_too_few_windows_name_nobody():
    """One window may be a long prefill."""
    assert slow_pods(paces_of({"a": 1.0, "b": 3.0}, LEAST_PACE_WINDOWS - 1)) == ()


def test_pods_that_are_gone_are_forgotten():
    """The state is bounded by the pods there are."""
    left = observe(paces_of({"a": 1.0, "b": 3.0}), {}, LAW, frozenset({"a"}))
    assert [slowdown.pod for slowdown in left] == ["a"]
    assert observe(left, {}, None, frozenset()) == ()
