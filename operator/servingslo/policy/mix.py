"""The mix of requests and the engine that plans are made with, renewed on material change only.

Estimates move a little with every scrape. Plans made from slightly different laws would jump
between neighbouring counts and would have to prepare their tables anew at every tick.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.models.latency import (
    LatencyModel,
    Objective,
    Routing,
    latency_model,
    metric_seconds,
)
from servingslo.models.objective_metrics import ROW_OF
from servingslo.models.service_time import EngineLimits, ServiceLaw, request_demand
from servingslo.models.workload import Workload
from servingslo.policy.candidates import IDLE_RATE_PER_SECOND, Candidates
from servingslo.policy.known import Known

# Below the error that the models themselves are validated to (3 % of saturation throughput).
MATERIAL_CHANGE_RATIO = 0.02
# Arrival dispersion is known far less well than lengths and only widens the tails.
MATERIAL_DISPERSION_RATIO = 0.1
# Even without material change, so that many small ones in one direction are followed.
RENEWAL_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What requests are like and what serves them.

    workload: at a rate of 1 per second. alone_seconds: percentile of each objective but that of a
    token, by objective key, for requests that come one at a time: the least that any count can
    give. model: the laws of one replica, which follow from the rest, prepared. known: percentiles
    evaluated so far.
    """

    workload: Workload
    law: ServiceLaw
    limits: EngineLimits
    at_seconds: float
    alone_seconds: Mapping[str, float]
    model: LatencyModel = field(compare=False, repr=False)
    known: Known = field(default=Known(), compare=False, repr=False)


def renewed_mix(
    previous: Mix | None,
    *,
    workload: Workload,
    law: ServiceLaw,
    limits: EngineLimits,
    objectives: tuple[Objective, ...],
    now_seconds: float,
) -> Mix:
    """The previous mix while nothing material has changed, else one made of these."""
    # What a token takes alone is asked for only where none is in time, which is seldom.
    waiting = [o for o in objectives if ROW_OF[o.metric].waits]
    keys = {objective.key for objective in waiting}
    if (
        previous is not None
        and previous.limits == limits
        and previous.alone_seconds.keys() == keys
        and now_seconds - previous.at_seconds < RENEWAL_SECONDS
        and not _changed(previous, workload, law)
    ):
        return previous
    unit = workload.at_rate(1.0)
    model = latency_model(unit, law, limits)
    alone = model.predict(IDLE_RATE_PER_SECOND, 1, Routing.POOLED)
    return Mix(
        workload=unit,
        law=law,
        limits=limits,
        at_seconds=now_seconds,
        alone_seconds={o.key: metric_seconds(alone, o.metric, o.percentile) for o in waiting},
        model=model,
    )


def remembering(mix: Mix | None, candidates: Candidates | None) -> Mix | None:
    """The mix with what these candidates, which are of its model, have evaluated at this tick."""
    recall = None if candidates is None else candidates.recall
    if mix is None or recall is None or not recall.changed:
        return mix
    return replace(mix, known=recall.known)


def _changed(previous: Mix, workload: Workload, law: ServiceLaw) -> bool:
    """Whether requests or engine differ by more than the models' own error."""
    before = previous.model.demand
    after = request_demand(workload, law)
    pairs = (
        (before.fixed_seconds, after.fixed_seconds),
        (before.marginal_seconds, after.marginal_seconds),
        (before.held_tokens, after.held_tokens),
        (before.prefill_mean_seconds, after.prefill_mean_seconds),
        (before.uncached_second_moment_tokens2**0.5, after.uncached_second_moment_tokens2**0.5),
        (before.output_mean_tokens, after.output_mean_tokens),
    )
    if any(_differ(old, new, MATERIAL_CHANGE_RATIO) for old, new in pairs):
        return True
    return _differ(
        previous.workload.arrival_dispersion,
        workload.arrival_dispersion,
        MATERIAL_DISPERSION_RATIO,
    )


def _differ(old: float, new: float, ratio: float) -> bool:
    return abs(new - old) > ratio * max(abs(old), abs(new))
