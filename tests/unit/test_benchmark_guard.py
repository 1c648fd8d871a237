"""The guard's verdict: what it lets pass, what it refuses, and whom it names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks import guard
from tests.benchmarks.guard_row import KINDS, traffic_digest
from tests.benchmarks.guard_rows import ROWS, document_bursts, noisy_crowds
from tests.benchmarks.guard_verdict import (
    COLD,
    PAST,
    Run,
    read_runs,
    report,
    standings,
    table,
    verdict,
    written,
)

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.past import BIN_SECONDS
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


def test_another_policy_dominates_with_our_share_at_less_cost():
    """Over the seeds that both have; a cheaper one with a smaller share does not."""
    others = [
        *runs("a", 99.5, 9.0, way=STATIC)[:2],
        *runs("a", 99.4, 5.0, way=SIMPLE),
        *runs("a", 99.9, 10.5, way="rule"),
    ]
    (one,) = standings([*runs("a"), *others])
    assert one.dominated_by() == [STATIC]
    assert one.price_ratios()[STATIC] == pytest.approx(10.0 / 9.0)
    assert one.price_ratios()[SIMPLE] == pytest.approx(2.0)


def test_the_table_says_what_is_kept_and_prices_kept_rows_alone():
    """Cold and with a past; the cheapest rule that keeps the promise is the best."""
    lost = [*runs("b", 98.0, 1.0), *runs("b", way=PAST), *runs("b", 99.5, 5.0, way=STATIC)]
    rules = [*runs("a", 99.9, 12.0, way="dear"), *runs("a", 99.1, 11.0, way="best")]
    kept = [*runs("a"), *runs("a", 99.5, 12.0, way=PAST), *runs("a", 99.5, 8.0, way=STATIC)]
    lines = list(table(standings([*kept, *rules, *lost]), {"a": "level", "b": "rise"}))
    assert (
        "| a | level | 99.50 @ 10.00 | 99.50 @ 12.00 | 99.50 @ 8.00 |  | 99.10 @ 11.00, best |"
        in (lines)
    )
    assert "| b | rise | 98.00 @ 1.00 lost | 99.50 @ 10.00 | 99.50 @ 5.00 |  |  |" in lines
    assert "| kept | 1 | 2 |" in lines
    assert "| dominated by a constant | 1 | 2 |" in lines
    assert "| price over static, rows both keep | 1.25 × on 1 | 1.75 × on 2 |" in lines


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


def test_the_past_of_production_traffic_is_the_earlier_part_of_its_file():
    """An hour in whole bins, at the rate of the traffic that is played, and none of it."""
    row = ROWS["reasoning"]
    trace, past = row.traffic(61), row.past(61)
    assert len(past.rates_per_second) * BIN_SECONDS == 3600.0
    assert np.mean(past.rates_per_second) == pytest.approx(10_700 / 3600.0, rel=0.01)
    assert 5300.0 < trace.duration_seconds <= 5400.0
    assert len(trace) == pytest.approx(12_357, abs=1)


def test_rows_that_no_setting_is_chosen_on_are_read_by_name_alone():
    """They are in no list that a comparison of settings takes, and `--kept` plays them."""
    kept = [row.name for row in guard.kept_rows()]
    assert len(kept) == 26
    assert not set(kept) & set(ROWS)
    assert [guard.row_named(name).name for name in kept] == kept


def test_rows_are_named_by_words_and_kinds():
    """A word takes every row that it stands in or whose kind it is; an unknown one is refused."""
    assert list(guard.rows_named("")) == list(ROWS)
    assert list(guard.rows_named("h100 flash, slow pods")) == [
        "h100 flash",
        "h100 slow pods",
        "h100 slowing service",
    ]
    with pytest.raises(InvalidInputError, match="'flesh'"):
        list(guard.rows_named("flesh"))


def test_others_are_read_from_the_baseline_and_not_played_again():
    """Only our runs are new: the seconds of two hundred runs."""
    known = runs("a", way=STATIC)
    places = [(run.row, run.way, run.seed) for run in known]
    assert guard.runs_of(places, 1, known) == known


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
