"""A decision on a fleet: that on several pools in a few lines, then the explanation of each."""

from collections.abc import Iterator, Mapping

from servingslo.explain import features
from servingslo.explain.format import count, percent, replica_change, seconds
from servingslo.explain.text import objective_lines, text
from servingslo.policy.decision import Decision
from servingslo.policy.pools.decision import FleetDecision, PathUse, SplitUse
from servingslo.policy.pools.inputs import Role
from servingslo.units import timestamp_from_seconds

_TRANSFER = {
    "stated": "as stated in spec.transfer",
    "measured": "measured",
    "assumed": "assumed: nothing measures it",
}
_RULES = {
    "EvenByPod": "evenly by pod",
    "Observed": "as observed",
}


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
    """What holds for the whole: counts, what binds, path, split, GPUs."""
    yield f"{fleet.namespace}/{fleet.name} at {timestamp_from_seconds(fleet.time_seconds)}"
    changes = "/".join(f"{name} {replica_change(fleet.pools[name])}" for name in fleet.roles)
    why = f"{fleet.reason.value} of {fleet.binding_pool}"
    yield f"Decision: {fleet.action.value}, {changes} ({why})"
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
    if fleet.split is not None:
        yield _split(fleet, fleet.split)
    if (gpus := fleet.gpus) is None:
        return
    change = str(gpus.before) if gpus.before == gpus.after else f"{gpus.before}->{gpus.after}"
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


def _split(fleet: FleetDecision, split: SplitUse) -> str:
    shares = ", ".join(
        f"{name} {percent(split.shares_ratio[name])}"
        for name in fleet.roles
        if name in split.shares_ratio
    )
    rule = _RULES.get(split.rule, split.rule)
    return f"Split: {rule}: {shares}"
