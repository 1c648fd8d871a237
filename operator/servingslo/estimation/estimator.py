"""Estimate a workload's present state: `update(state, sample) -> (state, estimate)`.

Pure: the state is an argument and a result, and time comes with the sample. Everything that may be
unknown is None. An estimate says how it was obtained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from servingslo.copying import replace
from servingslo.estimation.engine_steps import (
    counting_nothing,
    doubts_of,
    engine_steps,
    law_of_pods,
    lost_families,
)
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.forecast import demand as forecast
from servingslo.estimation.forecast import past_arrivals
from servingslo.estimation.forecast.demand import ForecastState
from servingslo.estimation.forecast.past_arrivals import PastArrivals
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo.estimation.gateway import counts as gateway
from servingslo.estimation.gateway.counts import GatewayFlow
from servingslo.estimation.gateway.fallback import measure_fallback
from servingslo.estimation.law import calibration
from servingslo.estimation.law.batch_rows import (
    WholeRequests,
    counted_rows,
    mean_deltas,
    summary_deltas,
    window_rows,
)
from servingslo.estimation.law.calibration import EMPTY_CALIBRATION, CalibrationState
from servingslo.estimation.law.configuration import fleet_configuration, newest_pod
from servingslo.estimation.law.fit import LawState, learn, select_configuration
from servingslo.estimation.law.fit import law as law_of_fit
from servingslo.estimation.law.rows import BatchCounts, Row
from servingslo.estimation.law.stated import score_stated
from servingslo.estimation.law.trust import (
    OF_SPEC,
    add_assumed_error,
    distrust_if_gpus_disagree,
    distrust_if_size_misfits,
    law_in_force,
)
from servingslo.estimation.pods import batch_limits, cold_start, gpus, health, slowdown
from servingslo.estimation.pods.batch_limits import LimitEvidence, LimitsInForce
from servingslo.estimation.pods.cold_start import ColdStartState
from servingslo.estimation.pods.gpus import GpuState
from servingslo.estimation.pods.health import HealthState
from servingslo.estimation.pods.slowdown import PodSlowdown
from servingslo.estimation.requests import arrivals, lengths, served_models
from servingslo.estimation.requests.arrivals import ArrivalMeasurement, ArrivalState
from servingslo.estimation.requests.lengths import Lengths, LengthState
from servingslo.estimation.requests.observed import (
    ObservedState,
    gateway_times,
    observe_latencies,
    pool,
)
from servingslo.estimation.requests.routing import RoutingState, learn_routing, routing_of
from servingslo.estimation.requests.served_models import ServedModelsState
from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows import balance
from servingslo.estimation.windows.counters import (
    DOUBTED_WINDOWS,
    EngineMemory,
    EngineStep,
    Window,
)
from servingslo.estimation.windows.families import count_no_token, generate_no_token, have_no_gaps
from servingslo.estimation.windows.freshness import (
    Freshness,
    assess,
    seen_behind_seconds,
    seen_scrape_seconds,
)
from servingslo.models.engine.service_time import EngineLimits
from servingslo.models.workload import Workload
from servingslo.reasons import Reason

# Pods scraped seconds apart look unevenly loaded while demand jumps.
# Judgement; measured by wrong conclusions about routing during simulated surges.
STEADY_PROBABILITY = 0.2
_IN_TURN = "counts of much and little in turn; do two servers of Prometheus answer?"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorState:
    """All stored state of a workload; the default knows nothing. Its size is bounded by its pods.

    scrape_seconds: interval between scrapes; None while unknown. behind_seconds: how late the store
    shows them. paces: of the last ticks. batches: as last read.
    """

    time_seconds: float | None = None
    scrape_seconds: float | None = None
    behind_seconds: float | None = None
    paces: tuple[float, ...] = ()
    batches: Mapping[str, BatchCounts] = field(default_factory=dict)
    engines: tuple[EngineMemory, ...] = ()
    arrivals: ArrivalState = field(default_factory=ArrivalState)
    lengths: LengthState = field(default_factory=LengthState)
    law: LawState = field(default_factory=LawState)
    slowdowns: tuple[PodSlowdown, ...] = ()
    forecast: ForecastState = field(default_factory=ForecastState)
    past: PastArrivals = field(default_factory=PastArrivals)
    cold_start: ColdStartState = field(default_factory=ColdStartState)
    health: HealthState = field(default_factory=HealthState)
    observed: ObservedState = field(default_factory=ObservedState)
    routing: RoutingState = field(default_factory=RoutingState)
    calibration: CalibrationState = EMPTY_CALIBRATION
    limits: LimitEvidence = field(default_factory=LimitEvidence)
    gpus: GpuState = field(default_factory=GpuState)
    models: ServedModelsState = field(default_factory=ServedModelsState)


def update(state: EstimatorState, sample: FleetSample) -> tuple[EstimatorState, Estimate]:
    """Return the state after a sample, and the estimate.

    A sample that is not newer than the state teaches nothing: the estimate is made from the state.
    """
    fresh = assess(
        sample.pods,
        sample.stale_after_seconds,
        state.scrape_seconds,
        sample.metrics,
        state.behind_seconds,
    )
    lost = lost_families(state.engines, fresh.engines, state.scrape_seconds)
    is_new = state.time_seconds is None or sample.time_seconds > state.time_seconds
    if is_new and sample.history is not None:
        known = forecast.with_history(state.forecast, sample.history, sample.season_days)
        past = past_arrivals.with_history(state.past, sample.history, sample.time_seconds)
        state = replace(state, forecast=known, past=past)
    steps = _steps(state, sample, fresh) if is_new else ()
    windows = [w for step in steps if (w := step.counters or step.flow) is not None]
    measured = ArrivalMeasurement()
    classes: Mapping[str, GatewayFlow] = {}
    if is_new:
        counted, classes = arrivals.count_classes(
            state.arrivals,
            sample.classes,
            sample.sheddable,
            sample.time_seconds,
            sample.stale_after_seconds,
        )
        state = replace(state, arrivals=counted)
        state, measured = _learn(state, sample, fresh, steps, windows)
    state, estimate = _estimate(state, sample, fresh, windows, measured, classes)
    lost = (*lost, *counting_nothing(state.engines, fresh.engines))
    lost = (*lost, *((w.pod, "movement") for w in windows if w.still))
    if balance.in_turn(state.paces):
        lost = (*lost, *((pod.name, _IN_TURN) for pod, _ in fresh.engines))
    return state, replace(estimate, doubts=doubts_of(steps), lost_families=lost)


def calibrate(
    state: EstimatorState,
    predicted_seconds: Mapping[str, Mapping[float, float]],
    estimate: Estimate,
) -> EstimatorState:
    """Return the state after comparing predicted with observed percentiles at the present load.

    predicted_seconds: by metric and percentile, uncalibrated, at the current rate and reliable
    pods. Call it once per RECENT_SECONDS, while the law is trusted and the count has not changed.
    """
    return replace(
        state,
        calibration=calibration.learn(state.calibration, predicted_seconds, estimate.observed),
    )


def _steps(state: EstimatorState, sample: FleetSample, fresh: Freshness) -> tuple[EngineStep, ...]:
    """Return one step of each fresh engine, checked with the trusted law in force."""
    fit = state.law.fits[0] if state.law.fits else None
    known = None if fit is None or fit.trusted is None else (fit.configuration, fit.trusted.law)
    now, before = sample.time_seconds, state.time_seconds
    elapsed = None if before is None else now - before
    laws = law_of_pods(known, sample.pods)
    return engine_steps(state.engines, fresh.engines, laws, now, elapsed)


def _learn(
    state: EstimatorState,
    sample: FleetSample,
    fresh: Freshness,
    steps: Sequence[EngineStep],
    windows: Sequence[Window],
) -> tuple[EstimatorState, ArrivalMeasurement]:
    """Return the state with one tick's windows in every part."""
    now = sample.time_seconds
    memories = {(m.pod, m.engine): m for m in state.engines}
    memories.update({(s.memory.pod, s.memory.engine): s.memory for s in steps})
    named = {p.name for p in sample.pods}
    through, counted = gateway.measure(
        state.arrivals.gateway, sample.gateway, now, sample.stale_after_seconds
    )
    beyond, fallback = measure_fallback(
        state.arrivals.fallback, sample.fallback, now, sample.stale_after_seconds
    )
    before = replace(state.arrivals, gateway=through, fallback=beyond)
    moving = [window for window in windows if not window.still]
    flow, measured = arrivals.measure(before, moving, fresh, counted, fallback)
    demand, past = state.forecast, state.past
    window = _rate_window(measured, flow.dispersion)
    # What spoils one page often spoils others of the same scrape, though they pass for true. A pod
    # whose pages stay impossible is alone in it, and demand is that of the others.
    spoilt = any(step.doubt and step.memory.doubted <= DOUBTED_WINDOWS for step in steps)
    if window is not None and not spoilt:
        demand = forecast.observe(demand, window, now)
        past = past_arrivals.observe(past, window.rate_per_second, window.seconds, now)
    histograms = pool(steps)
    warm = [step for step in steps if step.flow is None or step.flow.warm]
    latencies = histograms if len(warm) == len(steps) else pool(warm)
    latencies = latencies | gateway_times(counted) | mean_deltas(windows)
    elsewhere = 0.0 if fallback is None else fallback.passed_on_per_second
    here = max((measured.offered_per_second or 0.0) - elsewhere, 0.0)
    share = (here + measured.sheddable_per_second) / max(len(_serving(fresh)), 1)
    paired = [w for step in steps if (w := step.lasting) is not None]
    law, slowdowns = _learn_law(state, sample, paired, flow.dispersion)
    learnt = replace(
        state,
        time_seconds=now,
        scrape_seconds=seen_scrape_seconds(
            state.scrape_seconds, [w.seconds for w in windows if not w.from_zero]
        ),
        behind_seconds=seen_behind_seconds(
            state.behind_seconds,
            state.scrape_seconds,
            fresh,
            {(w.pod, w.engine) for w in windows},
        ),
        paces=balance.next_paces(state.paces, windows, len(fresh.engines)),
        engines=tuple(m for (pod, _), m in memories.items() if pod in named),
        arrivals=flow,
        forecast=demand,
        past=past,
        lengths=lengths.observe(
            state.lengths,
            paired,
            histograms.get("prompt"),
            histograms.get("output"),
            unbroken=not any(s.doubt or (s.lasting and s.lasting.restarted) for s in steps),
        ),
        law=law,
        batches=sample.batches,
        slowdowns=slowdowns,
        cold_start=cold_start.observe(state.cold_start, sample.pods),
        health=health.observe(state.health, sample.pods, windows, share),
        limits=_learn_limits(state.limits, sample, steps),
        gpus=gpus.observe(
            state.gpus, sample.pods, windows, paired, slowdowns, sample.stale_after_seconds
        ),
        models=served_models.observe(state.models, fresh.engines, now),
        observed=observe_latencies(state.observed, latencies, now),
    )
    if sample.held_up:
        learnt = replace(
            learnt,
            slowdowns=state.slowdowns,
            health=state.health,
            gpus=state.gpus,
            lengths=replace(
                learnt.lengths,
                held_tokens=state.lengths.held_tokens,
                held_by=state.lengths.held_by,
            ),
        )
    if windows:
        steady = forecast.forecast(demand, now).unsettled_probability < STEADY_PROBABILITY
        work = _work_ratio(learnt, share)
        awake = [(pod, engine) for pod, engine in fresh.engines if not engine.asleep]
        routing = learn_routing(state.routing, awake, work, now, steady=steady)
        learnt = replace(learnt, routing=routing)
    return learnt, measured


def _rate_window(measured: ArrivalMeasurement, dispersion: float) -> RateWindow | None:
    """Return what was newly counted of arrivals, None if nothing was."""
    if not measured.is_new or measured.first_attempts_per_second is None:
        return None
    return RateWindow(
        rate_per_second=measured.first_attempts_per_second,
        seconds=measured.seconds,
        dispersion=dispersion,
        error_ratio=measured.error_ratio,
    )


def _serving(fresh: Freshness) -> list[EngineSample]:
    """Engines that receive arrivals: those of deleted pods end their requests, others sleep."""
    return [engine for pod, engine in fresh.engines if not pod.deleting and not engine.asleep]


def _work_ratio(state: EstimatorState, arrivals_per_engine: float) -> float | None:
    """Return λ·(O·b + I·c) of one engine; None without a trusted law or lengths."""
    trusted = state.law.fits[0].trusted if state.law.fits else None
    prompt, output = state.lengths.published_prompt, state.lengths.published_output
    if trusted is None or prompt is None or output is None:
        return None
    cached = min(state.lengths.cached_tokens / max(state.lengths.prompt_tokens, 1.0), 1.0)
    work_seconds = (
        output.mean_tokens * trusted.law.growth_seconds(state.law.fits[0].sequences_high)
        + prompt.mean_tokens * (1.0 - cached) * trusted.law.prefill_per_token_seconds
    )
    return arrivals_per_engine * work_seconds


def _learn_law(
    state: EstimatorState, sample: FleetSample, windows: Sequence[Window], dispersion: float
) -> tuple[LawState, tuple[PodSlowdown, ...]]:
    """Learn the law from the pods of the configuration in force, and each pod's slowdown."""
    found = fleet_configuration(sample.pods)
    if found is None:
        return state.law, state.slowdowns
    configuration, same = found
    law = select_configuration(state.law, configuration)
    rows: dict[str, list[Row]] = {}
    several = {p.name for p in sample.pods if batch_limits.counted_several_times(p)}
    alike = [
        replace(window, step_count=None) if window.pod in several else window
        for window in windows
        if window.pod in same
    ]
    for window in alike:
        if window.pod not in sample.batches:
            found_rows = window_rows(window, sample.batcher, dispersion, len(alike))
            rows.setdefault(window.pod, []).extend(found_rows)
    for pod in same & sample.batches.keys() & state.batches.keys():
        rows[pod] = list(counted_rows(state.batches[pod], sample.batches[pod]))
    slowdowns = slowdown.observe(state.slowdowns, rows, law_of_fit(law.fits[0]), same)
    if sample.held_up:
        return law, slowdowns
    slow = {pod.pod: pod.ratio for pod in slowdown.slow_pods(slowdowns)}
    learnt = [row.scaled(slow.get(pod, 1.0)) for pod, each in rows.items() for row in each]
    fit = score_stated(law.fits[0], sample.service_law, learnt, partial(_context_tokens, state))
    fit = learn(fit, learnt)
    return LawState(fits=(fit, *law.fits[1:])), slowdowns


def _learn_limits(
    evidence: LimitEvidence, sample: FleetSample, steps: Sequence[EngineStep]
) -> LimitEvidence:
    """Return what the engines of the configuration in force have shown about their limits."""
    found, newest = fleet_configuration(sample.pods), newest_pod(sample.pods)
    if found is None or newest is None:
        return evidence
    return batch_limits.observe(evidence, newest, steps, found[1])


def _context_tokens(state: EstimatorState) -> float | None:
    """Return the tokens that a running sequence attends; None while lengths are unknown."""
    workload = _workload(0.0, lengths.publish(state.lengths)[1], 1.0)
    return None if workload is None else workload.held_tokens_per_sequence


def _estimate(
    state: EstimatorState,
    sample: FleetSample,
    fresh: Freshness,
    windows: Sequence[Window],
    measured: ArrivalMeasurement,
    classes: Mapping[str, GatewayFlow],
) -> tuple[EstimatorState, Estimate]:
    """Return the estimate, and the state that remembers the published values."""
    shed = state.arrivals.sheddable
    length_state, now_lengths = lengths.publish(state.lengths)
    whole = WholeRequests.of(sample.batcher, state.lengths, counted=bool(sample.batches))
    now_lengths = whole.lengths(now_lengths)
    found = fleet_configuration(sample.pods)
    in_use = [pod for pod in sample.pods if found is not None and pod.name in found[1]]
    without_tokens = generate_no_token(in_use)
    if without_tokens:
        now_lengths = replace(now_lengths, output=None, output_tokens_mean=None)
    law_state, law = law_in_force(
        state.law,
        sample.service_law,
        assumed=sample.law_assumed,
        without_tokens=without_tokens,
    )
    if law.reason is Reason.MODEL_LEARNING and count_no_token(in_use):
        law = replace(law, reason=Reason.NO_TOKENS_GENERATED)
    elif law.reason is Reason.MODEL_LEARNING and have_no_gaps(in_use):
        law = replace(law, reason=Reason.METRIC_NOT_OF_RUNTIME)
    stated = law.law if law.source in OF_SPEC else None
    state = replace(
        state,
        lengths=length_state,
        law=law_state,
        calibration=calibration.of_law(state.calibration, stated),
    )
    keeping = 1.0
    if shed is not None:
        keeping -= shed.offered_ratio if shed.held_ratio is None else shed.held_ratio
    offered = measured.offered_per_second
    rate = measured.first_attempts_per_second
    if rate is None and state.arrivals.recent_rates_per_second and fresh.engines:
        rate = state.arrivals.recent_rates_per_second[-1]
    unreliable = health.unreliable(state.health, sample.pods, dict(fresh.unseen))
    lying = {name for name, _ in unreliable}
    newest = newest_pod(sample.pods)
    first = newest.engines[0] if newest else None
    in_force = LimitsInForce()
    if newest is not None:
        in_force = batch_limits.resolve(newest, sample.stated_limits, sample.runtime, state.limits)
        law = add_assumed_error(law, in_force.assumed_count * [batch_limits.ASSUMED_ERROR_RATIO])
    law = distrust_if_size_misfits(law, sample.batches.values())
    compared = gpus.shares(state.gpus, law.law, partial(_context_tokens, state))
    law, refuted = distrust_if_gpus_disagree(law, compared, disagreed=state.gpus.disagrees)
    state = replace(state, gpus=replace(state.gpus, disagrees=refuted))
    law = whole.named(law)
    engines = [e for p, e in fresh.engines if p.ready and not p.deleting and p.name not in lying]
    signal = health.saturation(state.health, engines, windows)
    waiting = sum(e.waiting or 0.0 for _, e in fresh.engines)
    of_worst = summary_deltas(engines, windows)
    return state, Estimate(
        arrival_rate_per_second=rate,
        offered_rate_per_second=offered if offered is not None else rate,
        rejected_per_second=measured.rejected_per_second,
        workload=_workload(rate, now_lengths, state.arrivals.dispersion),
        law=law,
        limits=whole.limits(_limits(first, in_force)),
        in_force=in_force,
        kv_capacity_tokens=first.kv_capacity_tokens if first else None,
        engines_per_pod=max(len(newest.engines), 1) if newest else 1,
        longer_ratios=now_lengths.longer_ratios,
        window=_rate_window(measured, state.arrivals.dispersion),
        forecast=forecast.forecast(state.forecast, sample.time_seconds),
        past=state.past,
        backlog_requests=sum(e.waiting or 0.0 for e in _serving(fresh))
        + gateway.queued_requests(sample.gateway, sample.stale_after_seconds),
        running_requests=sum(e.running or 0.0 for _, e in fresh.engines),
        waiting_requests=waiting,
        cold_start=cold_start.estimate(state.cold_start),
        observed=state.observed.latencies(sample.time_seconds) | of_worst,
        summaries=frozenset(of_worst),
        transfer_mean_seconds=state.observed.transfer_mean_seconds(sample.time_seconds),
        means=state.observed.means(sample.time_seconds),
        phases=state.observed.phases(sample.time_seconds),
        kv_usage_ratio=signal.kv_usage_ratio,
        prompt_tokens_mean=now_lengths.prompt_tokens_mean,
        output_tokens_mean=now_lengths.output_tokens_mean,
        cached_ratio=now_lengths.cached_ratio,
        abort_ratio=now_lengths.abort_ratio,
        prefill_tokens_per_token=now_lengths.prefill_tokens_per_token,
        length_error_ratio=now_lengths.mean_error_ratio,
        calibration=calibration.ratios(state.calibration),
        routing=routing_of(state.routing),
        unreliable_pods=unreliable,
        slow_pods=slowdown.slow_pods(state.slowdowns),
        saturation_signal=signal,
        gateway=measured.gateway,
        fallback=measured.fallback,
        retries_known=measured.retries_known,
        discarded_per_second=measured.discarded_per_second,
        ledger=measured.ledger,
        sheddable_per_second=measured.sheddable_per_second,
        keeping_ratio=keeping,
        ordering_ratio=0.0 if sample.held_up else keeping,
        classes=classes,
        models=served_models.served_models(state.models, fresh.engines),
        gpus=gpus.use(state.gpus, sample.pods, compared, sample.stale_after_seconds),
    )


def _workload(rate: float | None, now: Lengths, dispersion: float) -> Workload | None:
    if rate is None or now.prompt is None or now.output is None:
        return None
    return Workload(
        arrival_rate_per_second=rate,
        prompt=now.prompt,
        output=now.output,
        cached_ratio=now.cached_ratio or 0.0,
        arrival_dispersion=dispersion,
        context_tokens_per_sequence=now.context_tokens_per_sequence,
    )


def _limits(engine: EngineSample | None, in_force: LimitsInForce) -> EngineLimits | None:
    sequences, budget = in_force.max_num_seqs, in_force.max_num_batched_tokens
    if engine is None or sequences is None or budget is None or engine.kv_capacity_tokens is None:
        return None
    known = EngineLimits(
        max_num_seqs=sequences.value,
        max_num_batched_tokens=budget.value,
        kv_capacity_tokens=engine.kv_capacity_tokens,
    )
    blocks = engine.kv_block_tokens
    return known if blocks is None else replace(known, kv_block_tokens=blocks)
