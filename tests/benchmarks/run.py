"""Prints how long an evaluation, a plan and a search over batch limits take, beside their targets.

Times are processor time of one thread; median and 99th percentile are over different loads, or over
the ticks of a replay. An evaluation is timed once at each load: a second call would find its tables
made. It is timed of one candidate by itself, and of several replica counts at once, as the planner
asks for them: then the time is that of all, divided by their number. Others are the best of a few
repetitions, so that other work on the machine counts as little as it can. Plans are made from the
observations of simulated fleets, with demand that swings and that is steady, of half an hour and of
two hours, replayed tick by tick with the memory that belongs to them and models made anew; counts
are searched up to 64; estimation is told apart. Run `make bench`.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tests.benchmarks.plain_mixture import plain_percentiles
from tests.unit.policy_world import Run, World
from tests.validation.grid import A100, H100, L4, Card, conversation_lengths

from servingslo.estimation import estimator
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.frontier import Frontier
from servingslo.models.fleet.latency import LatencyModel, Objective, Routing, forget_models
from servingslo.models.fleet.objective_metrics import prepare
from servingslo.models.objectives import LatencyMetric
from servingslo.models.workload import LengthDistribution, Workload
from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    BatchingTargets,
    Limits,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas.sizing import Load, SizingCase, size
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.rules.batch_search import BatchCase, BatchLimits, best_limits

REPLICAS = 8
# Candidates that are evaluated at once: in most ticks the planner asks for a few.
TOGETHER = {1: "alone", 4: "of 4", 16: "of 16"}
EVALUATIONS = 2000
REPETITIONS = 3
REPLAYS = 9
# Recordings of real length.
FLEETS = (10, 34)
LONG_SECONDS = 7200.0
SEARCHES = 20
LARGEST_COUNT = 64
# One replica of the slowest card, so that the least count lies near the end of the search.
SEARCHED_UTILIZATION = 0.8
OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0),
    Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.075),
)
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=OBJECTIVES,
    replicas=ReplicaTargets(minimum=1, maximum=LARGEST_COUNT),
    batching=BatchingTargets(mode=BatchingMode.OFF),
    admission_mode=AdmissionMode.RECOMMEND,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; target: microseconds, of the median or of the 99th percentile."""

    name: str
    microseconds: Sequence[float] | np.ndarray
    target_median: float | None = None
    target_p99: float | None = None

    def text(self) -> str:
        """The line."""
        median, high = np.percentile(self.microseconds, [50.0, 99.0])
        target, verdict = "", ""
        if self.target_median is not None:
            target = f"median < {self.target_median:.0f}"
            verdict = "met" if median < self.target_median else "missed"
        if self.target_p99 is not None:
            target = f"p99 < {self.target_p99:.0f}"
            verdict = "met" if high < self.target_p99 else "missed"
        return f"{self.name:70s} {median:10.0f} {high:10.0f}   {target:14s} {verdict}"


def timed(call: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Processor time of one call, in microseconds: the best of a few."""
    best = math.inf
    for _ in range(repetitions):
        start = time.process_time_ns()
        call()
        best = min(best, (time.process_time_ns() - start) / 1e3)
    return best


def conversation() -> Workload:
    """The lengths of the conversation trace in as many points as a histogram has."""
    prompts, outputs = conversation_lengths()
    return Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples(prompts.tolist()).compact(60),
        output=LengthDistribution.from_samples(outputs.tolist()).compact(60),
        context_tokens_per_sequence=float(
            (outputs * (prompts + outputs / 2)).mean() / outputs.mean()
        ),
    )


def law_and_limits(card: Card) -> tuple[ServiceLaw, EngineLimits]:
    """Law and limits of a card of the validation grid."""
    law = ServiceLaw(
        step_fixed_seconds=card.a,
        step_per_sequence_seconds=card.b,
        prefill_per_token_seconds=card.c,
        context_per_token_seconds=card.d,
    )
    limits = EngineLimits(
        max_num_seqs=card.max_num_seqs,
        max_num_batched_tokens=card.max_num_batched_tokens,
        kv_capacity_tokens=card.kv_capacity_tokens,
    )
    return law, limits


def evaluation_rows(card: Card) -> list[Row]:
    """One candidate at loads from idle to nearly saturated."""
    workload = conversation()
    law, limits = law_and_limits(card)
    model = LatencyModel(workload, law, limits)
    top = model.saturation_rate_per_second
    rates = np.random.default_rng(1).uniform(0.1, 0.95, EVALUATIONS) * top

    def evaluate(rate: float, together: int) -> None:
        counts = range(REPLICAS, REPLICAS + together)
        candidates = model.predict_many([rate * REPLICAS] * together, counts, Routing.POOLED)
        prepare(candidates, LatencyMetric.TTFT)
        prepare(candidates, LatencyMetric.TPOT)
        for prediction in candidates:
            prediction.ttft_seconds(99.0)
            prediction.tpot_seconds(99.0)
            prediction.queue_seconds(99.0)
            prediction.kv_usage_quantile(95.0)

    def evaluate_latency(rate: float) -> None:
        prediction = model.predict(rate * REPLICAS, REPLICAS, Routing.POOLED)
        prediction.latency_seconds(99.0)

    for rate in rates[:50]:
        evaluate(float(rate), 1)
    for rate in rates[:5]:
        evaluate_latency(float(rate))
    name = card.name.upper()
    return [
        *(
            Row(
                name=f"{name}: TTFT, TPOT, queue time at p99, KV use at p95; {words}",
                microseconds=[
                    timed(lambda r=rate, n=together: evaluate(r, n), 1) / together
                    for rate in rates.tolist()
                ],
                target_median=100.0,
            )
            for together, words in TOGETHER.items()
        ),
        Row(
            name=f"{name}: end-to-end latency at p99 (needs TTFT and TPOT)",
            microseconds=[timed(lambda r=rate: evaluate_latency(r), 1) for rate in rates.tolist()],
        ),
    ]


def plain_row(card: Card) -> Row:
    """The percentiles of a plain mixture, at the same loads as the others."""
    workload = conversation()
    law, limits = law_and_limits(card)
    top = LatencyModel(workload, law, limits).saturation_rate_per_second
    rates = np.random.default_rng(1).uniform(0.1, 0.95, EVALUATIONS // 10) * top
    return Row(
        name=f"{card.name.upper()}: the same TTFT and TPOT by a plain numpy mixture",
        microseconds=[
            timed(lambda r=rate: plain_percentiles(workload, law, r, 99.0))
            for rate in rates.tolist()
        ],
    )


def observations(
    swing_ratio: float = 0.375, pods: int = 8, seconds: float = 1800.0
) -> list[Observation]:
    """What a planner saw of a simulated fleet of so many pods under a demand that swings."""
    mean = 2.0 * pods
    world = World(rate=lambda at: mean * (1.0 + swing_ratio * math.sin(at / 300.0)), replicas=pods)
    return Run(world, TARGETS, Limits()).until(seconds).observations


def plan_rows(
    seen: Sequence[Observation], replays: int = REPLAYS
) -> tuple[list[Row], PlannerState]:
    """Every tick of the recorded observations: all of it, and the planner's share."""
    total: list[float] = []
    estimation: list[float] = []
    state = PlannerState()
    inner = estimator.update

    def counted(*arguments: object) -> object:
        start = time.process_time_ns()
        found = inner(*arguments)  # type: ignore[arg-type]
        estimation.append((time.process_time_ns() - start) / 1e3)
        return found

    estimator.update = counted  # type: ignore[assignment]
    try:
        for replay in range(replays + 1):
            state = PlannerState()
            forget_models()  # an operator meets every new mix once
            if replay == 1:  # the first one fills caches
                total.clear()
                estimation.clear()
            for observation in seen:
                start = time.process_time_ns()
                _, state = plan(observation, TARGETS, Limits(), state, observation.time_seconds)
                total.append((time.process_time_ns() - start) / 1e3)
    finally:
        estimator.update = inner
    whole = np.array(total).reshape(replays, -1)
    part = np.array(estimation).reshape(replays, -1)
    rows = [
        Row(
            name="plan(): replicas and admission, without estimation",
            microseconds=(whole - part).min(axis=0),
            target_p99=1000.0,
        ),
        Row(name="plan(): estimation of the same tick", microseconds=part.min(axis=0)),
        Row(name="plan(): all of it, with estimation", microseconds=whole.min(axis=0)),
    ]
    return rows, state


def sizing_case(card: Card) -> SizingCase:
    """What counts are judged by."""
    law, limits = law_and_limits(card)
    return SizingCase(
        frontier=Frontier(LatencyModel(conversation(), law, limits)),
        routing=Routing.POOLED,
        objectives=OBJECTIVES,
        utilization_target_ratio=0.85,
        kv_cache_target_ratio=0.9,
        largest_count=LARGEST_COUNT,
    )


def size_row() -> Row:
    """The least count of up to 64 where nothing is known of the mix yet."""
    case = sizing_case(A100)

    def fresh() -> SizingCase:
        return replace(case, frontier=Frontier(case.model))

    most = LARGEST_COUNT * SEARCHED_UTILIZATION * case.model.saturation_rate_per_second
    rates = np.random.default_rng(2).uniform(0.2, 1.0, EVALUATIONS // 10) * most
    return Row(
        name="least count of up to 64 for 2 objectives, nothing known yet",
        microseconds=[
            timed(
                lambda r=rate: size(
                    replace(case, frontier=Frontier(case.model)), Load(rate_per_second=r)
                )
            )
            for rate in rates.tolist()
        ],
    )


def search_row(state: PlannerState) -> Row:
    """The search over batch limits for the mix that the replay ended with."""
    mix = state.prepared
    if mix is None:
        raise SystemExit("the replay ended without a mix of requests")
    times = []
    for trial in range(SEARCHES):
        # A mix a little different each time: nothing may come from a cache.
        law = replace(mix.law, step_fixed_seconds=mix.law.step_fixed_seconds * (1 + 1e-3 * trial))
        model = LatencyModel(mix.workload, law, mix.limits)
        batch = BatchCase(
            workload=mix.workload,
            law=law,
            limits=mix.limits,
            case=replace(sizing_case(L4), frontier=Frontier(model)),
            load=Load(rate_per_second=16.0),
            objectives=OBJECTIVES,
        )
        current = BatchLimits(
            max_num_seqs=mix.limits.max_num_seqs,
            max_num_batched_tokens=mix.limits.max_num_batched_tokens,
        )
        times.append(timed(lambda b=batch, c=current: best_limits(b, c), 1))
    return Row(name="search over batch limits", microseconds=times, target_p99=50_000.0)


def main() -> None:
    """Print the table."""
    out = sys.stdout.write
    out(f"{'processor time, microseconds':70s} {'median':>10s} {'p99':>10s}   target\n")
    for card in (H100, L4):
        for row in (*evaluation_rows(card), plain_row(card)):
            out(row.text() + "\n")
    rows, state = plan_rows(observations())
    steady, _ = plan_rows(observations(0.0))
    steady_row = replace(steady[0], name="plan(): the same while demand is steady")
    long = [
        replace(row, name=f"{row.name}; {pods} pods, 2 hours")
        for pods in FLEETS
        for row in plan_rows(observations(pods=pods, seconds=LONG_SECONDS), 1)[0][::2]
    ]
    for row in (*rows, steady_row, *long, size_row(), search_row(state)):
        out(row.text() + "\n")


if __name__ == "__main__":
    main()
