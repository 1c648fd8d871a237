"""Sizing of a live resource: what its last decision sized for, with what it learnt; its sweep."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.cli.decision_document import decision_of, fleet_of, last_document
from servingslo.cli.live import Access, observations_of, workloads_of
from servingslo.controller.registry import Resource, checked
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.errors import ServingSLOError
from servingslo.estimation import estimator
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.requests import lengths
from servingslo.explain.format import number
from servingslo.models.workload import Workload
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation, Targets
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.path import path_targets
from servingslo.policy.pools.stored import restore_fleet
from servingslo.policy.replicas.bounds_in_force import with_bounds_in_force
from servingslo.policy.replicas.demand import SCRAPE_SECONDS
from servingslo.policy.rules.needs import UTILIZATION_CEILING, UTILIZATION_INPUT
from servingslo_lab.cli.sizing.answer import Question, sized
from servingslo_lab.cli.sizing.inputs import gpu_count, hourly_price
from servingslo_lab.cli.sizing.prices import Price, prices
from servingslo_lab.cli.sizing.text import price_lines

Known = TypeVar("Known")


class NotSizedError(ServingSLOError):
    """Nothing that could be sized is known of a resource yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUPrice:
    """What a GPU costs for an hour, and how many a replica has; None for what spec.cost says."""

    hourly: float | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What other objectives would make of the count that one demand needs."""

    rate_per_second: float
    replicas: int
    prices: tuple[Price, ...]

    def lines(self, pool: str) -> Iterator[str]:
        """As text; pool: '' of a single target."""
        noun = "replica" if self.replicas == 1 else "replicas"
        of = f"{pool}: " if pool else ""
        yield f"{of}{self.replicas} {noun} for {number(self.rate_per_second)} requests/s; instead:"
        yield from (f"  {line}" for line in price_lines(self.prices))


def sweeper(
    config: PrometheusConfig, *, hourly: float | None, count: int | None
) -> Callable[[Access, ResourceRecord], dict[str, Sweep]]:
    """Sweeps resources of a cluster by pool, a single target under ''; see `GPUPrice`.

    Raises: InvalidInputError for what is no price or count of GPUs, before anything is read.
    """
    price = GPUPrice(
        hourly=None if hourly is None else hourly_price(hourly),
        count=None if count is None else gpu_count(count),
    )

    def swept(access: Access, record: ResourceRecord) -> dict[str, Sweep]:
        questions = asyncio.run(live_questions(access, config, record, price))
        return {
            pool: Sweep(
                rate_per_second=question.rate_per_second,
                replicas=sized(question)[0],
                prices=prices(question),
            )
            for pool, question in questions.items()
        }

    return swept


async def live_questions(
    access: Access, config: PrometheusConfig, record: ResourceRecord, price: GPUPrice
) -> dict[str, Question]:
    """The question of each pool, or of the only target under ''; see `question_of`.

    Raises: NotSizedError while part of one is unknown; ClusterError, InvalidSpecError.
    """
    resource = checked(record)
    if resource.invalid is not None:
        raise resource.invalid
    reader = PrometheusReader(config)
    try:
        async with workloads_of(access, (record.ref.namespace,)) as workloads:
            seen = await observations_of(resource, workloads, await reader.read())
    finally:
        reader.close()
    planned = pools_as_planned(resource)
    return {one.pool: question_of(record, planned[one.pool], one, price) for one in seen}


def pools_as_planned(resource: Resource) -> Mapping[str, Targets]:
    """Targets by pool, with the objectives of each and its part of every threshold.

    The parts are those of the last decision; without one a pool may use the whole threshold.
    """
    if resource.fleet is None or not resource.fleet.disaggregated:
        return resource.pools
    document = last_document(resource.record.status)
    ref = resource.record.ref
    fleet = fleet_of(document, ref.namespace, ref.name) if document else None
    limits = {} if fleet is None or fleet.path is None else fleet.path.limits_seconds
    return {pool.name: pool.targets for pool in path_targets(resource.fleet, limits).pools}


def question_of(
    record: ResourceRecord, targets: Targets, observation: Observation, price: GPUPrice
) -> Question:
    """The demand, law and lengths that the status tells, the limits in force, of one target.

    Arrivals are as the operator counts them, with what a gateway refuses where it reads one.

    Raises: NotSizedError while one of them is unknown.
    """
    ref, status, pool = record.ref, record.status, observation.pool
    alone = FleetTargets.of(targets)
    known_state = restore_fleet(learned_of(status), alone, observation.time_seconds)
    state = known_state.of("").estimator
    sample = FleetSample(
        time_seconds=observation.time_seconds,
        pods=observation.pods,
        stale_after_seconds=targets.fallback.stale_after_seconds,
        service_law=targets.service_law,
        stated_limits=targets.stated_limits,
        runtime=observation.runtime,
    )
    state, estimate = estimator.update(state, sample)
    _, known = lengths.publish(state.lengths)
    document = last_document(status)
    if document and pool:
        document = (document.get("pools") or {}).get(pool)
    decision = decision_of(document, ref.namespace, ref.name) if document else None
    if decision is not None and not pool:
        # The rates of the status are of the whole.
        decision = with_observed(decision, status.get("observed") or {})
    course = _required(record, pool, None if decision is None else course_of(decision), "arrivals")
    stated = targets.cost
    return Question(
        workload=Workload(
            arrival_rate_per_second=course.rate_per_second,
            prompt=_required(record, pool, known.prompt, "prompts"),
            output=_required(record, pool, known.output, "outputs"),
            cached_ratio=known.cached_ratio or 0.0,
            arrival_dispersion=course.dispersion,
            context_tokens_per_sequence=known.context_tokens_per_sequence,
        ),
        law=_required(record, pool, estimate.law.law, "engine's step time"),
        limits=_required(record, pool, estimate.limits, "engine's limits"),
        objectives=targets.objectives,
        routing=estimate.routing,
        utilization_target_ratio=_ceiling_ratio(targets, decision),
        kv_cache_target_ratio=targets.kv_cache_target_ratio,
        replicas=with_bounds_in_force(
            targets, course.cold_start_seconds, observation.time_seconds
        ).replicas,
        growth_per_second2=course.growth_per_second2,
        cold_start_seconds=course.cold_start_seconds,
        gpu_hourly=stated.gpu_hourly if price.hourly is None and stated else price.hourly,
        gpus_per_replica=price.count or (stated.gpus_per_replica if stated else 1),
        currency=stated.currency if stated else "USD",
        engines_per_replica=estimate.engines_per_pod,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Demand from now until a replica ordered now serves, as a straight line.

    dispersion: index of dispersion of arrivals from scrape to scrape, as it was planned with.
    """

    rate_per_second: float
    growth_per_second2: float
    cold_start_seconds: float
    dispersion: float = 1.0


def _ceiling_ratio(targets: Targets, decision: Decision | None) -> float:
    """The utilization ceiling that is stated, or that the last decision derived."""
    if targets.utilization_target_ratio is not None:
        return targets.utilization_target_ratio
    steps = () if decision is None else decision.steps
    derived = (step.inputs.get(UTILIZATION_INPUT) for step in steps)
    found = next((value for value in derived if isinstance(value, float)), None)
    return UTILIZATION_CEILING if found is None else found


def with_observed(decision: Decision, observed: Mapping[str, Any]) -> Decision:
    """The decision with the rates of `status.observed`, where it has any.

    They follow demand; the decision in the status is the last that differed from those before it,
    and may be hours old.
    """
    planned = observed.get("forecastPerSecond")
    if planned is None:
        return decision
    demand = replace(
        decision.demand,
        arrival_rate_per_second=observed.get("arrivalsPerSecond"),
        forecast_rate_per_second=planned,
    )
    return replace(decision, demand=demand)


def course_of(decision: Decision) -> Course | None:
    """The line from the rate of now to the rate that was planned for; None where none is known.

    It reaches the planned rate with the cold start of the decision, and says what another one would
    have made of it. A rate that was planned to fall is taken as it will be.
    """
    planned = decision.demand.forecast_rate_per_second
    now = decision.demand.arrival_rate_per_second
    if not planned:
        return None
    cold_start = 0.0 if decision.cold_start is None else decision.cold_start.seconds
    dispersion = decision.demand.scrape_dispersion or 1.0
    if not now or not cold_start or planned <= now:
        return Course(
            rate_per_second=planned,
            growth_per_second2=0.0,
            cold_start_seconds=cold_start,
            dispersion=dispersion,
        )
    lead = cold_start + Limits().tick_seconds + SCRAPE_SECONDS
    return Course(
        rate_per_second=now,
        growth_per_second2=(planned - now) / lead,
        cold_start_seconds=cold_start,
        dispersion=dispersion,
    )


def _required(record: ResourceRecord, pool: str, value: Known | None, what: str) -> Known:
    if value is None:
        of = f" pool {pool}" if pool else ""
        ref = record.ref
        raise NotSizedError(f"{ref.namespace}/{ref.name}{of}: nothing is known yet of its {what}")
    return value
