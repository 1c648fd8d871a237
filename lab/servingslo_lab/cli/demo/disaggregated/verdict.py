"""What one plan over prefill and decode did for clients, from their own records; its picture."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from servingslo_lab.cli.demo.panels import frame_lightly, png, pyplot
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending

# A point of the picture is of this many seconds.
_BIN_SECONDS = 10.0
_NAME_WIDTH = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Both Deployments at one time: ordered and ready replicas, and GPUs that pods hold."""

    at_seconds: float
    ordered: tuple[int, int]
    ready: tuple[int, int]
    held_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run: its begin and end, in seconds; its mean lengths, in tokens."""

    name: str
    begins_seconds: float
    ends_seconds: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """A phase: requests, p95 of TTFT and TPOT in seconds, shares of requests, typical counts.

    within_ratios: within each objective, with its target. counts: medians of the phase's last half,
    prefill and decode.
    """

    name: str
    requests: int
    p95_seconds: tuple[float, float]
    in_slo_ratio: float
    within_ratios: tuple[tuple[Objective, float], ...]
    counts: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Prefill replicas for each decode replica."""
        return self.counts[0] / self.counts[1] if self.counts[1] else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregatedFigures:
    """One run.

    within_ratios: share of requests within each objective, with its target. lost: requests without
    a whole answer. steps_down: of prefill and of decode. replica_seconds: of prefill and of decode.
    most_gpus: that pods held at once. through_ratio: share of requests that passed prefill.
    """

    requests: int
    lost: int
    within_ratios: tuple[tuple[Objective, float], ...]
    in_slo_ratio: float
    phases: tuple[PhaseFigures, ...]
    steps_down: tuple[int, int]
    replica_seconds: tuple[float, float]
    most_gpus: int
    gpus_max: int
    through_ratio: float
    transfer: str


def figures_of(
    records: Sequence[ClientRecord],
    looks: Sequence[Look],
    phases: Sequence[Phase],
    objectives: Sequence[Objective],
    *,
    gpus_max: int,
    through_ratio: float,
    transfer: str,
) -> DisaggregatedFigures:
    """The figures of a run; transfer: its mean time, and where it is from, in words."""
    thresholds = {one.metric: one.threshold_seconds for one in objectives}

    def in_slo(found: Sequence[ClientRecord]) -> float:
        good = [
            one for one in found
            if one.meets(thresholds[LatencyMetric.TTFT], thresholds[LatencyMetric.TPOT])
        ]  # fmt: skip
        return len(good) / len(found) if found else math.nan

    def phase_figures(phase: Phase) -> PhaseFigures:
        begins, ends = phase.begins_seconds, phase.ends_seconds
        found = [one for one in records if begins <= one.arrival_seconds < ends]
        late = [one for one in looks if (begins + ends) / 2 <= one.at_seconds < ends]
        return PhaseFigures(
            name=phase.name,
            requests=len(found),
            p95_seconds=(p95(map(ttft_seconds, found)), p95(map(tpot_seconds, found))),
            in_slo_ratio=in_slo(found),
            within_ratios=tuple((one, _within(found, one)) for one in objectives),
            counts=_typical(late),
        )

    return DisaggregatedFigures(
        requests=len(records),
        lost=sum(one.ending is not Ending.FINISHED for one in records),
        within_ratios=tuple((one, _within(records, one)) for one in objectives),
        in_slo_ratio=in_slo(records),
        phases=tuple(map(phase_figures, phases)),
        steps_down=_steps_down(looks),
        replica_seconds=_replica_seconds(looks),
        most_gpus=max((one.held_gpus for one in looks), default=0),
        gpus_max=gpus_max,
        through_ratio=through_ratio,
        transfer=transfer,
    )


def ttft_seconds(record: ClientRecord) -> float:
    """Time to the first token; infinite without a whole answer."""
    if record.ending is not Ending.FINISHED or record.ttft_seconds is None:
        return math.inf
    return record.ttft_seconds


def tpot_seconds(record: ClientRecord) -> float:
    """Mean time of an output token after the first; infinite without a whole answer."""
    first = ttft_seconds(record)
    if math.isinf(first):
        return math.inf
    return (record.seconds - first) / max(record.output_tokens - 1, 1)


_VALUES: dict[LatencyMetric, Callable[[ClientRecord], float]] = {
    LatencyMetric.TTFT: ttft_seconds,
    LatencyMetric.TPOT: tpot_seconds,
}


def p95(seconds: Iterable[float]) -> float:
    """The 95th percentile; NaN of nothing."""
    ordered = sorted(seconds)
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)] if ordered else math.nan


def missed(figures: DisaggregatedFigures) -> tuple[str, ...]:
    """Promises that this run did not keep, over the whole and in each phase."""
    spans = [("over the run", figures.within_ratios)]
    spans += [(f'in "{one.name}"', one.within_ratios) for one in figures.phases if one.requests]
    found = [
        f"{one.metric.value} held for {_percent(ratio)} of requests {when},"
        f" {one.percentile:g} % are promised"
        for when, within in spans
        for one, ratio in within
        if 100.0 * ratio < one.percentile
    ]
    if figures.lost:
        found.append(f"{figures.lost} requests were lost")
    if figures.most_gpus > figures.gpus_max:
        found.append(f"pods held {figures.most_gpus} GPUs, {figures.gpus_max} are allowed")
    base, prompts, answers, *_ = figures.phases
    if not prompts.ratio > base.ratio:
        found.append(f"the ratio did not rise with the prompts: {_ratios(figures)}")
    if not answers.ratio < prompts.ratio:
        found.append(f"the ratio did not fall with the answers: {_ratios(figures)}")
    for role, steps in zip(("prefill", "decode"), figures.steps_down, strict=True):
        if not steps:
            found.append(f"{role} never stepped down, so nothing is shown of it")
    return tuple(found)


def checked(figures: DisaggregatedFigures) -> tuple[str, ...]:
    """What `missed` looks at, for people, with the figures."""
    shares = ", ".join(
        f"{one.name} {min(map(_percent_of, one.within_ratios), key=float)} %"
        for one in figures.phases
        if one.requests
    )
    return (
        f"each objective over the run and by phase (least share: {shares})",
        "no request lost",
        f"at most {figures.gpus_max} GPUs",
        f"prefill/decode {_ratios(figures)}",
        "both pools stepped down",
    )


def _ratios(figures: DisaggregatedFigures) -> str:
    """'1.00 → 2.00 → 0.67 → 1.00'."""
    return " → ".join(f"{one.ratio:.2f}" for one in figures.phases)


def _percent(ratio: float) -> str:
    """'94.4 %', never rounded up to what is promised."""
    return f"{math.floor(round(1000.0 * ratio, 6)) / 10.0:g} %"


def _percent_of(within: tuple[Objective, float]) -> str:
    return _percent(within[1]).removesuffix(" %")


def table(figures: DisaggregatedFigures) -> str:
    """The figures for people."""
    prefill, decode = (one / SECONDS_PER_HOUR for one in figures.replica_seconds)
    rows = [
        ("requests", f"{figures.requests}, {figures.lost} lost"),
        ("in SLO", f"{figures.in_slo_ratio:.2%} met both objectives"),
        *(
            (f"{one.metric.value} p{one.percentile:g}", _kept(one, ratio))
            for one, ratio in figures.within_ratios
        ),
        *((one.name, _phase(one)) for one in figures.phases),
        ("replica-hours", f"prefill {prefill:.3f}, decode {decode:.3f}"),
        ("steps down", "prefill {}, decode {}".format(*figures.steps_down)),
        ("GPUs held", f"at most {figures.most_gpus} of {figures.gpus_max}"),
        ("through prefill", f"{figures.through_ratio:.1%} of requests"),
        ("transfer", figures.transfer),
    ]
    return "\n".join(f"{name:<{_NAME_WIDTH}} {value}" for name, value in rows)


def draw(
    figures: DisaggregatedFigures,
    records: Sequence[ClientRecord],
    looks: Sequence[Look],
    phases: Sequence[Phase],
    offered: Sequence[tuple[float, int, int]],
) -> bytes | None:
    """Mix, TTFT, TPOT, counts and ratio over time, as PNG; None without matplotlib.

    offered: arrival time, prompt and output tokens of each request.
    """
    plt = pyplot()
    if plt is None:
        return None

    figure, panels = plt.subplots(5, 1, sharex=True, figsize=(11, 12), constrained_layout=True)
    mix, ttft, tpot, counts, ratio = panels
    frame_lightly(panels)
    for place, (name, color) in enumerate((("prompt", "#1d3557"), ("answer", "#e76f51")), start=1):
        bins = _bins((one[0], float(one[place])) for one in offered)
        mix.plot(*_means(bins), color=color, label=name)
    mix.set_ylabel("mean tokens")
    mix.set_yscale("log")
    mix.set_title(
        "Prefill and decode as one plan, real control plane, simulated engines", loc="left"
    )
    for panel, (objective, _) in zip((ttft, tpot), figures.within_ratios, strict=True):
        value = _VALUES[objective.metric]
        bins = _bins((one.arrival_seconds, value(one)) for one in records)
        minutes = [at / SECONDS_PER_MINUTE for at in bins]
        panel.plot(minutes, [p95(found) for found in bins.values()], color="#e76f51", label="p95")
        panel.plot(
            minutes, [median(found) for found in bins.values()], color="#f4a261", label="median"
        )
        panel.axhline(objective.threshold_seconds, color="black", lw=0.8, ls=":", label="objective")
        panel.set_ylabel(f"{objective.metric.value}, s (clients)")
        panel.set_ylim(bottom=0)
    minutes = [one.at_seconds / SECONDS_PER_MINUTE for one in looks]
    for place, (name, color) in enumerate((("prefill", "#1d3557"), ("decode", "#2a9d8f"))):
        ordered = [one.ordered[place] for one in looks]
        counts.step(minutes, ordered, where="post", color=color, label=f"{name}, ordered")
        ready = [one.ready[place] for one in looks]
        counts.step(minutes, ready, where="post", color=color, ls="--", label=f"{name}, ready")
    counts.set_ylabel("replicas")
    counts.set_ylim(bottom=0)
    ratios = [one.ordered[0] / max(one.ordered[1], 1) for one in looks]
    ratio.step(minutes, ratios, where="post", color="#264653", label="prefill / decode, ordered")
    ratio.set_ylabel("ratio")
    ratio.set_ylim(bottom=0)
    ratio.set_xlabel("minutes")
    for panel in panels:
        for phase in phases[1:]:
            panel.axvline(phase.begins_seconds / SECONDS_PER_MINUTE, color="#6c757d", lw=0.8)
        panel.legend(frameon=False, loc="upper left", ncols=4)
    return png(plt, figure)


def _within(records: Sequence[ClientRecord], objective: Objective) -> float:
    value = _VALUES[objective.metric]
    good = sum(value(one) <= objective.threshold_seconds for one in records)
    return good / len(records) if records else math.nan


def _kept(objective: Objective, ratio: float) -> str:
    return f"{ratio:.2%} of requests within {objective.threshold_seconds:g} s"


def _phase(phase: PhaseFigures) -> str:
    ttft, tpot = phase.p95_seconds
    counts = f"prefill {phase.counts[0]:g}, decode {phase.counts[1]:g}, ratio {phase.ratio:.2f}"
    times = f"p95 TTFT {ttft:.2f} s, TPOT {1000 * tpot:.0f} ms"
    return f"{counts}; {times}; {phase.in_slo_ratio:.1%} of {phase.requests} in SLO"


def _typical(looks: Sequence[Look]) -> tuple[float, float]:
    if not looks:
        return (0.0, 0.0)
    return (
        float(median(one.ordered[0] for one in looks)),
        float(median(one.ordered[1] for one in looks)),
    )


def _steps_down(looks: Sequence[Look]) -> tuple[int, int]:
    pairs = list(pairwise(looks))
    return (
        sum(later.ordered[0] < earlier.ordered[0] for earlier, later in pairs),
        sum(later.ordered[1] < earlier.ordered[1] for earlier, later in pairs),
    )


def _replica_seconds(looks: Sequence[Look]) -> tuple[float, float]:
    prefill = decode = 0.0
    for earlier, later in pairwise(looks):
        span = later.at_seconds - earlier.at_seconds
        prefill += span * earlier.ordered[0]
        decode += span * earlier.ordered[1]
    return prefill, decode


def _bins(values: Iterable[tuple[float, float]]) -> dict[float, list[float]]:
    """Values by the middle of their bin of time, in order."""
    found: dict[float, list[float]] = {}
    for at, value in sorted(values):
        found.setdefault((int(at / _BIN_SECONDS) + 0.5) * _BIN_SECONDS, []).append(value)
    return found


def _means(bins: dict[float, list[float]]) -> tuple[list[float], list[float]]:
    minutes = [at / SECONDS_PER_MINUTE for at in bins]
    return minutes, [sum(found) / len(found) for found in bins.values()]
