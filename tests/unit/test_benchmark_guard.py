"""The guard's verdict: what it lets pass, what it refuses, and whom it names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks import guard
from tests.benchmarks.guard_row import KINDS
from tests.benchmarks.guard_rows import ROWS
from tests.benchmarks.guard_verdict import (
    COLD,
    PAST,
    Run,
    read_runs,
    report,
    verdict,
    written,
)

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.policies import SIMPLE, STATIC
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths

# Deviations over seeds: a tenth of a point of share, and 2 % of cost.
SPREAD = (-0.1, 0.0, 0.1)


def runs(row: str, share: float = 99.5, hours: float = 10.0, *, way: str = COLD,
         decisions: str = "new") -> list[Run]:  # fmt: skip
    """Three seeds around these means."""
    return [
        Run(
            row=row,
            way=way,
            seed=seed,
            share_ratio=(share + by) / 100.0,
            replica_hours=hours * (1.0 + 0.2 * by),
            decisions=decisions,
            traffic=f"{row} {seed}",
        )
        for seed, by in enumerate(SPREAD)
    ]


def baseline(*rows: str) -> list[Run]:
    """What was before, of these rows."""
    return [run for row in rows for run in runs(row, decisions="old")]


def test_equal_decisions_are_unchanged():
    """Nothing is compared where nothing was decided otherwise; one other decision is a change."""
    before = baseline("a", "b")
    assert list(report(verdict(before, before))) == [
        "unchanged: every decision is that of the baseline"
    ]
    found = verdict([replace(before[0], decisions="other"), *before[1:]], before)
    assert [row.unchanged for row in found.rows] == [False, True]


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        pytest.param((99.2, 10.0), (98.95, 5.0), "a, cold: 99.20 @ 10.00 → 98.95 @ 5.00 lost",
                     id="lost whatever it saves"),
        pytest.param((99.2, 10.0), (99.01, 10.0), "", id="still kept"),
        pytest.param((98.0, 10.0), (97.6, 5.0), "of 0.30 points allowed", id="lost by more"),
        pytest.param((98.0, 10.0), (97.8, 99.0), "", id="lost alike has no price"),
        pytest.param((98.0, 10.0), (99.1, 30.0), "", id="won at any price"),
        pytest.param((99.2, 10.0), (99.9, 10.7), "price +7.0 % of 6.0 % allowed", id="dearer"),
    ],
)  # fmt: skip
def test_the_promise_comes_first(before, now, words):
    """A row that is lost is lost; its price is judged only where it is kept now and before."""
    whole = [*runs("a", *before), *runs("b", 99.5, 10.0)]
    found = verdict([*runs("a", *now), *runs("b", 99.5, 1.0)], whole).failures()
    assert len(found) == bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize(("hours", "failing"), [(10.09, 0), (10.11, 1), (9.0, 0)])
def test_the_mean_over_kept_rows_decides(hours: float, failing: int):
    """1 % of the price, on all rows alike; less is let pass, and a lost row does not count."""
    now = [*runs("a", hours=hours), *runs("b", hours=hours), *runs("c", 97.0, 1.0)]
    found = verdict(now, [*baseline("a", "b"), *runs("c", 97.0, 10.0)]).failures()
    assert len(found) == failing
    assert all(line.startswith("mean over kept rows: price +1.10 %") for line in found)


def test_a_row_without_spread_may_move_a_little():
    """Where all seeds cost the same, 1.4 % is let pass and 1.6 % is not."""
    before = [replace(run, share_ratio=1.0, replica_hours=10.0) for run in baseline("a", "b")]
    near, far = (
        [replace(run, replica_hours=hours if run.row == "a" else 9.9) for run in before]
        for hours in (10.14, 10.16)
    )
    assert verdict(near, before).failures() == ()
    assert [line[:2] for line in verdict(far, before).failures()] == ["a,"]


def test_a_part_is_compared_with_the_same_seeds():
    """One seed now is held to that seed of the baseline, with the spread of all."""
    (change,) = verdict(runs("a")[:1], baseline("a", "b")).rows
    assert change.before.share_percent == pytest.approx(99.4)
    assert change.price_ratio == pytest.approx(0.0)
    assert change.price_deviation_ratio == pytest.approx(0.02)


def test_other_traffic_is_no_comparison():
    """Runs on other requests, or on a row that is not there, are refused and not judged."""
    before = baseline("a")
    with pytest.raises(InvalidInputError, match="traffic of a, seed 0"):
        verdict([replace(run, traffic="other") for run in before], before)
    with pytest.raises(InvalidInputError, match="b, seed 0"):
        verdict(runs("b"), before)
    with pytest.raises(InvalidInputError, match="run, past"):
        verdict(runs("a", way=PAST), before)


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path):
    """Every number survives."""
    path = tmp_path / "baseline.json"
    whole = [*baseline("a"), *runs("a", way=PAST), *runs("b", way=STATIC)]
    path.write_text(written(whole, {"planner": "x"}))
    assert read_runs(path) == whole


@pytest.mark.parametrize(
    "content", ["", "{}", '{"rows": {"a": 1}}', '{"rows": {"a": {"cold": [1]}}}']
)
def test_a_file_that_is_no_baseline_is_refused(content: str, tmp_path: Path):
    """Also where there is none at all."""
    path = tmp_path / "baseline.json"
    with pytest.raises(InvalidInputError, match="baseline"):
        read_runs(path)
    path.write_text(content)
    with pytest.raises(InvalidInputError, match="baseline"):
        read_runs(path)


@pytest.mark.parametrize("kept", [False, True])
def test_the_committed_baseline_has_every_row_way_and_seed(kept: bool):
    """So that `make guard` never ends for want of one; only a constant may keep no promise."""
    names = [row.name for row in guard.kept_rows()] if kept else list(ROWS)
    there = {
        (run.row, run.way, run.seed)
        for run in read_runs(guard.KEPT_BASELINE if kept else guard.BASELINE)
    }
    seeds = guard.seeds_of(kept=kept)
    ways = guard.KEPT_WAYS if kept else [*guard.WAYS, *guard.POOLS_WAYS]
    wanted = set(guard.places_of(names, seeds, ways))
    assert there <= wanted
    assert {way for _, way, _ in wanted - there} <= {STATIC}


def test_every_kind_has_a_row():
    """And each row a kind; pools alone are played on pools."""
    assert {row.kind for row in ROWS.values()} == set(KINDS)
    assert all((row.kind == "pools") == (row.pools is not None) for row in ROWS.values())


def test_rows_that_no_setting_is_chosen_on_are_read_by_name_alone():
    """They are in no list that a comparison of settings takes, and `--kept` plays them."""
    kept = [row.name for row in guard.kept_rows()]
    assert len(kept) == 26
    assert not set(kept) & set(ROWS)
    assert [guard.row_named(name).name for name in kept] == kept


@pytest.mark.slow
def test_a_run_is_kept_and_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same decisions from the same source; a second call reads what the first left."""
    row = ROWS["h100 very long mixture"]

    def short(seed: int):
        return generated(
            constant(20.0, 240.0), uniform_lengths((99, 999), (9, 99)), np.random.default_rng(seed)
        )

    monkeypatch.setitem(guard.ROWS, row.name, replace(row, traffic=short))
    first, other = (guard.run_of(row.name, COLD, 61, tmp_path / name) for name in ("a", "b"))
    assert first == other
    assert guard.run_of(row.name, SIMPLE, 61, tmp_path / "a").replica_hours > 0.0
    (kept,) = (tmp_path / "b").iterdir()
    kept.write_text(kept.read_text().replace(first.decisions, "kept"))
    assert guard.run_of(row.name, COLD, 61, tmp_path / "b").decisions == "kept"
