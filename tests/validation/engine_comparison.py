"""What a real engine did, beside the model and the simulator with the law that was fitted to it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tests.model_fleets import ReplicaGroup, predict
from tests.validation.engine_requests import Served

from servingslo.estimation import estimator
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.workload import LengthDistribution, Workload
from servingslo_lab.sim.replicas.engine import Engine, RequestRecord

PERCENTILES = (50.0, 95.0, 99.0)
METRICS = ("ttft", "tpot")
# The number in the engine forgets the phase before within a few residences.
SETTLING_SECONDS = 10.0
# Far more points than percentiles need; a support point each would be slow to no end.
_LENGTH_POINTS = 200
_SIMULATED_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Latencies of one phase, in seconds, and the engine's own means.

    percentiles: by metric ('ttft', 'tpot'), in the order of PERCENTILES.
    """

    rate_per_second: float
    percentiles: Mapping[str, tuple[float, ...]]
    itl_mean_seconds: float | None
    running_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseComparison:
    """One phase: observed, predicted by the model, simulated on the same requests."""

    observed: Seen
    predicted: Prediction
    simulated: Seen

    def ratio(self, metric: str, percentile: float) -> float:
        """Predicted over observed percentile of `ttft` or `tpot`."""
        predicted: float = getattr(self.predicted, f"{metric}_seconds")(percentile)
        return predicted / self.observed.percentiles[metric][PERCENTILES.index(percentile)]

    def simulated_ratio(self, metric: str, percentile: float) -> float:
        """Simulated over observed percentile of `ttft` or `tpot`."""
        place = PERCENTILES.index(percentile)
        return self.simulated.percentiles[metric][place] / self.observed.percentiles[metric][place]


def estimated(samples: Sequence[FleetSample]) -> Estimate:
    """What the operator's estimator knows after these samples."""
    state, estimate = EstimatorState(), None
    for sample in samples:
        state, estimate = estimator.update(state, sample)
    if estimate is None:
        raise ValueError("no samples")
    return estimate


def compared(
    served: Sequence[Served],
    samples: Sequence[FleetSample],
    load_began_seconds: float,
    phase_seconds: float,
    law: ServiceLaw,
    limits: EngineLimits,
) -> list[PhaseComparison]:
    """Every phase of a load. load_began_seconds: on the clock of the samples."""
    records = simulated(served, law, limits)
    found = []
    for phase, places in _places(served, phase_seconds).items():
        begin = phase * phase_seconds + SETTLING_SECONDS
        end = (phase + 1) * phase_seconds
        chosen = [served[i] for i in places]
        inside = [
            sample
            for sample in samples
            if load_began_seconds + begin <= sample.time_seconds < load_began_seconds + end
        ]
        rate = len(chosen) / (end - begin)
        found.append(
            PhaseComparison(
                observed=_seen(
                    rate,
                    [one.ttft_seconds for one in chosen],
                    [one.tpot_seconds for one in chosen],
                    itl_mean_seconds=_itl_mean_seconds(inside),
                    running_mean=_running_mean(inside),
                ),
                predicted=_predicted(chosen, rate, law, limits),
                simulated=_simulated_phase(served, records, places, rate),
            )
        )
    return found


def simulated(
    served: Sequence[Served], law: ServiceLaw, limits: EngineLimits
) -> list[RequestRecord]:
    """The same requests through the simulated engine with this law."""
    # The simulator knows blocks of 16 tokens alone; with a cache this large it makes no difference.
    engine = Engine(law=law, limits=replace(limits, kv_block_tokens=_SIMULATED_BLOCK_TOKENS))
    numbers: dict[int, int] = {}
    records: dict[int, RequestRecord] = {}

    def collect(over: Sequence[int]) -> None:
        for index in over:
            records[numbers[index]] = engine.requests.take(index)

    for number, one in enumerate(served):
        collect(engine.advance(one.arrival_seconds))
        index = engine.requests.add(
            arrival=one.arrival_seconds,
            prompt_tokens=one.prompt_tokens,
            output_tokens=one.output_tokens,
        )
        numbers[index] = number
        engine.submit(index, one.arrival_seconds)
    now = served[-1].arrival_seconds
    while len(records) < len(served):
        now += 1.0
        collect(engine.advance(now))
    return [records[number] for number in range(len(served))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """What a phase's p95 might have been: 10th and 90th percentile over other arrivals, seconds."""

    ttft: tuple[float, float]
    tpot: tuple[float, float]


def by_chance(
    served: Sequence[Served],
    phase_seconds: float,
    law: ServiceLaw,
    limits: EngineLimits,
    *,
    path_count: int = 20,
    seed: int = 1,
) -> list[Chance]:
    """How far chance alone moves each phase's p95 in the simulator.

    Each path has the same number of requests in each phase and the same lengths in another order,
    at other times.
    """
    rng = np.random.default_rng(seed)
    found: dict[int, list[Mapping[str, tuple[float, ...]]]] = {}
    for _ in range(path_count):
        order = rng.permutation(len(served))
        arrivals = [(one.phase + rng.random()) * phase_seconds for one in served]
        path = sorted(
            (
                replace(served[i], arrival_seconds=arrival, phase=one.phase)
                for i, arrival, one in zip(order, arrivals, served, strict=True)
            ),
            key=lambda one: one.arrival_seconds,
        )
        records = simulated(path, law, limits)
        for phase, places in _places(path, phase_seconds).items():
            seen = _simulated_phase(path, records, places, 0.0)
            found.setdefault(phase, []).append(seen.percentiles)
    place = PERCENTILES.index(95.0)
    return [
        Chance(
            ttft=_range([seen["ttft"][place] for seen in found[phase]]),
            tpot=_range([seen["tpot"][place] for seen in found[phase]]),
        )
        for phase in sorted(found)
    ]


def table(comparisons: Sequence[PhaseComparison]) -> Iterator[str]:
    """The comparison as lines of text; times in milliseconds."""
    yield (
        "rate/s  work |  running real  model |  ITL real  model | metric    "
        + " | ".join(f"p{p:g}: real  model    sim" for p in PERCENTILES)
    )
    for one in comparisons:
        head = (
            f"{one.observed.rate_per_second:6.1f} {one.predicted.work_ratio:5.2f} "
            f"| {_number(one.observed.running_mean):>12} {one.predicted.running_mean:6.1f} "
            f"| {_milliseconds(one.observed.itl_mean_seconds):>9} "
            f"{_milliseconds(one.predicted.itl_mean_seconds):>6}"
        )
        for metric in METRICS:
            cells = []
            for place, percentile in enumerate(PERCENTILES):
                real = one.observed.percentiles[metric][place]
                model = getattr(one.predicted, f"{metric}_seconds")(percentile)
                simulated_ = one.simulated.percentiles[metric][place]
                cells.append(
                    f"{_milliseconds(real):>9} {_milliseconds(model):>6} "
                    f"{_milliseconds(simulated_):>6}"
                )
            yield f"{head} | {metric:6} {' | '.join(cells)}"
            head = " " * len(head)


def _places(served: Sequence[Served], phase_seconds: float) -> dict[int, list[int]]:
    """By phase, the requests that arrived in it once it had settled."""
    found: dict[int, list[int]] = {}
    for place, one in enumerate(served):
        if one.arrival_seconds >= one.phase * phase_seconds + SETTLING_SECONDS:
            found.setdefault(one.phase, []).append(place)
    return found


def _simulated_phase(
    served: Sequence[Served], records: Sequence[RequestRecord], places: Sequence[int], rate: float
) -> Seen:
    return _seen(
        rate,
        [records[i].ttft_seconds for i in places],
        [records[i].tpot_seconds for i in places if served[i].output_tokens > 1],
    )


def _predicted(
    chosen: Sequence[Served], rate: float, law: ServiceLaw, limits: EngineLimits
) -> Prediction:
    prompts = [float(one.prompt_tokens) for one in chosen]
    outputs = [float(one.output_tokens) for one in chosen]
    workload = Workload(
        arrival_rate_per_second=rate,
        prompt=LengthDistribution.from_samples(prompts).compact(_LENGTH_POINTS),
        output=LengthDistribution.from_samples(outputs).compact(_LENGTH_POINTS),
    )
    return predict(workload, ReplicaGroup(law=law, limits=limits, replica_count=1))


def _seen(
    rate: float,
    ttfts: Sequence[float | None],
    tpots: Sequence[float | None],
    *,
    itl_mean_seconds: float | None = None,
    running_mean: float | None = None,
) -> Seen:
    return Seen(
        rate_per_second=rate,
        percentiles={"ttft": _percentiles(ttfts), "tpot": _percentiles(tpots)},
        itl_mean_seconds=itl_mean_seconds,
        running_mean=running_mean,
    )


def _percentiles(values: Sequence[float | None]) -> tuple[float, ...]:
    known = [value for value in values if value is not None]
    return tuple(float(np.percentile(known, p)) for p in PERCENTILES)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, (10.0, 90.0))
    return float(low), float(high)


def _itl_mean_seconds(samples: Sequence[FleetSample]) -> float | None:
    """Mean time between tokens between the first and the last sample, by the engine itself."""
    found = [
        engine.inter_token_seconds
        for sample in samples
        for pod in sample.pods
        for engine in pod.engines
        if engine.inter_token_seconds is not None
    ]
    if len(found) < 2 or found[-1].count <= found[0].count:
        return None
    return (found[-1].sum - found[0].sum) / (found[-1].count - found[0].count)


def _running_mean(samples: Sequence[FleetSample]) -> float | None:
    found = [
        engine.running
        for sample in samples
        for pod in sample.pods
        for engine in pod.engines
        if engine.running is not None
    ]
    return float(np.mean(found)) if found else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:.1f}"
