"""A law is believed as far as it is known: what it may order or forbid beyond, and the way out."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from step_tables import EXPERTS, table
from tests.sizing_cases import case, sized

from servingslo.models.engine.service_time import EngineLimits
from servingslo.models.fleet.latency import LatencyMetric, Objective
from servingslo.policy.rules import step_down
from servingslo.policy.rules.step_down import count_tried
from servingslo.reasons import Constraint
from servingslo_lab.sim.fleets.cluster import simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.production import Production, benchmark_targets
from servingslo_lab.sim.standard import standard_case
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
RATE = 100.0
# What utilization alone asks for at this rate.
ASKED = sized(case(), RATE).replicas
# The trap ends within half an hour; this is the first part of an hour of traffic.
HALF_AN_HOUR = 0.5
# Experts on this card serve the traffic with seven or eight; the line asked for thirteen.
FIRST_COUNT, FREED_COUNT = 13, 9
PROMISED_RATIO = 0.99


@pytest.mark.parametrize(
    ("serving", "allowed"),
    [(ASKED - 2, ASKED - 1), (ASKED + 3, ASKED + 2), (ASKED, ASKED)],
    ids=["one-more-at-most", "one-fewer-is-tried", "as-asked"],
)
def test_beyond_its_reach_the_law_moves_a_count_that_serves_by_one(
    serving: int, allowed: int
) -> None:
    """Utilization asks for saturation, which was never seen."""
    found = sized(case(tried=serving), RATE)
    assert found.replicas == allowed


def test_an_objective_orders_all_it_needs_whatever_the_reach() -> None:
    """It asks for the law at fewer sequences: there it is known."""
    tight = Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.009)
    needed = sized(case(tight), RATE)
    assert needed.binding is Constraint.TPOT
    assert sized(case(tight, tried=2), RATE).replicas == needed.replicas


@pytest.mark.parametrize(
    ("reach", "trusted", "serves", "tried"),
    [
        (None, True, True, None),
        (256.0, True, True, None),
        (40.0, False, True, None),
        (40.0, True, False, None),
        (40.0, True, True, 7),
    ],
    ids=["a-line", "known-to-the-end", "not-trusted", "not-seen-to-serve", "tried"],
)
def test_a_count_is_tried_only_if_it_is_seen_to_serve(
    reach: float | None,
    trusted: bool,
    serves: bool,
    tried: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of eight replicas one is spare for failures."""
    monkeypatch.setattr(step_down, "is_seen_to_serve", lambda _context: serves)
    context = SimpleNamespace(
        estimate=SimpleNamespace(law=SimpleNamespace(reach_sequences=reach)),
        trusted=trusted,
        current=8,
        excluded=0,
        targets=SimpleNamespace(replicas=SimpleNamespace(tolerated_failures=1)),
    )
    prepared = SimpleNamespace(model=SimpleNamespace(cap=256.0))
    assert count_tried(context, prepared) == tried


def test_lightly_loaded_experts_free_their_replicas() -> None:
    """On measured step times, from a count at which a line forbids fewer: the promise is kept."""
    trace = standard_case(
        "azure-conv", "h100-8b", read_trace(TRACE), seed=61, part=HALF_AN_HOUR
    ).trace
    fleet = FleetSpec(
        steps=table(EXPERTS),
        limits=EngineLimits(
            max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=400_000
        ),
        cold_start=ColdStart(mean_seconds=90.0),
        initial_replicas=FIRST_COUNT,
        max_replicas=40,
    )
    planner = Production(benchmark_targets(max_replicas=40))
    result = simulate(fleet, trace, planner, seed=61)
    assert min(one.replicas_after for one in planner.decisions) <= FREED_COUNT
    assert result.share_in_slo(1.0, 0.05) >= PROMISED_RATIO
