"""The benchmark of several pools: its rows, its table, its verdict, and one row of it."""

from pathlib import Path

import pytest
from tests.benchmarks.pools import Line, cells_of, lines_of, misses, scenarios, table

from servingslo_lab.sim.backtest import run
from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.pools.fleet import PoolsSpec, VariantsSpec
from servingslo_lab.sim.scoring import PoolCost, Score
from servingslo_lab.sim.traces.trace import Trace

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "examples/traces/azure_llm_2023_conversation.csv"


def outcome(policy: str, seed: int, share: float, dollars: float) -> Outcome:
    """A run of two pools of this cost."""
    parts = tuple(
        PoolCost(name=name, replica_hours=1.0, dollars=dollars / 2.0) for name in ("a", "b")
    )
    score = Score(
        share_ratio=share, replica_hours=2.0, relative_cost=None, actions_per_hour=0.0,
        worst_minute_ratio=1.0, recovery_seconds=0.0, dollars_per_million_tokens=None,
        rejected_ratio=0.0, lost_ratio=0.0, ttft_p99_seconds=None, tpot_p99_seconds=None,
        pools=parts,
    )  # fmt: skip
    return Outcome(scenario="row", policy=policy, seed=seed, score=score, timeline=None)


def test_costs_are_compared_seed_by_seed():
    """With the static counts of the same seed; a seed without any does not count."""
    found = [
        outcome("servingslo", 1, 0.995, 11.0),
        outcome("servingslo", 2, 0.985, 30.0),
        outcome("servingslo", 3, 0.99, 99.0),
        outcome("static", 1, 0.99, 10.0),
        outcome("static", 2, 0.99, 20.0),
        Outcome(scenario="row", policy="static", seed=3, score=None, timeline=None),
    ]
    ours, static = lines_of(found)
    assert ours.relative_cost == pytest.approx((1.3, 1.5))
    assert ours.share_ratio == pytest.approx(0.99)
    assert ours.least_share_ratio == 0.985
    assert static.relative_cost == (1.0, 1.0)
    assert list(table([ours]))[-1] == ("| row | servingslo | 99.00 | 98.50 | 46.67 | 1.30 | 1.50 |")


def test_the_verdict_is_about_the_planner_where_static_counts_are_enough():
    """A share below the target and a cost above the bound are named, of the planner alone."""

    def line(policy: str, share: float, relative: tuple[float, float] | None) -> Line:
        return Line(
            row="row", policy=policy, share_ratio=share, least_share_ratio=share, dollars=1.0,
            relative_cost=relative,
        )  # fmt: skip

    good = [line("servingslo", 0.99, (1.25, 1.4)), line("keda-slo", 0.5, (9.0, 9.0))]
    assert not list(misses(good, 0.99))
    assert list(misses([line("servingslo", 0.98, (1.26, 1.3))], 0.99)) == [
        "row: 98.00 % in SLO", "row: 1.26 × the best static counts",
    ]  # fmt: skip
    assert not list(misses([line("servingslo", 0.5, None)], 0.99))


def test_every_row_has_its_policies():
    """Eight rows of prefill and decode, three of variants for each of two splits."""
    rows = scenarios(TRACE)
    assert sum(isinstance(row.pools, PoolsSpec) for row in rows.values()) == 8
    assert sum(isinstance(row.pools, VariantsSpec) for row in rows.values()) == 6
    assert not any("," in name for name in rows), "--rows is a list with commas"
    path = cells_of(rows["path-crowd"], (), (1,))
    variants = cells_of(rows["variants-diurnal by pod"], (), (1,))
    assert {"servingslo", "servingslo-each", "keda-slo", "static"} <= {
        cell.policy.name for cell in path
    } & {cell.policy.name for cell in variants}
    assert "ratio" in {cell.policy.name for cell in path}
    assert {"optimum", "static-single"} <= {cell.policy.name for cell in variants}
    some = cells_of(rows["path-crowd"], ("servingslo",), (1, 2))
    assert [(cell.policy.name, cell.seed) for cell in some] == [
        ("servingslo", 1), ("servingslo", 2), ("static", 1), ("static", 2),
    ]  # fmt: skip


def lengthening(trace: Trace) -> tuple[float, float]:
    """Mean prompt and answer of the second half over those of the first, its middle left out."""
    half = trace.duration_seconds / 2.0
    late = trace.arrival_seconds > half + 300.0
    early = trace.arrival_seconds < half - 300.0
    prompts, outputs = trace.prompt_tokens, trace.output_tokens
    return prompts[late].mean() / prompts[early].mean(), outputs[late].mean() / outputs[
        early
    ].mean()


@pytest.mark.parametrize(
    ("name", "factors"), [("path-prompts", (2.0, 1.0)), ("path-answers", (1.0, 2.0))]
)
def test_prompts_or_answers_double(name, factors):
    """Next to the conversation itself, whose prompts become shorter."""
    rows = scenarios(TRACE)
    plain, shifted = (lengthening(rows[row].trace(1)) for row in ("path-conversation", name))
    longer = tuple(one / other for one, other in zip(shifted, plain, strict=True))
    assert longer == pytest.approx(factors, rel=0.05)


def test_half_of_the_requests_go_to_decode_directly():
    """Their prompts are shorter than the threshold."""
    row = scenarios(TRACE)["path-conversation half direct"]
    assert isinstance(row.pools, PoolsSpec)
    direct = row.trace(1).prompt_tokens < row.pools.skip_prompt_tokens
    assert direct.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", ["path-crowd", "variants-crowd by load"])
def test_a_crowd_is_three_times_as_many(name):
    """From 25 to 40 minutes, beside the first 20."""
    at = scenarios(TRACE)[name].trace(1).arrival_seconds
    inside = ((at > 1500.0) & (at < 2400.0)).sum() / 900.0
    assert inside == pytest.approx(3.0 * (at < 1200.0).sum() / 1200.0, rel=0.1)


@pytest.mark.slow
def test_one_row_with_one_seed(tmp_path):
    """The joint plan keeps the promise on the conversation, near the best static pair."""
    row = scenarios(TRACE)["path-conversation"]
    cells = cells_of(row, ("servingslo",), (1,))
    outcomes = run(cells, tmp_path, processes=1, done=lambda _cell: None)
    lines = list(lines_of(outcomes))
    assert [line.policy for line in lines] == ["servingslo", "static"]
    assert not list(misses(lines, row.objectives.share))
