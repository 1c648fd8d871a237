"""`servingslo record`: what the operator would see of a cluster, saved to a file."""

import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.resources import KubernetesResources, ResourceRecord
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.past.rates import PastRates
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.cli.live import (
    Access,
    observations_of,
    only_one,
    parsed_name,
    resources_of,
    workloads_of,
)
from servingslo.cli.options import (
    Context,
    GatewayNamespaceLabel,
    GatewayPattern,
    GatewayProfileName,
    GatewayReporter,
    GatewayWorkloadLabel,
    Kubeconfig,
)
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.controller.recordings.recording import Header, Recorder
from servingslo.controller.recordings.validation import LONGEST_TICK_SECONDS, SHORTEST_TICK_SECONDS
from servingslo.controller.registry import Resource, checked, target_conflicts
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.errors import InvalidInputError, MetricsUnavailableError
from servingslo.policy.inputs import Limits, SignalProblem
from servingslo.policy.ports import ClusterMetrics
from servingslo.reasons import Reason
from servingslo.runtimes.gateway_catalogue import NO_GATEWAY, gateway_profile
from servingslo.units import parse_duration_seconds


@dataclass(slots=True)
class _Recording:
    """One recording under way.

    generations: of the spec last written, by uid. with_past: uids whose past rates are written.
    """

    recorder: Recorder
    workloads: KubernetesWorkloads
    past: PastRates
    limits: Limits
    generations: dict[str, int] = field(default_factory=dict)
    with_past: set[str] = field(default_factory=set)
    count: int = 0

    async def observe(
        self,
        resource: Resource,
        metrics: ClusterMetrics,
        conflict: SignalProblem | None,
    ) -> None:
        """Write an observation of each pool, after a header if the resource or its spec is new."""
        record, ref = resource.record, resource.record.ref
        known = self.generations.get(ref.uid)
        if known != record.generation:
            learned = learned_of(record.status)
            self.recorder.header(
                Header(
                    uid=ref.uid,
                    namespace=ref.namespace,
                    name=ref.name,
                    generation=record.generation,
                    spec=record.spec,
                    limits=self.limits,
                    learned=None if known is not None else learned,
                    carry_on=known is not None,
                    time_seconds=SystemClock.now_seconds(),
                )
            )
            self.generations[ref.uid] = record.generation
        for seen in await observations_of(resource, self.workloads, metrics, conflict, self.past):
            self.recorder.observation(seen)
            if seen.history is not None:
                self.with_past.add(ref.uid)
            self.count += 1

    def summary(self, out: Path) -> str:
        """What was written, and what a replay will miss."""
        told = f"{self.count} observations in {out}"
        missing = len(self.generations) - len(self.with_past)
        if missing:
            whose = f"{missing} of {len(self.generations)} resources"
            told += f"; without the past rates of {whose}: a replay finds no season there"
        return told


@asks_prometheus()
def record(
    prometheus_url: Annotated[
        str,
        typer.Option(envvar="SERVINGSLO_PROMETHEUS_URL", help="Address of Prometheus's HTTP API."),
    ],
    out: Annotated[Path, typer.Option(help="File to write; it must not exist yet.")],
    resource: Annotated[
        str | None,
        typer.Argument(metavar="[NAMESPACE/NAME]", help="One ServingSLO; all by default."),
    ] = None,
    duration: Annotated[str, typer.Option("--for", help="How long to record.")] = "10m",
    every: Annotated[str, typer.Option(help="Time between observations.")] = "15s",
    asking: PrometheusFlags = PrometheusFlags(),
    gateway_profile_name: GatewayProfileName = NO_GATEWAY,
    gateway_workload_label: GatewayWorkloadLabel = "",
    gateway_namespace_label: GatewayNamespaceLabel = "",
    gateway_reporter: GatewayReporter = "",
    gateway_pattern: GatewayPattern = "",
    max_replicas: Annotated[
        int | None, typer.Option(help="The operator's --max-replicas, for the header.", min=1)
    ] = None,
    max_step: Annotated[
        int | None, typer.Option(help="The operator's --max-step, for the header.", min=1)
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Record the operator's observations, for `servingslo plan`, `fit` and bug reports.

    Nothing is written to the cluster. The planner's memory comes from the resource's status and is
    at most five minutes old. For a recording that replays exactly, give `run` the flag --record.

    Example: servingslo record inference/llama-chat --for 10m --out llama.jsonl
    --prometheus-url http://localhost:9090
    """
    name = None if resource is None else parsed_name(resource)
    seconds = parse_duration_seconds(duration, "--for")
    if not 0.0 < seconds < math.inf:
        raise InvalidInputError("--for", duration, "a duration above 0, such as 10m")
    tick_seconds = parse_duration_seconds(every, "--every")
    if not SHORTEST_TICK_SECONDS <= tick_seconds <= LONGEST_TICK_SECONDS:
        raise InvalidInputError("--every", every, "500ms to 5m")
    if out.exists():
        raise InvalidInputError("--out", str(out), "a file that does not exist yet")
    config = asking.config(
        prometheus_url,
        gateway=gateway_profile(
            gateway_profile_name,
            workload_label=gateway_workload_label,
            namespace_label=gateway_namespace_label,
            reporter=gateway_reporter,
            pattern=gateway_pattern,
        ),
    )
    limits = Limits(max_replicas=max_replicas, max_step=max_step, tick_seconds=tick_seconds)
    access = Access(kubeconfig=kubeconfig, context=context)
    typer.echo(asyncio.run(_record(access, config, limits, name, out, seconds)), err=True)


async def _record(
    access: Access,
    config: PrometheusConfig,
    limits: Limits,
    name: tuple[str, str] | None,
    out: Path,
    seconds: float,
) -> str:
    """Record until the time is over; what was written."""
    namespaces = () if name is None else (name[0],)
    async with (
        resources_of(access, namespaces) as resources,
        workloads_of(access, namespaces) as workloads,
    ):
        await _chosen(resources, name)  # before the file is made: a wrong name leaves none
        reader, past = PrometheusReader(config), PastRates(config)
        try:
            await _answered(reader)  # nor does a wrong address
        except MetricsUnavailableError:
            reader.close()
            past.close()
            raise
        recorder = Recorder(out)
        recording = _Recording(recorder=recorder, workloads=workloads, past=past, limits=limits)
        started = SystemClock.elapsed_seconds()
        try:
            while (passed := SystemClock.elapsed_seconds() - started) < seconds:
                await _tick(recording, await _chosen(resources, name), reader)
                _tell(passed, seconds, recording.count)
                over = SystemClock.elapsed_seconds() - started - passed
                left = started + seconds - SystemClock.elapsed_seconds()
                await asyncio.sleep(max(min(limits.tick_seconds - over, left), 0.0))
        finally:
            recorder.close()
            reader.close()
            past.close()
        return recording.summary(out)


async def _answered(reader: PrometheusReader) -> None:
    """Raises: MetricsUnavailableError where Prometheus does not answer at the start.

    An outage later on is recorded: it is part of what the operator would see.
    """
    problem = (await reader.read()).problem
    if problem is not None and problem.reason is Reason.PROMETHEUS_UNAVAILABLE:
        raise MetricsUnavailableError(f"Prometheus does not answer: {problem.detail}")


async def _chosen(
    resources: KubernetesResources, name: tuple[str, str] | None
) -> tuple[Sequence[ResourceRecord], frozenset[str]]:
    """All resources that are read, and the uids of those to record."""
    records = await resources.read_all()
    if name is None:
        return records, frozenset(record.ref.uid for record in records)
    return records, frozenset({only_one(records, *name).ref.uid})


async def _tick(
    recording: _Recording,
    chosen: tuple[Sequence[ResourceRecord], frozenset[str]],
    reader: PrometheusReader,
) -> None:
    records, uids = chosen
    valid = [one for one in map(checked, records) if one.targets is not None]
    conflicts = target_conflicts(valid)
    recording.past.tick()
    metrics = await reader.read()
    for resource in valid:
        uid = resource.record.ref.uid
        if uid in uids:
            await recording.observe(resource, metrics, conflicts.get(uid))


def _tell(passed: float, seconds: float, count: int) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        typer.echo(f"\r{passed:.0f} of {seconds:.0f} s, {count} observations", nl=False, err=True)
