"""The reserve: the count that the workload's own past asks for, whatever the forecast says.

A forecast says how demand goes on, not what comes suddenly. Rules of scaling are lived again over
the arrivals that are known of the last day (`models.fleet.fluid`), and the cheapest that would have
kept the promise is in force. Shares of the copy are corrected by the share that was really
attained. The plain rule, the planner without a reserve, is one of them, so that calm demand pays
nothing. A burst is kept for until its return is overdue.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from servingslo.estimation.forecast.past_arrivals import BIN_SECONDS
from servingslo.models.fleet.fluid import (
    PLAIN,
    Replica,
    Rule,
    cheapest_floor,
    habit_of,
    live,
    wanted_replicas,
)
from servingslo.models.fleet.frontier import GREATEST_UTILIZATION
from servingslo.policy.decision_parts import ConstraintNeed, ReserveReport
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.reserve_state import ALLOWED_SHARE, ReserveState, correction_ratio
from servingslo.policy.replicas.sizing import (
    SizingCase,
    carried_rate_per_second,
    ceiling_rate_per_second,
)
from servingslo.policy.rules.needs import Case, Need
from servingslo.reasons import Constraint

# Rules that are tried, each with the least floor that keeps the promise. Windows: steps by about
# three from a minute to the two hours of a working day's hump. Margins: from none to double.
WINDOWS_SECONDS = (0.0, 60.0, 180.0, 600.0, 1_800.0, 7_200.0)
MARGIN_RATIOS = (1.0, 1.15, 1.3, 1.6, 2.0)
# Two leads at the shortest cold start: less past holds no rise and what followed it.
LEAST_SECONDS = 300.0
# Of a window that is a larger part of the past, the past does not show what it costs.
SHORT_MEMORIES = 4.0
# A choice takes as long as the past is: 20 ms for a day, which is renewed every ten minutes.
RENEWAL_SECONDS, RENEWAL_SHARE = 60.0, 1.0 / 144.0
# One point of share costs as much as 10 % of the replica-hours (the guard's yardstick). If a burst
# returns within a lead, its misses cost as much as keeping its replicas for ten leads; until a past
# says more, one in two returns.
KEPT_LEADS = 5.0
# Of so many bursts, the next exceeds all with a chance of one in five. A rule that serves just
# them is no habit yet: then the greatest rate of the present habit is kept.
FEW_BURSTS = 4


def renewed_reserve(context: TickContext, case: SizingCase, state: ReserveState) -> ReserveState:
    """The state with the rule that the last day's arrivals ask for, once it is due."""
    at_seconds = state.at_seconds
    if at_seconds is not None and context.now_seconds - at_seconds < RENEWAL_SECONDS:
        return state
    rates = _known(context)
    lasted = len(rates) * BIN_SECONDS
    if lasted < LEAST_SECONDS:
        return state
    if at_seconds is not None and context.now_seconds - at_seconds < RENEWAL_SHARE * lasted:
        return state
    if not rates.max() > 0.0:
        return ReserveState(at_seconds=context.now_seconds)
    peak = max(
        round(float(rates.max()) / (case.saturation_per_second * case.utilization_target_ratio)), 1
    )
    planned, kept = (
        _carried(replace(case, utilization_target_ratio=ceiling), peak)
        for ceiling in (case.utilization_target_ratio, GREATEST_UTILIZATION)
    )
    target = context.targets.promised_share_ratio
    allowed = (1.0 - target) * ALLOWED_SHARE / correction_ratio(state, target)
    replica = _replica(context, case, planned, kept)
    habit = habit_of(rates, replica, BIN_SECONDS, KEPT_LEADS * context.lead_seconds)
    known = habit.bursts > FEW_BURSTS
    least = 0 if known else math.ceil(habit.peak_per_second / replica.kept_per_second)
    tried = [
        cheapest_floor(
            Rule(window, margin),
            rates,
            replica,
            BIN_SECONDS,
            habit=habit.begins,
            most_missed=allowed,
            least=least,
        )
        for window in WINDOWS_SECONDS
        if SHORT_MEMORIES * window <= len(rates) * BIN_SECONDS
        for margin in MARGIN_RATIOS
    ]
    keeps = [one for one in tried if one.habitual_ratio <= allowed]
    if keeps:
        # Where the plain rule keeps the promise no other is needed. An order is charged its cold
        # start once more, so that of about equal rules that wins which moves least.
        lived = min(
            keeps,
            key=lambda one: (
                one.rule != PLAIN,
                one.mean_replicas + one.orders_per_second * context.lead_seconds,
                -one.rule.window_seconds,
            ),
        )
    else:
        lived = min(tried, key=lambda one: (one.habitual_ratio, one.mean_replicas))
    less = lived.rule._replace(floor=lived.rule.floor - 1) if lived.rule.floor else PLAIN
    return replace(
        state,
        lived=lived,
        cheaper=live(less, rates, replica, BIN_SECONDS, habit=habit.begins),
        planned_ratio=planned,
        kept_ratio=kept,
        at_seconds=context.now_seconds,
    )


def reserve_need(context: TickContext, case: Case | None) -> Need | None:
    """The count that the rule in force orders now; None for the plain one, or without any.

    No reserve follows without a proven law.
    """
    state = context.state.reserve
    if case is None or not context.proven or state.lived is None or state.lived.rule == PLAIN:
        return None
    rule, rates = state.lived.rule, _known(context)
    if not len(rates):
        return None
    replica = _replica(context, case.sizing_case, state.planned_ratio, state.kept_ratio)
    count = wanted_replicas(rule, rates, replica, BIN_SECONDS)
    return Need(
        constraint=Constraint.RESERVE,
        replicas=count,
        reported=(ConstraintNeed(constraint=Constraint.RESERVE, replicas=count),),
        inputs={
            "reserve_window_seconds": rule.window_seconds,
            "reserve_margin_ratio": rule.margin_ratio,
            "reserve_floor_replicas": rule.floor,
            "reserve_missed_ratio": state.lived.habitual_ratio,
        },
    )


def reserve_report(state: ReserveState, needs: Iterable[ConstraintNeed]) -> ReserveReport | None:
    """The rule in force, and what one replica fewer would have missed.

    None unless it is among the needs of this tick.
    """
    lived, cheaper = state.lived, state.cheaper
    needed = any(need.constraint is Constraint.RESERVE for need in needs)
    if lived is None or cheaper is None or not needed:
        return None
    return ReserveReport(
        window_seconds=lived.rule.window_seconds,
        margin_ratio=lived.rule.margin_ratio,
        floor_replicas=lived.rule.floor,
        missed_ratio=lived.missed_ratio,
        mean_replicas=lived.mean_replicas,
        cheaper_missed_ratio=cheaper.missed_ratio,
        cheaper_mean_replicas=cheaper.mean_replicas,
    )


def _known(context: TickContext) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The known rates of the last day. Gaps are left out: a jump over one is one episode."""
    rates = np.asarray(context.estimate.past.rates_per_second, dtype=np.float64)
    return rates[rates >= 0.0]


def _carried(case: SizingCase, serving: int) -> float:
    """What a replica of so many carries of its saturation.

    Objectives that no count meets decide nothing.
    """
    carried = carried_rate_per_second(case, case.infeasible, serving)
    carried = carried or ceiling_rate_per_second(case, serving)
    return carried / serving / case.saturation_per_second


def _replica(
    context: TickContext, case: SizingCase, planned_ratio: float, kept_ratio: float
) -> Replica:
    saturation = case.saturation_per_second
    return Replica(
        planned_per_second=planned_ratio * saturation,
        kept_per_second=kept_ratio * saturation,
        saturation_per_second=saturation,
        lead_seconds=context.lead_seconds,
        wait_seconds=context.wait_budget_seconds,
    )
