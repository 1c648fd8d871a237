"""A decision on a fleet: verdicts, document, lines and text of the whole resource.

A single target is explained by its own decision. Of several pools each is, with its name; the whole
says what is worst, and the counts side by side.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from servingslo.explain import features
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType, Verdict
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
from servingslo.explain.format import changed, count, percent, replica_change, seconds
from servingslo.explain.headline import answer_line, shortened
from servingslo.explain.text import objective_lines, text
from servingslo.policy.decision import Decision
from servingslo.policy.pools.decision import FleetDecision, PathUse
from servingslo.policy.pools.inputs import Role
from servingslo.reasons import Reason
from servingslo.units import timestamp_from_seconds

_TRANSFER = {
    "stated": "as stated in spec.transfer",
    "measured": "measured",
    "assumed": "assumed: nothing measures it",
}
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
        if type_ is ConditionType.SLO_MET and Role.COMBINED in fleet.roles.values():
            # A pool without requests keeps no promise and breaks none.
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
    document: dict[str, JSONValue] = {
        "time": timestamp_from_seconds(fleet.time_seconds),
        "action": fleet.action.value,
        "reason": fleet.reason.value,
        "replicasBefore": fleet.replicas_before,
        "replicasAfter": fleet.replicas_after,
        "bindingPool": fleet.binding_pool,
        "roles": plain(fleet.roles),
        "gpus": plain(fleet.gpus),
        "path": plain(fleet.path),
        "objectives": plain(fleet.objectives),
        **{camel(name): plain(report) for name, report in fleet.features.items()},
        "pools": {name: as_dict(decision, each) for name, decision in every.items()},
    }
    return {name: value for name, value in document.items() if value not in (None, {}, [], "")}


def fleet_summary_line(fleet: FleetDecision) -> str:
    """One line for status.decisions, with the change of each pool."""
    if fleet.only is not None:
        return summary_line(fleet.only)
    at = timestamp_from_seconds(fleet.time_seconds)
    words = (at, fleet.action.value, _changes(fleet), fleet.reason.value)
    return " ".join(words)[:MAX_SUMMARY_LENGTH]


def _changes(fleet: FleetDecision) -> str:
    return "/".join(f"{name} {replica_change(fleet.pools[name])}" for name in fleet.roles)


def _badness(type_: ConditionType, verdict: Verdict) -> int:
    """0 for a good verdict, 1 for an unknown one, 2 for a bad one."""
    good = ConditionStatus.FALSE if type_ in _BAD_IF_TRUE else ConditionStatus.TRUE
    if verdict.status is good:
        return 0
    return 1 if verdict.status is ConditionStatus.UNKNOWN else 2


def fleet_text(fleet: FleetDecision, pools: Mapping[str, Decision] | None = None) -> str:
    """The decision on the whole, one statement a line, and then that on each pool.

    pools: the same decisions with more predictions.
    """
    every = fleet.pools if pools is None else pools
    if fleet.only is not None:
        return text(every[fleet.binding_pool])
    whole = "\n".join(fleet_lines(fleet))
    return "\n\n".join((whole, *(text(every[name]) for name in fleet.roles)))


def fleet_lines(fleet: FleetDecision) -> Iterator[str]:
    """What holds for the whole: counts, what binds, path, features, GPUs."""
    yield f"{fleet.namespace}/{fleet.name} at {timestamp_from_seconds(fleet.time_seconds)}"
    why = f"{fleet.reason.value} of {fleet.binding_pool}"
    yield f"Decision: {fleet.action.value}, {_changes(fleet)} ({why})"
    wanted = [
        f"{name} {count(one.recommended_replicas)}"
        for name in fleet.roles
        if (one := fleet.pools[name]).recommended_replicas != one.replicas_after
    ]
    if wanted:
        yield f"Recommended: {', '.join(wanted)}; not applied"
    yield f"Binds: {'; '.join(_binding(fleet, name) for name in fleet.roles)}"
    if fleet.path is not None:
        yield from _path_lines(fleet, fleet.path)
    yield from objective_lines(fleet.objectives)
    yield from features.headlines(fleet.features)
    yield from features.lines(fleet.features)
    if (gpus := fleet.gpus) is None:
        return
    change = changed(gpus.before, gpus.after)
    most = "" if gpus.most is None else f" of at most {gpus.most}"
    wants = "" if gpus.wanted == gpus.after else f"; the demand asks for {gpus.wanted}"
    yield f"GPUs: {change}{most}{wants}"


def _binding(fleet: FleetDecision, name: str) -> str:
    decision = fleet.pools[name]
    binding = "nothing" if decision.binding is None else decision.binding.value
    limited = "" if decision.limited_by is None else f", limited by {decision.limited_by.value}"
    return f"{name} {binding}{limited}"


def _path_lines(fleet: FleetDecision, path: PathUse) -> Iterator[str]:
    """The share of requests through prefill, the transfer, and each pool's part of thresholds."""
    first = next((name for name, role in fleet.roles.items() if role is Role.PREFILL), "prefill")
    source = _TRANSFER.get(path.transfer_source, path.transfer_source)
    yield (
        f"Path: {percent(path.through_ratio)} of requests pass {first}; "
        f"a transfer takes {seconds(path.transfer_seconds)} ({source})"
    )
    keys = dict.fromkeys(key for parts in path.limits_seconds.values() for key in parts)
    for key in keys:
        metric, _, percentile = key.partition(":")
        parts = ", ".join(
            f"{name} {seconds(parts[key])}"
            for name in fleet.roles
            if key in (parts := path.limits_seconds.get(name, {}))
        )
        yield f"  threshold of {metric} p{percentile}: {parts}"
