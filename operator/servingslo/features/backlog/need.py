"""The replicas that finish the backlog in time, as a rule of the count."""

from servingslo.features.backlog.report import REPORT
from servingslo.policy.decision_parts import ConstraintNeed
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.rules.needs import Case, Need
from servingslo.reasons import Constraint


def backlog_need(context: TickContext, _case: Case | None) -> Need | None:
    """The least count that finishes it in time; None without work, or if it is not planned for."""
    report = REPORT.of(context.features)
    if report is None or not report.replicas:
        return None
    return Need(
        constraint=Constraint.DEADLINE,
        replicas=report.replicas,
        reported=(ConstraintNeed(constraint=Constraint.DEADLINE, replicas=report.replicas),),
        inputs={"deadline_replicas": report.replicas, "deadline_late_ratio": report.late_ratio},
        # An unproven law is followed no further than for live demand.
        sure=context.proven,
    )


PART = backlog_need
