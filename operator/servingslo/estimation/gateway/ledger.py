"""Where the requests went: offered = admitted + degraded + refused + queued, for each workload.

Requests refused by a limit are still demand. They appear in no engine's metric, so a fleet behind a
bound would look idle if they were not counted here.
"""

from servingslo.reasons import Reason
from servingslo.records import record


@record(frozen=True, slots=True, kw_only=True)
class RequestLedger:
    """Requests of the last windows, per second; None is unknown.

    offered: all requests, including retries. admitted: let into the engines. refused: by the
    gateway and by engines; None if neither counts them. queueing: growth of the gateway's own
    queue, below zero while it drains. retried: those of the offered requests that are taken for
    retries of refused ones. degraded: served by a fallback. failed, aborted: those of the admitted
    requests that ended without a whole answer: by 5xx or a timeout, or because client or server
    left; None if no one counts them.
    reason: who counts the refusals.
    """

    reason: Reason
    offered_per_second: float
    admitted_per_second: float
    refused_per_second: float | None = None
    queueing_per_second: float = 0.0
    retried_per_second: float = 0.0
    degraded_per_second: float = 0.0
    failed_per_second: float | None = None
    aborted_per_second: float | None = None

    @property
    def unanswered_per_second(self) -> float | None:
        """Refused, failed and aborted requests, as far as they are counted; None if none are."""
        each = (self.refused_per_second, self.failed_per_second, self.aborted_per_second)
        known = [rate for rate in each if rate is not None]
        return min(sum(known), self.offered_per_second) if known else None

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Which of the endings without an answer no one counts."""
        each = (
            ("refused", self.refused_per_second),
            ("failed", self.failed_per_second),
            ("aborted", self.aborted_per_second),
        )
        return tuple(name for name, rate in each if rate is None)


def ledger_of(
    *,
    offered_per_second: float,
    refused_per_second: float,
    queueing_per_second: float,
    first_per_second: float,
    reason: Reason,
    degraded_per_second: float = 0.0,
) -> RequestLedger:
    """Return the ledger from offered, refused, degraded and queued requests; the rest was admitted.

    Gateway and engines are scraped separately. What is beyond the offered rate is left out, so that
    the sum is always exact. first_per_second: first attempts among the offered
    requests.
    reason: REFUSALS_UNSEEN if no one counts refusals; the offered rate is then only the admitted
    rate.
    """
    queueing = min(queueing_per_second, offered_per_second)
    refused = min(refused_per_second, offered_per_second - queueing)
    degraded = min(degraded_per_second, offered_per_second - queueing - refused)
    return RequestLedger(
        reason=reason,
        offered_per_second=offered_per_second,
        admitted_per_second=offered_per_second - refused - queueing - degraded,
        refused_per_second=None if reason is Reason.REFUSALS_UNSEEN else refused,
        queueing_per_second=queueing,
        retried_per_second=max(offered_per_second - first_per_second, 0.0),
        degraded_per_second=degraded,
    )
