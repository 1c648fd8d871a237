"""What the GPUs show, in words, and for the log: busy shares, power, joules a token."""

from collections.abc import Iterator

from servingslo.estimation.pods.gpus import GpuUse
from servingslo.explain.format import number, percent
from servingslo.reasons import Reason


def gpus_in_words(gpus: GpuUse | None) -> str:
    """The two busy shares: 'GPUs are busy 96 % of the time, the law explains 28 %'."""
    shares = "" if gpus is None else _shares(gpus)
    return f"GPUs are {shares}" if shares else "the utilization of the GPUs is unknown"


def _shares(gpus: GpuUse) -> str:
    """Both busy shares without a subject; '' if they are unknown."""
    if gpus.utilization_ratio is None:
        return ""
    told = f"busy {percent(gpus.utilization_ratio)} of the time"
    return told if gpus.law_ratio is None else f"{told}, the law explains {percent(gpus.law_ratio)}"


def gpu_lines(gpus: GpuUse | None) -> Iterator[str]:
    """The lines of `explain`; nothing if no GPU is known."""
    if gpus is None:
        return
    told = []
    if shares := _shares(gpus):
        error = gpus.standard_error_ratio
        told.append(shares + (f" (± {percent(error)})" if error else ""))
    if gpus.power_watts is not None:
        told.append(f"{number(gpus.power_watts)} W")
    if gpus.joules_per_token is not None:
        told.append(f"{number(gpus.joules_per_token)} J an output token")
    if 0 < gpus.pods < gpus.ready_pods:
        told.append(f"read of {gpus.pods} of {gpus.ready_pods} ready pods")
    if gpus.missing:
        told.append(f"not exported: {gpus.missing}")
    yield f"GPUs: {'; '.join(told) or 'no reading yet'}"


def gpu_pairs(gpus: GpuUse | None, model_reason: Reason) -> Iterator[tuple[str, str]]:
    """The pairs of the log line: energy, and both busy shares if they refute the law."""
    if gpus is None:
        return
    if model_reason is Reason.GPUS_DISAGREE:
        for key, ratio in (("gpu_busy", gpus.utilization_ratio), ("law_busy", gpus.law_ratio)):
            if ratio is not None:
                yield key, f"{ratio:.2f}"
    if gpus.joules_per_token is not None:
        yield "joules_per_token", number(gpus.joules_per_token)
