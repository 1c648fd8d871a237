"""What the GPUs of the pods show: the share of time that they are busy, and the energy of a token.

A GPU is busy while any kernel runs on it, with one running sequence as with a hundred. The law
predicts the same share of a window; a line says (a·steps + b·generated + c·prefilled) / seconds.
Arrivals over the saturation rate are another number: a third of the saturation rate may keep a GPU
busy all day. Both shares are averages over minutes, because a reading covers a second at most.
Sources: NVIDIA, NVML API Reference Guide, nvmlUtilization_t; NVIDIA/dcgm-exporter,
etc/default-counters.csv.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from servingslo.copying import replace
from servingslo.estimation.law.rows import Row, prefill_share
from servingslo.estimation.law.seen import predicted_ratios
from servingslo.estimation.law.stated import at_context
from servingslo.estimation.law.trust import BusyShares
from servingslo.estimation.pods.batch_limits import counted_several_times
from servingslo.estimation.pods.slowdown import PodSlowdown, slow_pods
from servingslo.estimation.sample import GPUSample, PodSample
from servingslo.estimation.windows.counters import Window, tokens_per_sequence_step
from servingslo.models.engine.service_time import ServiceLaw

# As long as the memory of a law's error: 20 windows at 15 s scrapes.
MEMORY_SECONDS = 300.0
# A reading is new this often. Source: dcgm-exporter, default of --collect-interval.
COLLECT_SECONDS = 30.0
# A field that a card leaves blank has a value beyond every reading. The largest cards take 1.4 kW.
# Source: NVIDIA DCGM, dcgm_structs.h, DCGM_INT32_BLANK and DCGM_FP64_BLANK.
LARGEST_POWER_WATTS = 10_000.0

GPU_METRICS = "GPU metrics"
UTILIZATION = "utilization"
POWER = "power"
STEPS = "engine steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """Sums over the last minutes, of pods whose GPUs were read; older parts fade.

    span_seconds: time since the first comparison, at most MEMORY_SECONDS. seconds, busy_seconds:
    of windows of pods, and of them while their GPUs were busy. compared_seconds,
    compared_busy_seconds: the same of windows whose engine counted its steps; steps, generated,
    prefilled, prompts: its work in them. powered_joules, powered_tokens: energy, and output tokens
    of the same pods. disagrees: whether the GPUs refuted the law at the last tick.
    """

    span_seconds: float = 0.0
    seconds: float = 0.0
    busy_seconds: float = 0.0
    compared_seconds: float = 0.0
    compared_busy_seconds: float = 0.0
    steps: float = 0.0
    generated: float = 0.0
    prefilled: float = 0.0
    prompts: float = 0.0
    powered_joules: float = 0.0
    powered_tokens: float = 0.0
    disagrees: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What the GPUs show at one tick; None means not exported or not known yet.

    utilization_ratio: share of time that they were busy over the last minutes, a mean over pods.
    law_ratio: the share that the law predicts for the same windows. standard_error_ratio: of
    utilization_ratio, from the number of readings. power_watts: now, of all pods that were read.
    joules_per_token: energy of an output token over the last minutes, with that of idle GPUs.
    pods: how many were read, of ready_pods. missing: what is not exported, in words; '' if nothing.
    """

    utilization_ratio: float | None = None
    law_ratio: float | None = None
    standard_error_ratio: float | None = None
    power_watts: float | None = None
    joules_per_token: float | None = None
    pods: int = 0
    ready_pods: int = 0
    missing: str = ""


def observe(
    state: GpuState,
    pods: Sequence[PodSample],
    windows: Sequence[Window],
    paired: Sequence[Window],
    slowdowns: Sequence[PodSlowdown],
    stale_after_seconds: float,
) -> GpuState:
    """Return the state after one tick.

    windows: of counters. paired: of counters and histograms of one scrape.
    """
    # Several processes of such a pod count each step.
    several = {pod.name for pod in pods if counted_several_times(pod)}
    slow = {one.pod: one.ratio for one in slow_pods(slowdowns)}
    read = {pod.name: fresh for pod in pods if (fresh := _fresh(pod, stale_after_seconds))}
    elapsed = max((window.seconds for window in windows), default=0.0)
    state = _faded(state, math.exp(-elapsed / MEMORY_SECONDS)) if elapsed else state
    for name, own in _by_pod(windows, read).items():
        state = _with_pod(state, read[name], own)
    before = state.compared_seconds
    for name, own in _by_pod(paired, read).items():
        # The GPUs of a pod with several engines cannot be assigned to them.
        if len(own) == 1 and name not in several:
            state = _with_work(state, read[name], own[0], slow.get(name, 1.0))
    grown = elapsed if state.compared_seconds > before else 0.0
    return replace(state, span_seconds=min(state.span_seconds + grown, MEMORY_SECONDS))


def shares(
    state: GpuState, law: ServiceLaw | None, context_tokens: Callable[[], float | None]
) -> BusyShares | None:
    """Return the busy shares to compare; None without a window to compare, or without a law.

    context_tokens: returns the mean tokens that a running sequence attends.
    """
    seconds = state.compared_seconds
    here = None if law is None or seconds <= 0.0 else at_context(law, context_tokens)
    if here is None:
        return None
    by_law = 0.0
    if state.steps > 0.0:
        work = Row(
            x=(state.steps / seconds, state.generated / seconds, state.prefilled / seconds),
            error_ratio=0.0,
            sequences=state.generated / state.steps,
            prefill_per_step_tokens=state.prefilled / state.steps,
            prefill_share=prefill_share(state.prompts / state.steps) if state.prompts else None,
        )
        (by_law,) = predicted_ratios(here, [work])
    measured = state.compared_busy_seconds / seconds
    return BusyShares(
        measured_ratio=measured,
        law_ratio=by_law,
        # No share varies more than one of 0 or 1; fading weights halve the sum of squares.
        standard_error_ratio=math.sqrt(
            measured * (1.0 - measured) * COLLECT_SECONDS / (2.0 * seconds)
        ),
        settled=state.span_seconds >= MEMORY_SECONDS and seconds >= MEMORY_SECONDS / 2.0,
    )


def use(
    state: GpuState,
    pods: Sequence[PodSample],
    compared: BusyShares | None,
    stale_after_seconds: float,
) -> GpuUse | None:
    """Return what to report; None if no GPU was read and no container is known to ask for one."""
    serving = [pod for pod in pods if pod.ready and not pod.deleting]
    read = {pod.name: own for pod in serving if (own := _fresh(pod, stale_after_seconds))}
    asking = any(pod.launch is not None and pod.launch.accelerator for pod in serving)
    if not read:
        return GpuUse(ready_pods=len(serving), missing=GPU_METRICS) if asking else None
    watts = [power for own in read.values() if (power := _power_watts(own)) is not None]
    busy = [ratio for own in read.values() if (ratio := _utilization(own)) is not None]
    utilization = state.busy_seconds / state.seconds if state.seconds > 0.0 else None
    missing = {
        UTILIZATION: not busy,
        POWER: not watts,
        STEPS: bool(busy) and state.seconds > 0.0 and state.compared_seconds <= 0.0,
    }
    return GpuUse(
        utilization_ratio=utilization if compared is None else compared.measured_ratio,
        law_ratio=None if compared is None else compared.law_ratio,
        standard_error_ratio=None if compared is None else compared.standard_error_ratio,
        power_watts=sum(watts) if watts else None,
        joules_per_token=state.powered_joules / state.powered_tokens
        if state.powered_tokens > 0.0
        else None,
        pods=len(read),
        ready_pods=len(serving),
        missing=", ".join(name for name, is_missing in missing.items() if is_missing),
    )


def _fresh(pod: PodSample, stale_after_seconds: float) -> tuple[GPUSample, ...]:
    if not pod.gpus:
        return ()
    return tuple(
        gpu for gpu in pod.gpus if gpu.age_seconds is None or gpu.age_seconds <= stale_after_seconds
    )


def _by_pod(windows: Sequence[Window], pods: Collection[str]) -> dict[str, list[Window]]:
    """Return the windows of these pods without a restart inside."""
    found: dict[str, list[Window]] = {}
    for window in windows:
        if window.pod in pods and not (window.restarted or window.from_zero or window.still):
            found.setdefault(window.pod, []).append(window)
    return found


def _faded(state: GpuState, keep: float) -> GpuState:
    return replace(
        state,
        seconds=keep * state.seconds,
        busy_seconds=keep * state.busy_seconds,
        compared_seconds=keep * state.compared_seconds,
        compared_busy_seconds=keep * state.compared_busy_seconds,
        steps=keep * state.steps,
        generated=keep * state.generated,
        prefilled=keep * state.prefilled,
        prompts=keep * state.prompts,
        powered_joules=keep * state.powered_joules,
        powered_tokens=keep * state.powered_tokens,
    )


def _with_pod(state: GpuState, gpus: Sequence[GPUSample], windows: Sequence[Window]) -> GpuState:
    seconds = max(window.seconds for window in windows)
    utilization, power = _utilization(gpus), _power_watts(gpus)
    if utilization is not None:
        state = replace(
            state,
            seconds=state.seconds + seconds,
            busy_seconds=state.busy_seconds + utilization * seconds,
        )
    if power is not None:
        tokens = sum(window.generated_tokens or 0.0 for window in windows)
        state = replace(
            state,
            powered_joules=state.powered_joules + power * seconds,
            powered_tokens=state.powered_tokens + tokens,
        )
    return state


def _with_work(
    state: GpuState, gpus: Sequence[GPUSample], window: Window, slow_ratio: float
) -> GpuState:
    utilization = _utilization(gpus)
    if utilization is None or window.step_count is None or not window.paired or not window.warm:
        return state
    steps = window.step_count * tokens_per_sequence_step(window)
    prefilled = max((window.prompt_tokens or 0.0) - (window.cached_tokens or 0.0), 0.0)
    generated = window.generated_tokens or 0.0
    return replace(
        state,
        compared_seconds=state.compared_seconds + window.seconds,
        compared_busy_seconds=state.compared_busy_seconds + utilization * window.seconds,
        steps=state.steps + slow_ratio * steps,
        generated=state.generated + slow_ratio * generated,
        prefilled=state.prefilled + slow_ratio * prefilled,
        prompts=state.prompts + slow_ratio * (window.first_tokens or 0.0),
    )


def _utilization(gpus: Sequence[GPUSample]) -> float | None:
    """Return the mean over the pod's GPUs; None unless each exports it."""
    return _mean((gpu.utilization_ratio for gpu in gpus), 1.0)


def _power_watts(gpus: Sequence[GPUSample]) -> float | None:
    """Return the sum over the pod's GPUs; None unless each exports it."""
    mean = _mean((gpu.power_watts for gpu in gpus), LARGEST_POWER_WATTS)
    return None if mean is None else mean * len(gpus)


def _mean(values: Iterator[float | None], most: float) -> float | None:
    """Return the mean; None unless each value is known and within 0 and `most`."""
    known = list(values)
    found = [value for value in known if value is not None and 0.0 <= value <= most]
    return sum(found) / len(found) if found and len(found) == len(known) else None
