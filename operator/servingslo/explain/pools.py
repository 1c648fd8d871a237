"""A decision on a fleet: verdicts, document and lines of the whole resource.

A single target is explained by its own decision. Of several pools each is, with its name; the whole
says what is worst, and the counts side by side.
"""

from collections.abc import Mapping
from dataclasses import replace

from servingslo.explain.conditions.condition import (
    ConditionStatus,
    ConditionType,
    Verdict,
)
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.document import (
    MAX_DOCUMENT_BYTES,
    MAX_SUMMARY_LENGTH,
    JSONValue,
    as_dict,
    camel,
    plain,
    summary_line,
)
from servingslo.explain.format import count, replica_change
from servingslo.explain.headline import answer_line, shortened
from servingslo.policy.decision import Decision
from servingslo.policy.pools.decision import FleetDecision
from servingslo.reasons import Reason
from servingslo.units import timestamp_from_seconds

# A condition that is bad when it is True; all others are bad when they are False.
_BAD_IF_TRUE = frozenset({ConditionType.SCALING_LIMITED})
# Of the documents of all pools together: a status holds one of 64 KiB at most.
_MOST_BYTES = 56 * 1024


def fleet_verdicts(
    fleet: FleetDecision, told: Mapping[str, Mapping[ConditionType, Verdict]]
) -> Mapping[ConditionType, Verdict]:
    """For each condition the worst verdict of a pool, with the pool's name before its message.

    told: the verdicts on each pool. Objectives of the whole path have one verdict.
    """
    if fleet.only is not None:
        return told[fleet.binding_pool]
    if fleet.objectives:
        told = {
            name: verdicts(replace(one, objectives=fleet.objectives))
            for name, one in fleet.pools.items()
        }
    first = fleet.binding_pool
    names = (first, *(name for name in told if name != first))
    found = {}
    for type_ in ConditionType:
        having = [name for name in names if type_ in told[name]]
        if not having:
            continue
        if type_ is ConditionType.SLO_MET and fleet.split is not None:
            # A variant without requests keeps no promise and breaks none.
            asked = [n for n in having if told[n][type_].reason is not Reason.NO_TRAFFIC]
            having = asked or having
        worst = max(having, key=lambda name: _badness(type_, told[name][type_]))
        verdict = told[worst][type_]
        of_whole = type_ is ConditionType.SLO_MET and bool(fleet.objectives)
        alike = of_whole and all(told[name][type_] == verdict for name in having)
        bad = _badness(type_, verdict) > 0
        if type_ is ConditionType.SLO_MET and not bad and not of_whole:
            # Each pool keeps its own part of a threshold: the part of one is not the promise.
            parts = "; ".join(f"{name}: {told[name][type_].message}" for name in fleet.roles)
            verdict = Verdict(verdict.status, verdict.reason, parts)
        elif bad and not alike:
            verdict = Verdict(verdict.status, verdict.reason, f"{worst}: {verdict.message}")
        found[type_] = verdict
    return found


def counts_line(fleet: FleetDecision) -> str:
    """The ordered counts side by side: 'prefill 3/decode 5'."""
    return "/".join(f"{name} {count(fleet.pools[name].replicas_after)}" for name in fleet.roles)


def fleet_answer(fleet: FleetDecision, told: Mapping[str, Mapping[ConditionType, Verdict]]) -> str:
    """Why these counts, pool by pool, in one line for `kubectl describe`."""
    lines = {name: answer_line(fleet.pools[name], told[name]) for name in fleet.roles}
    if fleet.only is not None:
        return lines[fleet.binding_pool]
    return shortened(". ".join(f"{name}: {line}" for name, line in lines.items()))


def fleet_document(
    fleet: FleetDecision, pools: Mapping[str, Decision] | None = None
) -> dict[str, JSONValue]:
    """The decision as a JSON document: what holds for the whole, and the document of each pool.

    pools: the same decisions with more predictions.
    """
    every = fleet.pools if pools is None else pools
    if fleet.only is not None:
        return as_dict(every[fleet.binding_pool])
    each = min(MAX_DOCUMENT_BYTES, _MOST_BYTES // len(every))
    before = [decision.replicas_before for decision in every.values()]
    known = [each for each in before if each is not None]
    document: dict[str, JSONValue] = {
        "time": timestamp_from_seconds(fleet.time_seconds),
        "action": fleet.action.value,
        "reason": fleet.reason.value,
        "replicasBefore": sum(known) if len(known) == len(before) else None,
        "replicasAfter": fleet.replicas_after,
        "bindingPool": fleet.binding_pool,
        "roles": plain(fleet.roles),
        "gpus": plain(fleet.gpus),
        "path": plain(fleet.path),
        "split": plain(fleet.split),
        "objectives": plain(fleet.objectives),
        **{camel(name): plain(report) for name, report in fleet.features.items()},
        "pools": {name: as_dict(decision, each) for name, decision in every.items()},
    }
    return {name: value for name, value in document.items() if value not in (None, {}, [], "")}


def fleet_summary_line(fleet: FleetDecision) -> str:
    """One line for status.decisions, with the change of each pool."""
    if fleet.only is not None:
        return summary_line(fleet.only)
    changes = "/".join(f"{name} {replica_change(fleet.pools[name])}" for name in fleet.roles)
    words = [
        timestamp_from_seconds(fleet.time_seconds),
        fleet.action.value,
        changes,
        fleet.reason.value,
    ]
    return " ".join(words)[:MAX_SUMMARY_LENGTH]


def _badness(type_: ConditionType, verdict: Verdict) -> int:
    """0 for a good verdict, 1 for an unknown one, 2 for a bad one."""
    good = ConditionStatus.FALSE if type_ in _BAD_IF_TRUE else ConditionStatus.TRUE
    if verdict.status is good:
        return 0
    return 1 if verdict.status is ConditionStatus.UNKNOWN else 2
