"""Where trace and past of a backtest come from: CSV files, a recording, or a live Prometheus."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from servingslo.cli.prometheus_flags import PrometheusFlags
from servingslo.errors import InvalidInputError
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.runtimes.gateways import GatewayProfile
from servingslo.units import SECONDS_PER_DAY, format_duration, parse_duration_seconds
from servingslo_lab.cli.backtesting.pasts import read_past, write_past
from servingslo_lab.cli.options import check_writable, flag_named, written_whole
from servingslo_lab.sim.past import BIN_SECONDS, Past, history_of_arrivals, past_of_history
from servingslo_lab.sim.traces.rebuilt import trace_from_metrics
from servingslo_lab.sim.traces.trace import EPOCH_SECONDS, Trace, read_trace
from servingslo_lab.sim.traces.trace_files import write_trace

if TYPE_CHECKING:
    from servingslo.adapters.prometheus.config import PrometheusConfig

# Fewer ticks than this decide nothing.
SHORTEST_TRACE_SECONDS = 60.0
# Seconds since the epoch, written as arrivals, would be a trace of fifty years.
LONGEST_TRACE_SECONDS = 366 * SECONDS_PER_DAY
SHORTEST_STEP_SECONDS = 1.0
MOST_READINGS = 3000
# A trace that is thinned to an expected one may be empty by chance; of ten that is one in 20,000.
LEAST_REQUESTS_SCALED = 10
_SEED = 1
# Twelve of Prometheus' longest bins. A trace of two such parts or more tells its first half.
LEAST_EARLIER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """What the user said about the trace; exactly one of file, recording and Prometheus.

    asking to gateway_name: how Prometheus is asked, and the gateway whose counts are read.
    history: a CSV of requests before the trace, or of rates as save_history is written. no_history:
    the planner is told none. warm_up: the part of the trace that is past too; None for the first
    half of one that is long enough and for which no other past is known.
    """

    file: Path | None = None
    recording: str | None = None
    resource: str | None = None
    prometheus: str | None = None
    namespace: str | None = None
    target: str | None = None
    window: str = "1h"
    step: str = "15s"
    asking: PrometheusFlags = field(default_factory=PrometheusFlags)
    gateway: GatewayProfile | None = None
    gateway_name: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    save: Path | None = None
    history: Path | None = None
    save_history: Path | None = None
    no_history: bool = False
    warm_up: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The trace in this file without its first seconds, and what is known of the time before.

    trace: all of it. past: None where the planner is told none.
    """

    path: Path
    trace: Trace
    skipped_seconds: float
    past: Past | None

    @property
    def request_count(self) -> int:
        """How many requests are played."""
        return int((self.trace.arrival_seconds >= self.skipped_seconds).sum())

    @property
    def duration_seconds(self) -> float:
        """How long it plays."""
        return self.trace.duration_seconds - self.skipped_seconds


def replay_of(source: TraceSource, cache: Path, scale: float) -> Replay:
    """What is to be played; a trace that was rebuilt is kept in the cache.

    scale: times the rates of the past. Raises: InvalidInputError, and as reading from a cluster
    does.
    """
    for flag, written in (("--save-trace", source.save), ("--save-history", source.save_history)):
        if written is not None:
            check_writable(written, flag)
    for flag, stated in (("--history", source.history), ("--save-history", source.save_history)):
        if stated is not None and source.no_history:
            raise InvalidInputError(flag, str(stated), "not with --no-history")
    path, trace, history = _trace_file(source, cache)
    skipped = _skipped_seconds(source, trace)
    past = None if source.no_history else _past(source, trace, history, skipped, scale)
    return Replay(
        path=path,
        trace=trace,
        skipped_seconds=skipped,
        past=past,
    )


def check_requests_left(replay: Replay, scale: float) -> None:
    """Raises: InvalidInputError where nothing would be played: it would meet every objective."""
    count = replay.request_count
    if scale < 1.0 and count * scale < LEAST_REQUESTS_SCALED:
        allowed = f"so much that {LEAST_REQUESTS_SCALED} of the {count} requests are left"
        raise InvalidInputError("--scale", scale, allowed)


def check_dated(replay: Replay) -> None:
    """Raises: InvalidInputError where the planner would not know the time of day."""
    if replay.past is None or replay.past.begin_seconds < EPOCH_SECONDS:
        allowed = "dated requests with a past (--history), as bounds of -f change with the time"
        raise InvalidInputError("--trace", str(replay.path), allowed)


def _past(
    source: TraceSource,
    trace: Trace,
    history: Callable[[], RateHistory | None],
    skipped_seconds: float,
    scale: float,
) -> Past | None:
    """What is known before the part that is played; None where that would change nothing."""
    before = _before(source, trace, history)
    if source.save_history is not None:
        with written_whole(source.save_history, "--save-history") as part:
            write_past(before, part)
    known = before.history_at(trace.arrival_seconds, skipped_seconds)
    begin = before.begin_seconds + skipped_seconds
    past = past_of_history(known, begin_seconds=begin, scale=scale)
    # A memory that has just begun is looked at again after a day.
    lasts = trace.duration_seconds - skipped_seconds > SECONDS_PER_DAY
    return past if past.rates_per_second or lasts else None


def _before(source: TraceSource, trace: Trace, history: Callable[[], RateHistory | None]) -> Past:
    """What is known before the whole trace."""
    start = trace.start_seconds or 0.0
    if source.history is None:
        read = history()
        return (
            Past(begin_seconds=start)
            if read is None
            else past_of_history(read, begin_seconds=start)
        )
    kept = read_past(source.history)
    if kept is not None:
        return kept
    return past_of_history(_stated_history(source.history, trace), begin_seconds=start)


def _stated_history(path: Path, trace: Trace) -> RateHistory:
    """The rates of these requests: by their time stamps, or up to the begin of the trace."""
    requests = _short_enough(read_trace(path, "--history"), str(path))
    begin = trace.start_seconds or 0.0
    dated = requests.start_seconds is not None and trace.start_seconds is not None
    first = (requests.start_seconds or 0.0) if dated else begin - requests.duration_seconds
    last = first + requests.duration_seconds
    until = begin if last > begin - BIN_SECONDS else last
    found = history_of_arrivals(first + requests.arrival_seconds, first, until)
    if not found.rates_per_second:
        span = format_duration(round(max(until - first, 0.0)))
        allowed = "requests of 10m or more before the trace begins; of days, for a season"
        raise InvalidInputError("--history", f"{path} ({span} before it)", allowed)
    return found


def _skipped_seconds(source: TraceSource, trace: Trace) -> float:
    if source.warm_up is None:
        alone = source.file is not None and source.history is None and not source.no_history
        long = trace.duration_seconds >= 2.0 * LEAST_EARLIER_SECONDS
        return trace.duration_seconds // 2.0 if alone and long else 0.0
    seconds = parse_duration_seconds(source.warm_up, "--warm-up")
    most = trace.duration_seconds - SHORTEST_TRACE_SECONDS
    if not seconds <= most:
        allowed = f"up to {format_duration(int(most))}: the trace less a minute to play"
        raise InvalidInputError("--warm-up", source.warm_up, allowed)
    return seconds


def _trace_file(
    source: TraceSource, cache: Path
) -> tuple[Path, Trace, Callable[[], RateHistory | None]]:
    """The whole trace, the file that it is in, and what reads the past that comes with it."""
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
        for flag, value in (
            ("--save-trace", source.save), ("--resource", source.resource),
            ("--namespace", source.namespace), ("--target", source.target),
            ("--gateway-name", source.gateway_name),
        ):  # fmt: skip
            if value is not None:
                raise InvalidInputError(
                    flag, str(value), "not with --trace, which has the requests"
                )
        trace = _long_enough(read_trace(source.file, "--trace"), str(source.file))
        if trace.offset_seconds:
            first = f"its first arrival, at {trace.offset_seconds:.10g} s"
            typer.echo(f"{source.file}: counted from {first}", err=True)
        return source.file, trace, _nothing
    flag = given[0]
    if source.gateway_name is not None and (flag != "--prometheus" or source.gateway is None):
        allowed = "only with --prometheus and --gateway-profile"
        raise InvalidInputError("--gateway-name", source.gateway_name, allowed)
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
        _made(path.parent)
    with written_whole(path, "--cache" if source.save is None else "--save-trace") as part:
        write_trace(trace, part)
    read = _recorded_past if flag == "--recording" else partial(_live_past, source)
    return path, trace, partial(read, samples)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror})"
        raise InvalidInputError("--cache", str(folder), allowed) from error


def _nothing() -> RateHistory | None:
    return None


def _recorded_past(samples: Sequence[FleetSample]) -> RateHistory | None:
    """The past as the operator was told it first."""
    return next((s.history for s in samples if s.history is not None), None)


def _live_past(source: TraceSource, samples: Sequence[FleetSample]) -> RateHistory:
    from servingslo.adapters.prometheus.past.rates import PastRates  # noqa: PLC0415 - as _live
    from servingslo_lab.cli.fitting.sources import parsed_target  # noqa: PLC0415

    pods = [pod.name for pod in samples[-1].pods]
    past = PastRates(_config(source))
    try:
        found = past.read_past(
            source.namespace or "", parsed_target(source.target or ""), pods,
            samples[0].time_seconds,
        )  # fmt: skip
        if found.detail:
            typer.echo(f"no past rates: {found.detail}", err=True)
        return found
    finally:
        past.close()


def _long_enough(trace: Trace, name: str) -> Trace:
    if trace.duration_seconds < SHORTEST_TRACE_SECONDS:
        raise InvalidInputError(
            f"{name}: last arrival",
            f"{trace.duration_seconds:.0f} s",
            f"a trace of {SHORTEST_TRACE_SECONDS:.0f} s or longer",
        )
    return _short_enough(trace, name)


def _short_enough(trace: Trace, name: str) -> Trace:
    if trace.duration_seconds > LONGEST_TRACE_SECONDS:
        found = f"{trace.duration_seconds:.10g} s"
        allowed = f"up to {LONGEST_TRACE_SECONDS:.0f} s, a year from the begin of the trace"
        raise InvalidInputError(f"{name}: last arrival", found, allowed)
    return trace


def _recorded(source: TraceSource) -> Sequence[FleetSample]:
    from servingslo_lab.cli.fitting.sources import recorded_samples  # noqa: PLC0415 - as _live

    found = recorded_samples(source.recording or "")
    name = source.resource or (next(iter(found)) if len(found) == 1 else None)
    if name not in found:
        raise InvalidInputError("--resource", source.resource, ", ".join(found))
    return found[name]


def _live(source: TraceSource) -> Sequence[FleetSample]:
    # Kubernetes and HTTP clients are not needed for a file.
    from servingslo.cli.live import Access  # noqa: PLC0415
    from servingslo_lab.cli.fitting.sources import LiveSource, live_samples  # noqa: PLC0415

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
            config=_config(source),
            access=Access(kubeconfig=source.kubeconfig, context=source.context),
            namespace=source.namespace,
            target=source.target,
            window_seconds=window,
            step_seconds=step,
            gateway_name=source.gateway_name,
        )
    )


def _config(source: TraceSource) -> "PrometheusConfig":
    with flag_named("--prometheus"):
        return source.asking.config(source.prometheus or "", gateway=source.gateway)
