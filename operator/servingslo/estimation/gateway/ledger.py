"""Where the requests went: offered = admitted + refused + queued, for each workload.

What a limit refuses is demand all the same: it is in no engine's metric, so that a fleet behind a
bound would look idle, were it not counted here.
"""

from dataclasses import dataclass

from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLedger:
    """Requests of the last windows, per second; None is unknown.

    offered: all that came, those that come again among them. admitted: let into the engines.
    refused: by the gateway and by engines; None where neither tells. queueing: by how much the
    gateway's own queue grows, below zero while it drains. retried: of those offered, the ones taken
    to come again because they were refused. reason: who counts what is refused.
    """

    reason: Reason
    offered_per_second: float
    admitted_per_second: float
    refused_per_second: float | None = None
    queueing_per_second: float = 0.0
    retried_per_second: float = 0.0


def ledger_of(
    *,
    offered_per_second: float,
    refused_per_second: float,
    queueing_per_second: float,
    first_per_second: float,
    reason: Reason,
) -> RequestLedger:
    """The ledger of what is offered, refused and queued; the rest was admitted.

    Gateway and engines are scraped apart: what does not fit into the offered rate is left out, so
    that the sum is always exact. first_per_second: first tries among the offered ones. reason:
    REFUSALS_UNSEEN where nobody counts what is refused; what is offered is then known as far as it
    was admitted.
    """
    queueing = min(queueing_per_second, offered_per_second)
    refused = min(refused_per_second, offered_per_second - queueing)
    return RequestLedger(
        reason=reason,
        offered_per_second=offered_per_second,
        admitted_per_second=offered_per_second - refused - queueing,
        refused_per_second=None if reason is Reason.REFUSALS_UNSEEN else refused,
        queueing_per_second=queueing,
        retried_per_second=max(offered_per_second - first_per_second, 0.0),
    )
