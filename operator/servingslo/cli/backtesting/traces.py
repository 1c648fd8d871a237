"""Where the trace of a backtest comes from: a CSV file, a recording, or a live Prometheus."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.estimation.estimator import FleetSample
from servingslo.sim.rebuilt import trace_from_metrics
from servingslo.sim.trace import Trace, read_trace, write_trace
from servingslo.units import parse_duration_seconds

# Fewer ticks than this decide nothing.
SHORTEST_TRACE_SECONDS = 60.0
SHORTEST_STEP_SECONDS = 1.0
MOST_READINGS = 3000
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """What the user said about the trace; exactly one of file, recording and Prometheus."""

    file: Path | None = None
    recording: str | None = None
    resource: str | None = None
    prometheus: str | None = None
    namespace: str | None = None
    target: str | None = None
    window: str = "1h"
    step: str = "15s"
    namespace_label: str = "namespace"
    pod_label: str = "pod"
    kubeconfig: Path | None = None
    context: str | None = None
    save: Path | None = None


def trace_file(source: TraceSource, cache: Path) -> tuple[Path, Trace]:
    """The trace and the file it is in; one that was rebuilt is kept in the cache.

    Raises: InvalidInputError, and as reading from a cluster does.
    """
    stated = {
        "--trace": source.file,
        "--recording": source.recording,
        "--prometheus": source.prometheus,
    }
    given = [flag for flag, value in stated.items() if value]
    if len(given) != 1:
        allowed = f"exactly one of {', '.join(stated)}; --trace takes a CSV file of requests"
        raise InvalidInputError("--trace", " and ".join(given) or None, allowed)
    if source.file is not None:
        return source.file, _long_enough(read_trace(source.file), str(source.file))
    flag = given[0]
    samples = _recorded(source) if flag == "--recording" else _live(source)
    try:
        trace = trace_from_metrics(samples, np.random.default_rng(_SEED))
    except InvalidInputError as error:
        raise InvalidInputError(f"{flag}: {error.field}", error.value, error.allowed) from error
    _long_enough(trace, str(stated[flag]))
    path = source.save
    if path is None:
        digest = hashlib.sha256(trace.arrival_seconds.tobytes()).hexdigest()[:16]
        path = cache / "traces" / f"{digest}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(trace, path)
    return path, trace


def _long_enough(trace: Trace, name: str) -> Trace:
    if trace.duration_seconds < SHORTEST_TRACE_SECONDS:
        raise InvalidInputError(
            f"{name}: last arrival",
            f"{trace.duration_seconds:.0f} s",
            f"a trace of {SHORTEST_TRACE_SECONDS:.0f} s or longer",
        )
    return trace


def _recorded(source: TraceSource) -> Sequence[FleetSample]:
    from servingslo.cli.fitting.sources import recorded_samples  # noqa: PLC0415 - as _live

    found = recorded_samples(source.recording or "")
    name = source.resource or (next(iter(found)) if len(found) == 1 else None)
    if name not in found:
        raise InvalidInputError("--resource", source.resource, ", ".join(found))
    return found[name]


def _live(source: TraceSource) -> Sequence[FleetSample]:
    # Kubernetes and HTTP clients are not needed for a file.
    from servingslo.adapters.prometheus.client import PrometheusConfig  # noqa: PLC0415
    from servingslo.cli.fitting.sources import LiveSource, live_samples  # noqa: PLC0415
    from servingslo.cli.live import Access  # noqa: PLC0415

    if not source.namespace:
        raise InvalidInputError("--namespace", source.namespace, "the namespace of the target")
    if not source.target:
        allowed = "KIND/NAME, such as Deployment/llama-chat"
        raise InvalidInputError("--target", source.target, allowed)
    window = parse_duration_seconds(source.window, "--window")
    step = parse_duration_seconds(source.step, "--step")
    if step < SHORTEST_STEP_SECONDS:
        raise InvalidInputError("--step", source.step, f"{SHORTEST_STEP_SECONDS:g}s or longer")
    if not SHORTEST_TRACE_SECONDS <= window <= MOST_READINGS * step:
        allowed = f"1m to {MOST_READINGS} steps of {source.step} (--step)"
        raise InvalidInputError("--window", source.window, allowed)
    return live_samples(
        LiveSource(
            config=PrometheusConfig(
                url=source.prometheus or "",
                namespace_label=source.namespace_label,
                pod_label=source.pod_label,
            ),
            access=Access(kubeconfig=source.kubeconfig, context=source.context),
            namespace=source.namespace,
            target=source.target,
            window_seconds=window,
            step_seconds=step,
        )
    )
