"""Puts the operator together: adapters, loop, handlers; and runs it in one asyncio loop."""

import asyncio
import errno
import logging
import os
import platform
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import kopf

from servingslo.adapters.clock import SteadyClock, SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient, connect
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.api.fence import DeadMansSwitch, process_switch
from servingslo.adapters.kubernetes.events import KubernetesEvents
from servingslo.adapters.kubernetes.gateways.routing import GatewayRouting
from servingslo.adapters.kubernetes.leases import KubernetesLease, post_warning
from servingslo.adapters.kubernetes.pods.config_maps import ConfigMaps, NoConfigMaps
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.resources import NOT_SERVED, KubernetesResources
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.adapters.metrics_export import (
    HANDED_OVER_SECONDS,
    HANDED_OVER_TICKS,
    Health,
    HealthServer,
    OperatorMetrics,
)
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.past.rates import PastRates
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.cli.running.feature_flags import MakeLeadership, Serving
from servingslo.cli.running.run_options import RunOptions
from servingslo.controller.actuators.means import Means
from servingslo.controller.adapters import Adapters
from servingslo.controller.grants import Grants
from servingslo.controller.lease.election import Election
from servingslo.controller.lease.leadership import (
    NAMESPACE_TERMS,
    Leadership,
    NamespaceFence,
    ReleaseFence,
)
from servingslo.controller.loop import Controller
from servingslo.controller.reconciler import Reconciler
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import Registry
from servingslo.controller.reporting.reporter import Reporter
from servingslo.controller.undoing import Undoing
from servingslo.errors import ClusterError, InvalidInputError, ServingSLOError
from servingslo.handlers.lifecycle import Operator, handlers_of
from servingslo.policy.ports import READER
from servingslo.reasons import Reason

_LOG = logging.getLogger(__name__)
# A resource that is not served yet (its CRD is being installed) is waited for this long.
_SERVED_TIMEOUT_SECONDS = 120.0
_SERVED_POLL_SECONDS = 1.0
_REFUSED = (
    "the API server refuses this process's credentials (401): its ServiceAccount is gone, or its "
    "token has expired"
)
# In each namespace with ServingSLOs: which release of the cluster acts there.
NAMESPACE_LEASE = "servingslo-acting-operator"
# Where the kubelet puts it (Kubernetes, "Accessing the API from a Pod").
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Health counts silence in ticks; shorter ones are for tests, and a reading may take longer.
_SHORTEST_HEALTH_TICK_SECONDS = 6.0
# One reading of Prometheus ends before the next tick, and never before this many seconds.
_SHORTEST_READING_SECONDS = 3.0
_LONGEST_READING_SECONDS = 12.0


async def operate(options: RunOptions) -> None:
    """Run until SIGTERM or SIGINT.

    Raises: ServingSLOError when the operator cannot start, or its loop ended by itself.
    """
    config = prometheus_config(options)
    identity = process_identity()
    # Before the first plan, so that a recording is of one form alone.
    registry = Registry()

    @asynccontextmanager
    async def controller() -> AsyncIterator[Controller]:
        async with AsyncExitStack() as stack:
            yield await _controller(options, config, registry, identity, stack)

    operator = Operator(registry=registry, controller=controller, stop=asyncio.Event())
    async with _connected() as client:
        await _wait_until_served(KubernetesResources(client))
    try:
        await kopf.operator(
            registry=handlers_of(operator),
            clusterwide=not options.namespaces,
            namespaces=options.namespaces,
            standalone=True,
            # Without one kopf asks for the user's name, and a container's user may have none.
            identity=identity,
            stop_flag=operator.stop,
        )
    except kopf.LoginError as error:
        raise ClusterError(_REFUSED) from error
    if isinstance(operator.failure, InvalidInputError):
        raise operator.failure
    if operator.failure is not None:
        raise ServingSLOError(f"the control loop ended: {operator.failure}") from operator.failure


def prometheus_config(options: RunOptions) -> PrometheusConfig:
    """The reader's configuration. Raises: InvalidInputError for a value out of range."""
    return options.prometheus.config(
        options.prometheus_url,
        reading_timeout_seconds=min(
            max(options.limits.tick_seconds, _SHORTEST_READING_SECONDS), _LONGEST_READING_SECONDS
        ),
        gateway=options.gateway,
        namespaces=options.namespaces,
    )


async def _controller(
    options: RunOptions,
    config: PrometheusConfig,
    registry: Registry,
    identity: str,
    stack: AsyncExitStack,
) -> Controller:
    """The loop with everything it needs, which the stack closes."""
    base = await stack.enter_async_context(_connected(identity))
    leads = _leadership(options, base, identity, registry.wake_loop)
    metrics = OperatorMetrics(
        handed_over_seconds=max(
            HANDED_OVER_SECONDS, HANDED_OVER_TICKS * options.limits.tick_seconds
        )
    )
    leads.leadership.export(metrics)
    await _serve_health(options, metrics, leads.leadership, stack)
    client = leads.client
    inventory = Inventory(client, namespaces=options.namespaces)
    stack.push_async_callback(inventory.stop)
    await inventory.start()
    recorder = Recorder(options.record)
    stack.callback(recorder.close)
    clock = SteadyClock()
    reader = PrometheusReader(config, clock=clock)
    stack.callback(reader.close)
    history = PastRates(config)
    stack.callback(history.close)
    readers = tuple(make(config) for make in READER.parts())
    for one in readers:
        stack.callback(one.close)
    serving = Serving(
        client=client,
        namespaces=options.namespaces,
        inventory=inventory,
        registry=registry,
        handed_over=metrics.handed_over,
        leads=leads.leadership.leads,
        stack=stack,
    )
    started = [await part.start(asked, serving) for part, asked in options.features]
    means, workloads = means_of(options, client, inventory)
    registry.stands_for = workloads.stands_for
    adapters = Adapters(
        clock=clock,
        metrics=reader,
        workloads=workloads,
        actuators=tuple(row(means) for row in options.actuators),
        resources=KubernetesResources(client, namespaces=options.namespaces),
        events=KubernetesEvents(client),
        exporter=metrics,
        history=history,
        readers=readers,
        routing=GatewayRouting(client)
        if options.gateway and options.gateway.forgets_empty
        else None,
    )
    reporter, limits = Reporter(adapters), options.limits
    # Last, when everything is warm: whoever leads decides at once.
    stack.push_async_callback(leads.leadership.stop)
    await leads.leadership.start()
    return Controller(
        adapters=adapters,
        registry=registry,
        reconciler=Reconciler(
            adapters=adapters,
            limits=limits,
            recorder=recorder,
            reporter=reporter,
            registry=registry,
            make_grants=next(filter(None, started), Grants),
        ),
        undoing=Undoing(adapters=adapters, registry=registry, limits=limits, reporter=reporter),
        tick_seconds=limits.tick_seconds,
        lead=leads.leadership,
    )


def means_of(
    options: RunOptions, client: KubeClient, inventory: Inventory
) -> tuple[Means, KubernetesWorkloads]:
    """What actuators are made of, with what the options permit; and the view of workloads."""
    discovery = Discovery(client)
    config_maps = ConfigMaps(client) if options.read_config_maps else NoConfigMaps()
    workloads = KubernetesWorkloads(client, discovery, inventory, config_maps)
    means = Means(
        client=client,
        discovery=discovery,
        workloads=workloads,
        namespaces=options.namespaces,
        limit_kinds=options.limit_kinds,
        pod_templates=options.limits.pod_templates_patched,
        servers=options.limits.batching_apply_enabled,
        inventory=inventory,
        options=tuple(one.options for one in options.features),
    )
    return means, workloads


async def _serve_health(
    options: RunOptions,
    metrics: OperatorMetrics,
    leadership: Leadership,
    stack: AsyncExitStack,
) -> None:
    tick_seconds = max(options.limits.tick_seconds, _SHORTEST_HEALTH_TICK_SECONDS)

    def health() -> Health:
        found = metrics.health(tick_seconds)
        return replace(found, detail=f"{found.detail}; {leadership.detail()}")

    server = HealthServer(
        metrics,
        health,
        host=options.health_host,
        port=options.health_port,
    )
    try:
        await server.start()
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            allowed = "an address of this machine"
            raise InvalidInputError("--health-host", options.health_host, allowed) from error
        raise InvalidInputError("--health-port", options.health_port, "a free port") from error
    stack.push_async_callback(server.stop)
    _LOG.info("serving /metrics, /healthz and /readyz port=%d", server.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leads:
    """The elections of this process, and the connection whose writes ask them."""

    leadership: Leadership
    client: KubeClient


def _leadership(
    options: RunOptions, base: KubeClient, identity: str, on_turn: Callable[[], None]
) -> _Leads:
    """Elections over two connections: that of the release asks nobody before it writes."""
    clock, terms = SystemClock.boot_seconds, options.lease_terms
    of_release = f"{options.lease_namespace or platform.node()}/{options.lease_name}"
    # A process that is alone by agreement has nobody to make way for when it was stopped.
    switch: DeadMansSwitch | None = None
    make: MakeLeadership = Leadership
    if (of_leases := options.lease_namespace) is not None:
        patient = base.patient(terms.renew_seconds / 2.0)

        def election(suffix: str, states: Mapping[str, str | None]) -> Election:
            store = KubernetesLease(patient, of_leases, f"{options.lease_name}{suffix}", states)
            return Election(store=store, identity=identity, terms=terms, clock=clock)

        switch = DeadMansSwitch(process_switch)
        make = options.deciders.leadership(election, switch.busy)

    def election_in(namespace: str) -> Election:
        store = KubernetesLease(of_leader, namespace, NAMESPACE_LEASE)
        return Election(store=store, identity=of_release, terms=NAMESPACE_TERMS, clock=clock)

    async def report(election: Election, namespace: str) -> None:
        said = (
            f"{of_release} does nothing in this namespace, because {election.holder} acts here. "
            "Set watchNamespaces that do not overlap, or uninstall one of them"
        )
        await post_warning(of_leader, namespace, NAMESPACE_LEASE, Reason.ANOTHER_OPERATOR, said)

    leadership = make(
        identity=of_release,
        election_in=election_in,
        on_turn=on_turn,
        report=report,
    )
    of_leader = base.fenced(ReleaseFence(leadership=leadership), switch)
    return _Leads(
        leadership=leadership, client=base.fenced(NamespaceFence(leadership=leadership), switch)
    )


def process_identity() -> str:
    """Of this process and no other: a container that is started afresh is another one."""
    return f"{platform.node()}_{uuid.uuid4().hex[:8]}"


def pod_namespace() -> str | None:
    """The namespace of the pod that this process runs in; None outside of a cluster."""
    if os.environ.get("KUBECONFIG") or not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    with suppress(OSError):
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip() or None
    return None


@asynccontextmanager
async def _connected(identity: str = "") -> AsyncIterator[KubeClient]:
    client = await connect(identity=identity)
    try:
        yield client
    finally:
        await client.close()


async def _wait_until_served(resources: KubernetesResources) -> None:
    """Kopf serves only what exists when it starts, so the CRD must be there before.

    Raises: ClusterError when it is not after two minutes.
    """
    deadline = SystemClock.elapsed_seconds() + _SERVED_TIMEOUT_SECONDS
    told = ""
    while True:
        try:
            if await resources.served():
                return
            said = NOT_SERVED
        except ClusterError as error:
            said = str(error)
        if SystemClock.elapsed_seconds() > deadline:
            raise ClusterError(said)
        if said != told:
            _LOG.info("waiting detail=%r", said)
            told = said
        await asyncio.sleep(_SERVED_POLL_SECONDS)
