"""The checker sees each wrong that it is there for: records by hand, one wrong in each."""

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.chaos.checker import _of_writes, most, need, violations
from tests.chaos.cluster import TARGET, Write
from tests.chaos.story import DECODE, PREFILL, Ending, Told, of_pools

from servingslo.api.convert import fleet_from_spec

SPEC: dict[str, Any] = {"replicas": {"min": 1, "max": 8}}
WRITE = Write(
    at=900.0, before=2, after=3, spec=SPEC, others=(), reading=7, failed=None, unseen=(), gross=(),
    rate=2.5, lasting=2.5, waiting=0.0, ready=2, cold_start=60.0, sick=0,
)  # fmt: skip
LINE = "changed namespace=x name=y target=Deployment/z knob=replicas replicas=2->3 outcome=written"
ENDING = Ending(
    counts={TARGET: 3},
    rate=2.5,
    peak=2.5,
    status={
        "replicas": {"desired": 3},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Ready"},
            {"type": "MetricsFresh", "status": "True", "reason": "MetricsFresh"},
        ],
    },
    spec=SPEC,
    learned_bytes=900,
)


def _told(*writes: Write, ending: Ending = ENDING, lines: tuple[str, ...] = ()) -> Told:
    told = Told(seed=1, faults=[], ticks=100, writes=list(writes), ending=ending)
    said = [LINE.replace("2->3", f"{w.before}->{w.after}") for w in writes]
    told.log = [(0.0, "INFO", line) for line in (*said, *lines)]
    return told


def test_a_good_story_has_no_violation() -> None:
    """One step up for a load that asks for it, told once."""
    assert violations(_told(WRITE)) == []


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        pytest.param({"spec": None}, "no resource", id="deleted"),
        pytest.param({"spec": {**SPEC, "mode": "Paused"}}, "Paused", id="paused"),
        pytest.param({"spec": {**SPEC, "mode": "Recommend"}}, "Recommend", id="recommend"),
        pytest.param({"others": ("HPA",)}, "HPA", id="owner"),
        pytest.param({"spec": {"replicas": {"min": 4, "max": 8}}}, "outside", id="below-min"),
        pytest.param({"spec": {"replicas": {"min": 1, "max": 2}}}, "outside", id="above-max"),
        pytest.param({"rate": 0.1, "after": 7}, "more than", id="above-physics"),
        pytest.param({"before": 4, "failed": "no metrics"}, "without sight", id="blind"),
        pytest.param({"before": 4, "unseen": ("a",)}, "unseen", id="unseen"),
        pytest.param({"before": 4, "gross": ("a",)}, "cannot be", id="gross"),
        pytest.param({"before": 4, "after": 1}, "fewer than 2", id="below-need"),
    ],
)
def test_a_forbidden_write_is_seen(changes: dict[str, Any], wrong: str) -> None:
    """And nothing else is said of it."""
    found = violations(_told(replace(WRITE, **changes)))
    assert len(found) == 1
    assert wrong in found[0]


POOLED: dict[str, Any] = {
    "pools": [
        {"role": "Prefill", "targetRef": {"name": PREFILL}, "replicas": {"min": 0, "max": 8}},
        {"role": "Decode", "targetRef": {"name": DECODE}, "replicas": {"min": 1, "max": 8}},
    ],
    "gpus": 4,
}
IN_POOL = replace(WRITE, spec=POOLED, target=DECODE, ordered={PREFILL: 1, DECODE: 3})


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        pytest.param({}, "", id="good"),
        pytest.param({"ordered": {PREFILL: 2, DECODE: 3}}, "5 GPUs", id="gpus"),
        pytest.param({"ordered": {PREFILL: 2, DECODE: 3}, "edited": True}, "", id="edited-by-hand"),
        pytest.param(
            {"target": PREFILL, "before": 1, "after": 0, "ordered": {PREFILL: 0, DECODE: 3}},
            "zero alone",
            id="zero-alone",
        ),
        pytest.param(
            {"target": PREFILL, "before": 3, "after": 9, "ordered": {PREFILL: 3, DECODE: 1}},
            "outside",
            id="own-bounds",
        ),
        pytest.param(
            {"before": 3, "after": 1, "ordered": {PREFILL: 1, DECODE: 1}},
            "fewer than 2",
            id="own-physics",
        ),
    ],
)
def test_a_forbidden_write_of_a_pool_is_seen(changes: dict[str, Any], wrong: str) -> None:
    """Each pool has its bounds and its physics; GPUs and zero are over all of them."""
    told = _told(replace(IN_POOL, **changes))
    told.ending = None
    found = list(_of_writes(told))
    assert (wrong in found[0]) if wrong else found == []


def test_pools_beside_their_bound_at_the_end_are_seen() -> None:
    """A role that stayed too small while GPUs were free, and more GPUs than there may be."""
    good = replace(ENDING, counts={PREFILL: 1, DECODE: 2}, spec=POOLED)
    assert violations(_told(ending=replace(good, status={**good.status}))) == []
    short = replace(good, counts={PREFILL: 2, DECODE: 1})
    assert any("llama-decode has 1" in line for line in violations(_told(ending=short)))
    many = replace(good, counts={PREFILL: 8, DECODE: 2}, spec={"pools": POOLED["pools"]})
    assert any("llama-prefill has 8" in line for line in violations(_told(ending=many)))
    assert not any(
        "llama-prefill has" in line for line in violations(_told(ending=replace(many, rate=0.2)))
    )
    over = replace(good, counts={PREFILL: 1, DECODE: 4})
    assert any("5 GPUs of at most 4" in line for line in violations(_told(ending=over)))


def test_the_spec_of_pools_is_one_that_the_api_takes() -> None:
    """Stories begin with it."""
    whole = {
        "targetRef": {"kind": "Deployment", "name": TARGET},
        "objectives": [{"metric": "ttft", "percentile": 95, "threshold": "2s"}],
        "replicas": {"min": 1, "max": 8},
        "batching": {"mode": "Off"},
    }
    assert len(fleet_from_spec(of_pools(whole, random.Random(1))).pools) > 1


def test_what_the_user_allows_at_most_is_obeyed_without_sight() -> None:
    """Numbers that cannot be do not stand above the bounds that the user has set."""
    lowered = replace(WRITE, before=9, after=2, gross=("a",), failed="no metrics", lasting=9.0)
    assert violations(_told(replace(lowered, spec={"replicas": {"min": 1, "max": 2}}))) == []
    assert violations(_told(replace(lowered, spec={"replicas": {"min": 1, "max": 3}})))


def test_two_writes_for_one_plan_are_seen() -> None:
    """Two writes with no reading of metrics between."""
    again = replace(WRITE, before=3, after=4)
    assert "second write" in violations(_told(WRITE, again))[0]


def test_a_silent_write_and_an_invented_one_are_seen() -> None:
    """The log says what was written, each once."""
    silent = _told(WRITE)
    silent.log = []
    assert "not told" in violations(silent)[0]
    assert "not written" in violations(_told(lines=(LINE,)))[0]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        pytest.param({"counts": {TARGET: 1}}, "not 2 to", id="too-few"),
        pytest.param({"counts": {TARGET: 9}}, "not 2 to", id="too-many"),
        pytest.param({"counts": {TARGET: 8}, "rate": 0.5, "peak": 0.5}, "not 1 to", id="no-peak"),
        pytest.param({"learned_bytes": 1_000_000}, "bytes", id="memory"),
        pytest.param({"status": {**ENDING.status, "conditions": []}}, "Ready is", id="not-ready"),
        pytest.param({"status": {**ENDING.status, "replicas": {}}}, "status tells", id="status"),
    ],
)
def test_a_bad_end_is_seen(changes: dict[str, Any], wrong: str) -> None:
    """What has not converged, or tells of another count."""
    assert any(wrong in line for line in violations(_told(ending=replace(ENDING, **changes))))


def test_a_reserve_may_keep_the_peak_of_the_story() -> None:
    """What is more than the present rate asks for, and no more than the greatest one does."""
    kept = replace(ENDING, counts={TARGET: 8}, rate=0.5)
    assert not any(f"{TARGET} has" in line for line in violations(_told(ending=kept)))


def test_a_flood_of_lines_and_a_fault_of_the_operator_are_seen() -> None:
    """Logs are bounded, and an exception is never normal."""
    assert any("log lines" in line for line in violations(_told(lines=1000 * ("x",))))
    fault = ("failed namespace=a name=b ZeroDivisionError()",)
    assert any("fault of the operator" in line for line in violations(_told(lines=fault)))


def test_physics_grows_with_the_load() -> None:
    """More is needed, and more is allowed, for more requests and for those that wait."""
    assert need(0.0) == 1
    assert need(3.1) == 3
    assert most(3.0, 0.0, 0) < most(3.0, 120.0, 0) < most(4.0, 120.0, 2)
