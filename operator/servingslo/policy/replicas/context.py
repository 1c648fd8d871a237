"""Everything that one tick is decided from, gathered once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.law import trust
from servingslo.estimation.sample import PodSample
from servingslo.models.engine.kv_cache import kv_bytes_per_token, kv_capacity_tokens
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.workload import Workload
from servingslo.policy.facts import NO_FACTS, Facts, LimitsChange
from servingslo.policy.inputs import Limits, Observation, SignalProblem, Targets
from servingslo.policy.replicas.demand import (
    Demand,
    Fleet,
    cold_start_seconds,
    expected_demand,
    known_cold_start_seconds,
    lead_seconds,
    wait_budget_seconds,
)
from servingslo.policy.replicas.ownership import acting_limit, ownership_problem
from servingslo.policy.replicas.pods import Pods, read_pods
from servingslo.policy.replicas.prepared_model import PreparedModel, renewed_model, with_means
from servingslo.policy.replicas.proposal import Bounds, bounds_of
from servingslo.policy.replicas.signals import Signals
from servingslo.policy.replicas.sizing import EVEN, Slowness
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TickContext:
    """One tick.

    facts: what knobs observed of their own settings. current: the target's replica count, the
    number that a write would test. own_rollout: the change of batch limits that the rollout in
    progress carries out, None without one or for any other. prepared: None while no law, limits or
    lengths are known. demand: None while no rate is known. features: what each feature sees at
    this tick, by its name.
    """

    observation: Observation
    targets: Targets
    limits: Limits
    state: PlannerState
    now_seconds: float
    signals: Signals
    estimate: Estimate
    facts: Facts
    bounds: Bounds
    current: int
    pods: Pods
    own_rollout: LimitsChange | None
    prepared: PreparedModel | None
    lead_seconds: float
    wait_budget_seconds: float
    demand: Demand | None
    features: Mapping[str, object] = field(default_factory=dict)

    @property
    def without_metrics_seconds(self) -> float | None:
        """How long ago metrics last allowed a conclusion, or this memory began; None before."""
        state = self.state
        fresh = state.started_seconds if state.fresh_seconds is None else state.fresh_seconds
        return None if fresh is None else self.now_seconds - fresh

    @property
    def briefly_blind(self) -> bool:
        """Whether metrics are missing, and for less time than the fallback waits."""
        lost = self.without_metrics_seconds
        if self.signals.no_metrics is None or lost is None:
            return False
        return lost < self.targets.fallback.stale_after_seconds

    @property
    def just_begun(self) -> bool:
        """Whether pods serve, and this memory began less long ago than the fallback waits."""
        began = self.state.started_seconds
        here = math.inf if began is None else self.now_seconds - began
        return bool(self.serving) and here < self.targets.fallback.stale_after_seconds

    @property
    def serving(self) -> tuple[PodSample, ...]:
        """Pods that are ready and count as capacity."""
        return self.pods.serving

    @property
    def excluded(self) -> int:
        """Ready pods that are no capacity."""
        return len(self.pods.unreliable)

    @property
    def on_call(self) -> int:
        """Those of them that serve within seconds once they are needed."""
        return sum(name in self.facts.on_call for name, _ in self.pods.unreliable)

    @property
    def slowness(self) -> Slowness:
        """The serving pods that are slower than their siblings."""
        names = {pod.name for pod in self.serving}
        ratios = [slow.ratio for slow in self.estimate.slow_pods if slow.pod in names]
        if not ratios:
            return EVEN
        return Slowness(share_ratio=len(ratios) / len(names), ratio=sum(ratios) / len(ratios))

    @property
    def cold_start_seconds(self) -> float:
        """Time from the order of a replica until it is ready."""
        return cold_start_seconds(self.estimate, self.targets)

    @property
    def owner(self) -> SignalProblem | None:
        """Why the operator must not set the count; None if it may."""
        return ownership_problem(
            self.observation,
            self.targets.actuation,
            may_sleep=self.targets.replicas.may_sleep,
        )

    @property
    def acting_limit(self) -> Reason | None:
        """Why the count is only reported: another client owns it, or the mode says so."""
        if (owner := self.owner) is not None:
            return owner.reason
        return acting_limit(self.targets, self.limits)

    @property
    def trusted(self) -> bool:
        """Whether the latency model decides."""
        return trust.model_decides(self.estimate.law, prepared=self.prepared is not None)

    @property
    def proven(self) -> bool:
        """Whether it decides by a law that is not only assumed."""
        return self.trusted and self.estimate.law.source is not trust.LawSource.ASSUMED

    @property
    def model_reason(self) -> Reason:
        """Why the latency model decides or does not: it needs more than a law."""
        return trust.model_reason(
            self.estimate.law,
            prepared=self.prepared is not None,
            limits_known=self.estimate.limits is not None,
        )


def tick_context(  # noqa: PLR0913 - gathers what a tick is made of
    observation: Observation,
    targets: Targets,
    limits: Limits,
    state: PlannerState,
    now_seconds: float,
    *,
    signals: Signals,
    estimate: Estimate,
    facts: Facts = NO_FACTS,
) -> TickContext:
    """Gather the context of this tick."""
    current = observation.desired_replicas or 0
    cold_start = known_cold_start_seconds(estimate, targets)
    pods = read_pods(observation, signals, estimate.unreliable_pods, cold_start, now_seconds)
    serving = pods.serving
    rollout = _own_rollout(observation, facts.rollout, serving)
    prepared = _prepared(targets, state, estimate, rollout, now_seconds)
    estimate = with_means(estimate, prepared, len(serving))
    lead = lead_seconds(estimate, targets, limits)
    budget = wait_budget_seconds(targets, prepared)
    context = TickContext(
        observation=observation,
        targets=targets,
        limits=limits,
        state=state,
        now_seconds=now_seconds,
        signals=signals,
        estimate=estimate,
        facts=facts,
        bounds=bounds_of(targets, limits, current=observation.desired_replicas),
        current=current,
        pods=pods,
        own_rollout=rollout,
        prepared=prepared,
        lead_seconds=lead,
        wait_budget_seconds=budget,
        demand=None,
    )
    return replace(context, demand=demand_ahead(context, lead))


def demand_ahead(context: TickContext, lead: float) -> Demand | None:
    """Demand after this lead; None while no arrival rate is known."""
    estimate, prepared, serving = context.estimate, context.prepared, context.serving
    # If no request waits yet, only a trusted law may predict a queue.
    foreseen = estimate.law.trusted or estimate.waiting_requests > 0
    fleet = Fleet(
        serving=len(serving) + context.on_call,
        coming=context.pods.starting,
        queued_requests=sum(e.waiting or 0.0 for pod in serving for e in pod.engines),
        saturation_rate_per_second=(
            prepared.model.saturation_rate_per_second * estimate.engines_per_pod
            if prepared is not None and foreseen
            else None
        ),
    )
    return expected_demand(estimate, fleet, lead=lead, wait_budget=context.wait_budget_seconds)


def _own_rollout(
    observation: Observation, change: LimitsChange | None, serving: tuple[PodSample, ...]
) -> LimitsChange | None:
    """The change of batch limits that the rollout in progress carries out; None for any other.

    A rollout of another change must end before replicas are removed, because the capacity of its
    new pods is unknown. For our own change both limits are known, and it goes pod by pod. A large
    fleet that waited for its end would keep surplus replicas for as many cold starts as it has
    pods.
    """
    if change is None or not observation.rollout_in_progress:
        return None
    ours = {change.before, change.after}
    engines = [engine for pod in serving for engine in pod.engines]
    # A limit without a flag is as it was before the change.
    sequences, tokens = change.before
    in_force = {
        (engine.max_num_seqs or sequences, engine.max_num_batched_tokens or tokens)
        for engine in engines
    }
    templates = {pod.template_hash for pod in observation.pods if not pod.deleting}
    return change if in_force <= ours and len(templates) <= len(ours) else None


def _prepared(
    targets: Targets,
    state: PlannerState,
    estimate: Estimate,
    rollout: LimitsChange | None,
    now_seconds: float,
) -> PreparedModel | None:
    """The model to plan with; the last one if requests stopped and lengths are unknown.

    Until the last pod has our new limits, the plan uses the capacity with the old ones. The newest
    pod shows the limits in force, but a scale-down may remove it first.
    """
    law, workload = estimate.law.law, estimate.workload
    if workload is None and state.prepared is not None:
        workload = state.prepared.workload
    limits = _limits(targets, estimate)
    if law is None or workload is None or limits is None or not _serves(law, workload):
        return None
    if rollout is not None:
        sequences, tokens = rollout.before
        limits = replace(limits, max_num_seqs=sequences, max_num_batched_tokens=tokens)
    return renewed_model(
        state.prepared,
        workload=workload,
        law=law,
        limits=limits,
        now_seconds=now_seconds,
        error_ratio=estimate.length_error_ratio,
    )


def _serves(law: ServiceLaw, workload: Workload) -> bool:
    """Whether the laws exist: a step takes time, and a request has output tokens.

    A fit over its first windows may attribute all time to the tokens and none to the step.
    """
    if law.step_fixed_seconds + law.loading_seconds <= 0:
        return False
    return law.step_seconds(1.0) > 0 and workload.output.mean_tokens > 0


def _limits(targets: Targets, estimate: Estimate) -> EngineLimits | None:
    """Limits in force, with the stated geometry of the KV cache if the engine reports none."""
    if estimate.limits is not None:
        return estimate.limits
    stated = targets.kv_cache_model
    sequences, budget = estimate.max_num_seqs, estimate.max_num_batched_tokens
    if stated is None or sequences is None or budget is None:
        return None
    capacity = kv_capacity_tokens(
        stated.gpu_memory_bytes * stated.gpus,
        stated.weights_bytes,
        stated.workspace_bytes,
        kv_bytes_per_token(
            stated.layers, stated.kv_heads, stated.head_dim, stated.bytes_per_element
        ),
    )
    if capacity <= 0:
        return None
    return EngineLimits(
        max_num_seqs=sequences, max_num_batched_tokens=budget, kv_capacity_tokens=capacity
    )
