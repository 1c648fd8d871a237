"""The sample read of a workload at one tick, and the estimate made from it."""

from collections.abc import Mapping
from dataclasses import field

from servingslo.estimation.engine_steps import Doubt
from servingslo.estimation.forecast.demand import Forecast
from servingslo.estimation.forecast.past_arrivals import PastArrivals
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.gateway.counts import GatewayFlow
from servingslo.estimation.gateway.fallback import FallbackUse
from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.estimation.gateway.use import GatewayUse
from servingslo.estimation.law.rows import BatchCounts
from servingslo.estimation.law.trust import LawEstimate
from servingslo.estimation.pods.batch_limits import NOTHING_STATED, LimitsInForce, StatedLimits
from servingslo.estimation.pods.cold_start import ColdStartEstimate
from servingslo.estimation.pods.gpus import GpuUse
from servingslo.estimation.pods.health import SaturationSignal
from servingslo.estimation.pods.slowdown import SlowPod
from servingslo.estimation.requests.histograms import HistogramDelta
from servingslo.estimation.requests.served_models import ServedModels
from servingslo.estimation.sample import GatewaySample, PodSample
from servingslo.estimation.windows.freshness import DEFAULT_STALE_AFTER_SECONDS, PodMetrics
from servingslo.models.engine.service_time import DynamicBatcher, EngineLimits, ServiceLaw
from servingslo.models.objectives import Objective, Routing
from servingslo.models.workload import Workload
from servingslo.records import record
from servingslo.runtimes.catalogue import profile


@record(frozen=True, slots=True, kw_only=True)
class FleetSample:
    """One snapshot of a workload's pods and of its gateway.

    time_seconds: when it was read. stale_after_seconds: metrics older than this are not used.
    history: past arrival rates, set at the tick that read them. season_days: 1 or 7 if a daily or
    weekly season is stated. service_law, stated_limits: set if stated.
    law_assumed: it comes from the names of card and model. runtime: of the engines; None if no
    default limit may be assumed. classes: counts of each class of requests. sheddable: the names of
    those that order no replicas. batches: executions of servers of dynamic batches and their time
    in microseconds, by pod and size, since their model was loaded; empty if not read. fallback: the
    gateway's counts of a fallback. metrics: the state of pods' metrics by name, as far as it is
    known already. held_up: these engines wait for another pool of the path, so their times and
    their KV use are not of their own work.
    """

    time_seconds: float
    pods: tuple[PodSample, ...]
    gateway: GatewaySample | None = None
    classes: Mapping[str, GatewaySample] = field(default_factory=dict)
    sheddable: frozenset[str] = frozenset()
    fallback: GatewaySample | None = None
    held_up: bool = False
    stale_after_seconds: float = DEFAULT_STALE_AFTER_SECONDS
    history: RateHistory | None = None
    season_days: int | None = None
    service_law: ServiceLaw | None = None
    law_assumed: bool = False
    stated_limits: StatedLimits = NOTHING_STATED
    runtime: str | None = None
    batches: Mapping[str, BatchCounts] = field(default_factory=dict)
    metrics: Mapping[str, PodMetrics] = field(default_factory=dict)

    @property
    def batcher(self) -> DynamicBatcher | None:
        """How batches of whole requests form; None if the engines serve none, or if not stated."""
        known = self.runtime is not None and not profile(self.runtime).has_tokens
        return self.stated_limits.batcher if known else None


@record(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known at one tick. None means unknown.

    arrival_rate_per_second: now, of the whole workload, without retries; offered_rate_per_second:
    with retries. Both without sheddable classes. sheddable_per_second: admitted of those.
    keeping_ratio: of the requests in flight, the share of the classes that replicas are kept for.
    ordering_ratio: that they are ordered for; 0 while they wait for another pool.
    classes: what the gateway counted of each. workload: at that rate. limits: in force on the
    newest ready pods, None unless all are known; in_force: each batch limit with its source;
    kv_capacity_tokens: known separately.
    length_error_ratio: standard error of the mean lengths, as a share of them.
    engines_per_pod: data-parallel engines of a pod. running_requests, waiting_requests: in all
    engines, including those of pods that are being deleted. backlog_requests: requests without a
    first token, in engines that stay and at the gateway. prefill_tokens_per_token: prompt tokens
    computed for each token decoded, over the last scrapes. observed: latencies over the last two
    minutes by metric. calibration: observed / predicted by metric. unreliable_pods: Ready pods that
    provide no capacity, each with the reason; slow_pods: they serve, but more slowly than their
    siblings.
    gateway: how its count was used, None if none is read. ledger: where the requests went.
    retries_known: whether retries per refusal were measured; otherwise they are assumed.
    discarded_per_second: a rate that was counted but not used because new pods served unscraped;
    else None. doubts: windows of this tick that no engine can have produced; nothing was learnt
    from them.
    lost_families: pods that lack series which they had or their siblings have, with the series;
    also pods whose numbers do not move ('movement'). means: by metric, of engines that export only
    sums.
    summaries: the metrics of `observed` that come from the worst pod. transfer_mean_seconds: of KV
    caches that these engines received, None if not exported. phases: parts of the time of a request
    and the gateway's time of a whole one, by name, of those that are exported. gpus: None without
    GPUs, or if nothing is known about them. models: None if each engine serves one model without
    adapters. fallback: what the gateway counted of it, None without one. past: arrivals of the last
    day. window: what was newly counted of them. longer_ratios: prompts and answers of the last
    minute over those of the workload, where they surely are longer.
    """

    arrival_rate_per_second: float | None
    offered_rate_per_second: float | None
    rejected_per_second: float
    workload: Workload | None
    law: LawEstimate
    limits: EngineLimits | None
    in_force: LimitsInForce
    kv_capacity_tokens: float | None
    engines_per_pod: int
    forecast: Forecast
    backlog_requests: float
    running_requests: float
    waiting_requests: float
    cold_start: ColdStartEstimate
    observed: Mapping[str, HistogramDelta]
    kv_usage_ratio: float | None
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    cached_ratio: float | None
    abort_ratio: float | None
    prefill_tokens_per_token: float | None
    length_error_ratio: float
    calibration: Mapping[str, float]
    routing: Routing
    unreliable_pods: tuple[tuple[str, str], ...]
    slow_pods: tuple[SlowPod, ...]
    saturation_signal: SaturationSignal
    gateway: GatewayUse | None = None
    retries_known: bool = False
    discarded_per_second: float | None = None
    ledger: RequestLedger | None = None
    doubts: tuple[Doubt, ...] = ()
    lost_families: tuple[tuple[str, str], ...] = ()
    means: Mapping[str, HistogramDelta] = field(default_factory=dict)
    summaries: frozenset[str] = frozenset()
    transfer_mean_seconds: float | None = None
    phases: Mapping[str, HistogramDelta] = field(default_factory=dict)
    sheddable_per_second: float = 0.0
    keeping_ratio: float = 1.0
    ordering_ratio: float = 1.0
    classes: Mapping[str, GatewayFlow] = field(default_factory=dict)
    gpus: GpuUse | None = None
    models: ServedModels | None = None
    fallback: FallbackUse | None = None
    past: PastArrivals = field(default_factory=PastArrivals)
    window: RateWindow | None = None
    longer_ratios: tuple[float, float] = (1.0, 1.0)

    @property
    def load_per_second(self) -> float | None:
        """What the engines serve now: requests of all classes, without retries."""
        rate = self.arrival_rate_per_second
        return None if rate is None else rate + self.sheddable_per_second

    def observed_share(self, objective: Objective) -> tuple[float, float] | None:
        """Return the observed share of requests within an objective, as an interval (low, high).

        None without observations of its metric.
        """
        observed = self.observed.get(objective.metric)
        return None if observed is None else observed.share_within(objective.threshold_seconds)

    @property
    def max_num_seqs(self) -> int | None:
        """Most sequences that run at once on one engine."""
        return None if self.in_force.max_num_seqs is None else self.in_force.max_num_seqs.value

    @property
    def max_num_batched_tokens(self) -> int | None:
        """Token budget of one step."""
        budget = self.in_force.max_num_batched_tokens
        return None if budget is None else budget.value
