"""The guard's verdict: what it lets pass, what it refuses, and that it says which row."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks import guard
from tests.benchmarks.guard_rows import ROWS, SEEDS, document_bursts, noisy_crowds, traffic_digest
from tests.benchmarks.guard_verdict import Run, read_runs, told, verdict, written

from servingslo.errors import InvalidInputError
from servingslo.sim.workloads import constant, generated, uniform_lengths

# Deviations over seeds: one point of share, and 2 % of cost.
SPREAD = (-1.0, 0.0, 1.0)


def runs(row: str, share: float = 95.0, hours: float = 10.0, decisions: str = "new") -> list[Run]:
    """Three seeds around these means."""
    return [
        Run(
            row=row,
            seed=seed,
            share_ratio=(share + by) / 100.0,
            replica_hours=hours * (1.0 + 0.02 * by),
            decisions=decisions,
            traffic=f"{row} {seed}",
        )
        for seed, by in enumerate(SPREAD)
    ]


def baseline(*rows: str) -> list[Run]:
    """What was before, of these rows."""
    return [run for row in rows for run in runs(row, decisions="old")]


def test_equal_decisions_are_unchanged():
    """Nothing is measured anew where nothing was decided otherwise."""
    before = baseline("a", "b")
    found = verdict(before, before)
    assert found.unchanged
    assert found.failures() == ()
    assert [line for line in told(found) if "unchanged" in line] == list(told(found))


def test_one_other_decision_is_a_change():
    """One seed of one row is enough."""
    before = baseline("a", "b")
    now = [replace(before[0], decisions="other"), *before[1:]]
    found = verdict(now, before)
    assert not found.unchanged
    assert [row.unchanged for row in found.rows] == [False, True]


@pytest.mark.parametrize(
    ("now", "failing"),
    [
        pytest.param((94.75, 10.0), (), id="share-within"),
        pytest.param((94.65, 10.0), ("mean over rows: 0.35 points",), id="share-of-the-mean"),
        pytest.param((95.0, 10.09), (), id="cost-within"),
        pytest.param((95.0, 10.11), ("mean over rows: 1.10 % more",), id="cost-of-the-mean"),
        pytest.param((99.0, 9.0), (), id="better"),
        pytest.param(
            (94.0, 10.5),
            ("mean over rows: 1.00 points", "mean over rows: 5.00 % more"),
            id="both",
        ),
    ],
)
def test_the_mean_over_rows_decides(now: tuple[float, float], failing: Sequence[str]):
    """0.3 points of share or 1 % of cost, on all rows alike; less is let pass."""
    share, hours = now
    found = verdict(
        [*runs("a", share, hours), *runs("b", share, hours)], baseline("a", "b")
    ).failures()
    assert len(found) == len(failing)
    for line, start in zip(found, failing, strict=True):
        assert line.startswith(start)


def test_rows_do_not_hide_one_that_breaks():
    """One row worse by three of its deviations fails though the mean gains."""
    now = [*runs("a", 91.9), *runs("b", 99.0)]
    (line,) = verdict(now, baseline("a", "b")).failures()
    assert line == "a: share 95.00 % → 91.90 %, 3.10 points lost of 3.00 allowed"
    assert verdict([*runs("a", 92.1), *runs("b", 99.0)], baseline("a", "b")).failures() == ()


def test_a_row_that_costs_three_deviations_more_fails():
    """6 % where one deviation is 2 %."""
    now = [*runs("a", hours=10.7), *runs("b", hours=9.0)]
    (line,) = verdict(now, baseline("a", "b")).failures()
    assert line == "a: 10.00 → 10.70 replica-hours, 7.0 % more of 6.0 % allowed"


def test_a_row_without_spread_may_move_a_little():
    """Every request in SLO with every seed is no reason to refuse a hundredth of a point."""
    before = [replace(run, share_ratio=1.0, replica_hours=10.0) for run in baseline("a")]
    near = [replace(run, share_ratio=0.9975, replica_hours=10.05) for run in runs("a")]
    far = [replace(run, share_ratio=0.9965) for run in near]
    assert verdict(near, before).failures() == ()
    assert any(line.startswith("a: share") for line in verdict(far, before).failures())


def test_a_part_is_compared_with_the_same_seeds():
    """One seed now is held to that seed of the baseline, with the spread of all."""
    before = baseline("a", "b")
    (change,) = verdict(runs("a")[:1], before).rows
    assert change.share_before_percent == pytest.approx(94.0)
    assert change.share_points == pytest.approx(0.0)
    assert change.share_deviation_points == pytest.approx(1.0)
    assert change.cost_deviation_ratio == pytest.approx(0.02)


def test_other_traffic_is_no_comparison():
    """Runs on other requests, or on a row that is not there, are refused and not judged."""
    before = baseline("a")
    with pytest.raises(InvalidInputError, match="traffic of a, seed 0"):
        verdict([replace(run, traffic="other") for run in before], before)
    with pytest.raises(InvalidInputError, match="b, seed 0"):
        verdict(runs("b"), before)


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path):
    """Every number survives; means and deviations stand beside the runs."""
    path = tmp_path / "baseline.json"
    path.write_text(written(baseline("a", "b"), {"planner": "x"}))
    assert read_runs(path) == baseline("a", "b")
    row = json.loads(path.read_text())["rows"]["a"]
    assert row["share_percent"] == pytest.approx({"mean": 95.0, "sd": 1.0})
    assert row["replica_hours"] == pytest.approx({"mean": 10.0, "sd": 0.2})


@pytest.mark.parametrize(
    "content", ["", "{}", '{"rows": {"a": 1}}', '{"rows": {"a": {"runs": [1]}}}']
)
def test_a_file_that_is_no_baseline_is_refused(content: str, tmp_path: Path):
    """Also where there is none at all."""
    path = tmp_path / "baseline.json"
    with pytest.raises(InvalidInputError, match="baseline"):
        read_runs(path)
    path.write_text(content)
    with pytest.raises(InvalidInputError, match="baseline"):
        read_runs(path)


def test_the_committed_baseline_has_every_row_and_seed():
    """So that `make guard` never ends for want of one."""
    there = {(run.row, run.seed) for run in read_runs(guard.BASELINE)}
    assert there == {(row, seed) for row in ROWS for seed in SEEDS}


def test_eight_rows_are_standard_and_six_unseen():
    """Also traffic that the planner was not made on is guarded, and its other knobs."""
    assert [row.unseen for row in ROWS.values()] == [False] * 8 + [True] * 6
    assert {row.unseen for row in ROWS.values() if row.knobs} == {True, False}


def test_rows_are_named_by_words():
    """A word takes every row that it stands in; an unknown one is refused."""
    assert list(guard.rows_named("")) == list(ROWS)
    assert list(guard.rows_named("flash, on-off")) == [
        "h100 flash",
        "l4 flash +knobs",
        "h100 on-off",
    ]
    with pytest.raises(InvalidInputError, match="'flesh'"):
        list(guard.rows_named("flesh"))


def test_documents_come_in_bursts_with_near_silence_between():
    """Minutes at a rate, more minutes at next to none, and never a negative step in time."""
    course = document_bursts(np.random.default_rng(1))
    rates = np.array(course.rates_per_second)
    times = np.array(course.times_seconds)
    assert np.all(np.diff(times) >= 0)
    assert course.duration_seconds == 3600.0
    busy = float(np.diff(times)[rates[:-1] > 1.0].sum()) / course.duration_seconds
    assert 0.1 < busy < 0.7
    assert rates.max() > 30 * rates.min()


def test_noise_lies_on_both_crowds():
    """Neighbouring minutes differ, and the crowds stand out."""
    course = noisy_crowds(np.random.default_rng(2))
    rates = np.array(course.rates_per_second)
    assert rates.max() > 3.0 * float(np.median(rates))
    assert len(set(np.round(rates, 6))) > 40


def test_a_digest_knows_traffic_apart():
    """One token more in one request is other traffic."""
    trace = generated(
        constant(5.0, 60.0), uniform_lengths((9, 99), (1, 9)), np.random.default_rng(1)
    )
    more = trace.prompt_tokens.copy()
    more[3] += 1
    assert traffic_digest(trace) == traffic_digest(replace(trace))
    assert traffic_digest(trace) != traffic_digest(replace(trace, prompt_tokens=more))


def test_a_run_is_kept_and_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same decisions from the same source; a second call reads what the first left."""
    row = ROWS["h100 very long mixture"]

    def short(seed: int):
        return generated(
            constant(20.0, 240.0), uniform_lengths((99, 999), (9, 99)), np.random.default_rng(seed)
        )

    monkeypatch.setitem(guard.ROWS, row.name, replace(row, traffic=short))
    first, other = (guard.run_of(row.name, 61, tmp_path / name) for name in ("a", "b"))
    assert first == other
    assert guard.run_of(row.name, 62, tmp_path / "a").traffic != first.traffic
    (kept,) = (tmp_path / "b").iterdir()
    kept.write_text(kept.read_text().replace(first.decisions, "kept"))
    assert guard.run_of(row.name, 61, tmp_path / "b").decisions == "kept"
