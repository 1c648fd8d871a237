"""The status of a ServingBudget, and the line of the log about it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from servingslo.explain.format import counted
from servingslo.features.budgets.kind import MAX_CLAIMANTS, ServingBudgetStatus
from servingslo.features.budgets.sharing import MOST_NAMES, NOTHING_SHARED, Names, Share, Sharing
from servingslo.features.budgets.store import BudgetRecord
from servingslo.reasons import Reason
from servingslo.units import timestamp_from_seconds

# Digits of a lost rate: fewer changes of a status that says the same.
_DIGITS = 2
# Characters of a reason: all claimants together stay far below the 1.5 MiB that an object may have.
_REASON_LENGTH = 1000
_NOTHING = "no ServingSLO has the labels of namespaceSelector and selector: nothing is bounded"


class BudgetNews(NamedTuple):
    """What a tick says of a budget. fields: of its status, as JSON. line: of the log."""

    fields: Mapping[str, Any]
    line: str


class GaugeOf(NamedTuple):
    """A gauge: what it says, and its number of a budget and its sharing."""

    help: str
    value: Callable[[BudgetRecord, Sharing], float]


# After `servingslo_budget_`.
GAUGES = {
    "gpus": GaugeOf("GPUs of a ServingBudget.", lambda budget, _: budget.gpus),
    "granted_gpus": GaugeOf(
        "GPUs that its ServingSLOs may order.", lambda _, sharing: sharing.granted_gpus
    ),
    "wanted_gpus": GaugeOf("GPUs that their plans want.", lambda _, sharing: sharing.wanted_gpus),
    "short_gpus": GaugeOf(
        "GPUs that are wanted and not granted.", lambda _, sharing: sharing.lacking_gpus
    ),
    "lost_requests_per_second": GaugeOf(
        "Requests that those would keep within their objectives.",
        lambda _, sharing: sharing.lost_per_second,
    ),
}


def budget_status(
    record: BudgetRecord,
    sharing: Sharing | None,
    priorities: Mapping[str, int],
    unknown: Mapping[str, str],
    *,
    previous: Mapping[str, Any],
    now_seconds: float,
) -> BudgetNews:
    """The status after a sharing.

    priorities: that count, by uid of each selected resource. unknown: why GPUs of a replica are
    unknown, by uid; '' if they are known. previous: the status before, whose transition times stay.
    """
    conditions = _conditions(record, sharing, unknown, priorities, previous, now_seconds)
    found = NOTHING_SHARED if sharing is None else sharing
    shares = tuple(found.shares.values())
    status = ServingBudgetStatus.model_validate(
        {
            "observed_generation": record.generation,
            "granted": found.granted_gpus,
            "wanted": found.wanted_gpus,
            "short": found.lacking_gpus,
            "claimants": _claimants(shares, priorities, unknown),
            "conditions": conditions,
        }
    )
    fields = status.model_dump(by_alias=True, mode="json", exclude_none=True)
    short = [share for share in shares if share.lacking_gpus]
    line = (
        f"gpus={record.gpus} granted={status.granted} wanted={status.wanted} short={status.short}"
        f" reason={conditions[-1]['reason']}"
    )
    if short:
        told = sorted(short, key=lambda one: -one.lacking_gpus)[:MOST_NAMES]
        line += " lacking=" + ",".join(f"{one.claim.name}:{one.lacking_gpus}" for one in told)
    return BudgetNews(fields=fields, line=line)


def shortage_line(share: Share, reader: str = "") -> str:
    """Who has the GPUs that a resource lacks, in words; '' if it lacks none.

    reader: the namespace whose tenants read it; '' for the administrator, who may read all names.
    """
    if share.receivers:
        named = share.receivers.of(reader)
        return f"{named} {'gets' if share.receivers.count == 1 else 'get'} them"
    if share.donors:
        return f"it waits for pods of {share.donors.of(reader)} to end"
    if share.holders:
        return f"{share.holders.of(reader)} {'has' if share.holders.count == 1 else 'have'} them"
    return ""


def _claimants(
    shares: Sequence[Share], priorities: Mapping[str, int], unknown: Mapping[str, str]
) -> list[dict[str, Any]]:
    ordered = sorted(shares, key=lambda share: (-share.lacking_gpus, share.claim.name))
    return [_claimant(share, priorities, unknown) for share in ordered[:MAX_CLAIMANTS]]


def _claimant(
    share: Share, priorities: Mapping[str, int], unknown: Mapping[str, str]
) -> dict[str, Any]:
    uid, lacking = share.claim.uid, share.lacking_gpus
    namespace, _, name = share.claim.name.partition("/")
    return {
        "namespace": namespace,
        "name": name,
        "priority": priorities.get(uid, 0),
        "granted": share.granted_gpus,
        "wanted": share.claim.wanted_gpus,
        "short": lacking,
        "lost_per_second": float(f"{share.lost_per_second:.{_DIGITS}g}") if lacking else None,
        "reason": unknown.get(uid, "")[:_REASON_LENGTH] or shortage_line(share) or None,
    }


def _conditions(
    record: BudgetRecord,
    sharing: Sharing | None,
    unknown: Mapping[str, str],
    priorities: Mapping[str, int],
    previous: Mapping[str, Any],
    now_seconds: float,
) -> list[dict[str, Any]]:
    said = [("Ready", "True", Reason.READY, "the budget is shared")]
    if record.refused:
        refused = (Reason.INVALID_SPEC, record.refused)
        said = [("Ready", "False", *refused), ("Stalled", "True", *refused)]
    elif not priorities:
        said = [("Ready", "False", Reason.SELECTS_NOTHING, _NOTHING)]
    said.append(("Sufficient", *_sufficient(record, sharing, unknown)))
    before = previous.get("conditions") or ()
    since = {(one["type"], one["status"]): one["lastTransitionTime"] for one in before}
    now = timestamp_from_seconds(now_seconds)
    return [
        {
            "type": type_,
            "status": status,
            "reason": reason.value,
            "message": message,
            "last_transition_time": since.get((type_, status), now),
            "observed_generation": record.generation,
        }
        for type_, status, reason, message in said
    ]


def _sufficient(
    record: BudgetRecord, sharing: Sharing | None, unknown: Mapping[str, str]
) -> tuple[str, Reason, str]:
    if sharing is None or record.refused:
        return "Unknown", Reason.INVALID_SPEC, "not known while the spec is not valid"
    if not sharing.minimums_fit:
        message = f"all minimums need more than {counted(record.gpus, 'GPU')}; none is taken"
        return "False", Reason.BUDGET_SHORT, message
    if lacking := sharing.lacking_gpus:
        names = sorted(one.claim.name for one in sharing.shares.values() if one.lacking_gpus)
        told = Names(tuple(names[:MOST_NAMES]), len(names))
        noun, it = ("GPU is", "it") if lacking == 1 else ("GPUs are", "they")
        message = (
            f"{lacking} more {noun} wanted by {told};"
            f" {it} would keep {sharing.lost_per_second:.2g} requests/s within their objectives"
        )
        return "False", Reason.BUDGET_SHORT, message
    if blind := next(filter(None, unknown.values()), ""):
        message = f"GPUs of a replica are unknown: {blind[:_REASON_LENGTH]}"
        return "Unknown", Reason.GPUS_UNKNOWN, message
    return "True", Reason.BUDGET_SUFFICIENT, "all that is wanted is granted"
