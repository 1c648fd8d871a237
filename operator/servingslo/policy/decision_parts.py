"""What a decision reports beside the count: steps, needs, demand, model, cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.policy.inputs import Actuation
from servingslo.reasons import Constraint, Reason

StepValue = float | int | str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionStep:
    """One stage that looked at a knob: what it was before and after, why, from which numbers."""

    stage: str
    knob: str
    before: StepValue
    after: StepValue
    reason: Reason
    inputs: Mapping[str, StepValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintNeed:
    """Replicas that one constraint alone asks for; None when no count that was looked at is enough.

    least_feasible: where none would ever be, the least value of the objective that could be met.
    more_than: the greatest count that was looked at, where a greater one would be enough.
    objective: whose constraint it is; None where it is no objective's.
    """

    constraint: Constraint
    replicas: int | None
    least_feasible: float | None = None
    more_than: int | None = None
    objective: Objective | None = None

    @property
    def infeasible(self) -> bool:
        """Whether no count at all would be enough: such a need does not size."""
        return self.replicas is None and self.more_than is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveReport:
    """One objective beside its prediction (at the decided count) and its observation.

    observed_seconds: the percentile over the recent window, from histograms.
    calibration_ratio: observed over predicted, as learnt, which the prediction was multiplied by;
    None where nothing was compared yet.
    share_low_ratio, share_high_ratio: requests within the threshold, an interval because the
    threshold may lie between two bucket edges; None without traffic, or where it is not observed.
    missing: series that would observe it and are not exported, though requests were served; '' for
    none. unobserved: requests arrive, and none was observed yet.
    """

    metric: str
    percentile: float
    threshold_seconds: float
    predicted_seconds: float | None = None
    calibration_ratio: float | None = None
    observed_seconds: float | None = None
    share_low_ratio: float | None = None
    share_high_ratio: float | None = None
    missing: str = ""
    unobserved: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLatency:
    """A percentile of a latency metric, by the model.

    seconds: as corrected by what was observed; None where the count keeps no steady state.
    """

    metric: str
    percentile: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCount:
    """What a replica count is predicted to give.

    meets_objectives: whether it meets all that is planned for: every objective, utilization, KV
    cache, backlog and saturation, with the failures tolerated and without the pods left out. None
    where that is not known. latencies, greatest_rate_per_second (of arrivals at which the count
    keeps every constraint while none fails): unknown until somebody is told, see
    `report.with_latencies`.
    """

    replicas: int
    utilization_ratio: float | None
    kv_usage_ratio: float | None
    meets_objectives: bool | None
    latencies: tuple[PredictedLatency, ...] = ()
    greatest_rate_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReport:
    """Demand as measured and as expected when capacity ordered now would be ready.

    planned_probability: of the forecast's quantile that is planned for, within (0, 1).
    aborted_ratio: share of the requests that ended whose clients gave up.
    scrape_dispersion: index of dispersion of arrivals, 1 for Poisson, from scrape to scrape; None
    before enough was seen. ledger: where the requests of the last windows went.
    """

    arrival_rate_per_second: float | None = None
    forecast_rate_per_second: float | None = None
    planned_probability: float | None = None
    lead_seconds: float | None = None
    backlog_requests: float | None = None
    running_requests: float | None = None
    waiting_requests: float | None = None
    prompt_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    cached_ratio: float | None = None
    kv_usage_ratio: float | None = None
    aborted_ratio: float | None = None
    scrape_dispersion: float | None = None
    ledger: RequestLedger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseReport:
    """The attained share of requests beside the declared one, and the quantile that it earned.

    attained_ratio: of the last period_seconds, as far as it was observed (observed_seconds); None
    before one request was. probability, safe_probability: of the quantile of demand that is planned
    for in calm at a cold start of two minutes, and the one that a new workload begins at.
    """

    attained_ratio: float | None
    target_ratio: float
    period_seconds: float
    observed_seconds: float
    probability: float
    safe_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartReport:
    """How long a replica takes from its order to readiness, and where that is known from.

    source: 'stated' (spec.coldStart), 'measured' (sample_count starts) or 'prior' (none seen yet).
    scheduling, image, loading: the parts of what was measured, None where not seen.
    """

    seconds: float
    source: str
    sample_count: int = 0
    scheduling_seconds: float | None = None
    image_seconds: float | None = None
    loading_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """The service law the plan used, its error, and whether it was trusted.

    relative_error: largest deviation of observed from predicted percentiles, of the objectives, as
    learnt slowly and within bounds; None before one was compared. fit_error: mean error of the
    law's predictions of a window's busy time, out of sample.
    """

    trusted: bool
    reason: Reason
    source: str
    law: ServiceLaw | None = None
    relative_error: float | None = None
    fit_error: float | None = None
    sample_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsUse:
    """Batch limits of an engine that the plan rests on; None where they are not known.

    Sources: 'stated' (spec.engine), 'exported' (the engine's gauges), 'args' (the container's
    command line), 'learnt' (from running, waiting and tokens per step), 'default' (of the engine's
    version and card). unread: what of the command line could not be read, and why; '' for nothing.
    """

    max_num_seqs: int | None = None
    max_num_seqs_source: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_batched_tokens_source: str | None = None
    unread: str = ""

    @property
    def sources(self) -> str | None:
        """Both sources in one word where they are the same, else 'args,default'."""
        both = (self.max_num_seqs_source, self.max_num_batched_tokens_source)
        known = dict.fromkeys(source for source in both if source is not None)
        return ",".join(known) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """What the decided count costs, in the currency of the price.

    per_million_output_tokens, per_million_tokens: at the present demand, of generated tokens alone
    and of prompt and generated ones; None without traffic. saved_per_hour: by the better plan.
    """

    currency: str
    per_hour: float
    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None
    saved_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """Counts as observed when the decision was made."""

    current: int | None
    ready: int
    pending: int
    excluded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The count that somebody else carries out.

    reason: HANDED_OVER, NOBODY_SCALES where no autoscaler is on the target, SCALER_NOT_SERVED
    where KEDA cannot ask for it, or REPORTED_ONLY.
    replicas: what others are given; None while nothing is known, or where nobody is to be given it.
    detail: who scales the target.
    """

    actuation: Actuation
    reason: Reason
    replicas: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRate:
    """How many times as fast as allowed the budget was spent over the last so many seconds."""

    seconds: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """The error budget over its window.

    remaining_ratio: of the budget, if no two misses were of one request; negative when overspent.
    remaining_most_ratio: if as many as can be were. covered_ratio: share of the window of which
    anything is known.
    """

    target_ratio: float
    window_seconds: float
    remaining_ratio: float
    remaining_most_ratio: float
    covered_ratio: float
    burn_rates: tuple[BurnRate, ...] = ()


class RuntimeSource(StrEnum):
    """How the runtime is known: the resource states it, or its pods export its metrics."""

    STATED = "stated"
    RECOGNIZED = "recognized"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeUse:
    """The runtime that the engines were read as, and how it is known; None while it is not."""

    name: str | None = None
    source: RuntimeSource | None = None
