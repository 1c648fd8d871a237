"""Where the samples of a fit come from: saved pages, a recording, or a live Prometheus."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.cli.live import Access, workloads_of
from servingslo.cli.manifest import lines_of
from servingslo.controller.join import Subject, join
from servingslo.controller.recordings.recording import observations
from servingslo.errors import ClusterError, InvalidInputError
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.sample import PodSample
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import ClusterMetrics, WorkloadView
from servingslo_lab.cli.fitting.pages import engines_of_page
from servingslo_lab.cli.past.history import prometheus_now_seconds, read_history

# Pages and readings in the past are as old as they are; nothing in them is stale.
_NEVER_STALE_SECONDS = 1e9
_API_VERSION = "apps/v1"
_PAGE_POD = "page"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLimits:
    """Batch limits that a page does not tell; None where they are not stated."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


def page_samples(
    files: Sequence[Path], interval_seconds: float | None, limits: StatedLimits
) -> list[FleetSample]:
    """One sample for each page of one pod, in order of time.

    interval_seconds: between pages; None takes the times at which the files were last changed.
    Raises: InvalidInputError for fewer than two pages, or times that do not increase.
    """
    if len(files) < 2:
        allowed = "two or more pages of one pod: a law is fitted to what happened between them"
        raise InvalidInputError("--metrics", f"{len(files)} page", allowed)
    times = [
        _changed_seconds(file) if interval_seconds is None else place * interval_seconds
        for place, file in enumerate(files)
    ]
    for file, before, after in zip(files[1:], times, times[1:], strict=False):
        if after <= before:
            allowed = "a page changed later than the one before it, or --interval"
            raise InvalidInputError("--metrics", str(file), allowed)
    return [
        FleetSample(
            time_seconds=at, pods=(_page_pod(file, limits),),
            stale_after_seconds=_NEVER_STALE_SECONDS,
        )
        for file, at in zip(files, times, strict=True)
    ]  # fmt: skip


def recorded_samples(source: str, pool: str | None = None) -> dict[str, list[FleetSample]]:
    """Samples of each target of a recording, by 'namespace/name' and the pool if it is one.

    pool: only this one; None for all of them. Raises: InvalidInputError.
    """
    found: dict[str, list[FleetSample]] = {}
    pools: dict[str, None] = {}
    with lines_of(source, "--recording") as lines:
        for observation in observations(lines):
            pools[observation.pool] = None
            if pool is not None and observation.pool != pool:
                continue
            name = f"{observation.namespace}/{observation.name} {observation.pool}".rstrip()
            sample = FleetSample(
                time_seconds=observation.time_seconds,
                pods=observation.pods,
                gateway=observation.gateway,
                history=observation.history,
            )
            found.setdefault(name, []).append(sample)
    if pools and not found:
        allowed = ", ".join(filter(None, pools)) or "none: the recording is of one target"
        raise InvalidInputError("--pool", pool, allowed)
    if not found:
        raise InvalidInputError("--recording", source, "a file with at least one observation")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource:
    """A workload of a cluster whose pods Prometheus has scraped.

    gateway_name: what the gateway calls it; None where that is the target's own name.
    """

    config: PrometheusConfig
    access: Access
    namespace: str
    target: str
    window_seconds: float
    step_seconds: float
    gateway_name: str | None = None


def live_samples(source: LiveSource) -> list[FleetSample]:
    """Samples over the window before now, read at once out of Prometheus' memory.

    Raises: InvalidInputError for a target that is not there; ClusterError; MetricsError.
    """
    target = parsed_target(source.target)
    now_seconds = prometheus_now_seconds(source.config)
    count = int(source.window_seconds // source.step_seconds)
    times = [now_seconds - place * source.step_seconds for place in range(count, -1, -1)]
    _, newest = next(iter(read_history(source.config, times[-1:])))
    view = asyncio.run(_view(source, target, newest))
    subject = Subject(
        namespace=source.namespace,
        name=source.target,
        uid="",
        generation=0,
        gateway_name=source.gateway_name,
    )
    seen = (
        join(subject, _view_at(view, now_seconds - at), metrics, now_seconds=at)
        for at, metrics in read_history(source.config, times)
    )
    return [
        FleetSample(time_seconds=one.time_seconds, pods=one.pods, gateway=one.gateway)
        for one in seen
    ]


def parsed_target(text: str) -> ScaleTarget:
    """The target in 'Deployment/llama-chat'. Raises: InvalidInputError."""
    kind, slash, name = text.partition("/")
    if not slash or not kind[:1].isupper() or not name or "/" in name:
        raise InvalidInputError("--target", text, "KIND/NAME, such as Deployment/llama-chat")
    return ScaleTarget(api_version=_API_VERSION, kind=kind, name=name)


async def _view(source: LiveSource, target: ScaleTarget, newest: ClusterMetrics) -> WorkloadView:
    async with workloads_of(source.access, (source.namespace,)) as workloads:
        view = await workloads.read(
            source.namespace, target, None, newest.recognize(source.namespace, None)
        )
    if view.problems and view.desired_replicas is None:
        raise ClusterError(f"{view.problems[0].reason.value}: {view.problems[0].detail}")
    if not view.pods:
        raise InvalidInputError("--target", source.target, "a workload with running pods")
    return view


def _view_at(view: WorkloadView, ago_seconds: float) -> WorkloadView:
    """The view with the pods that were ready then, each as young as it was."""
    pods = tuple(
        replace(
            pod,
            age_seconds=None if pod.age_seconds is None else pod.age_seconds - ago_seconds,
            ready_for_seconds=pod.ready_for_seconds - ago_seconds,
        )
        for pod in view.pods
        if pod.ready_for_seconds is not None and pod.ready_for_seconds >= ago_seconds
    )
    return replace(view, pods=pods)


def _page_pod(file: Path, limits: StatedLimits) -> PodSample:
    try:
        page = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        allowed = f"a readable file ({error.strerror})"
        raise InvalidInputError("--metrics", str(file), allowed) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError("--metrics", str(file), "text in UTF-8") from error
    if page and not page.endswith("\n"):
        # The text format asks for a line feed at the end: the last number may be half of one.
        raise InvalidInputError(str(file), "no end of its last line", "a whole page: it is cut")
    engines = tuple(
        replace(
            engine,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        for engine in engines_of_page(page, str(file))
    )
    return PodSample(name=_PAGE_POD, ready=True, engines=engines)


def _changed_seconds(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError as error:
        allowed = f"a readable file ({error.strerror})"
        raise InvalidInputError("--metrics", str(file), allowed) from error
