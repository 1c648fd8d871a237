"""The operator's own /metrics, /healthz and /readyz, on one port."""

import asyncio
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from servingslo import __version__
from servingslo.adapters.decided_metrics import RESOURCE_LABELS, DecidedMetrics, Resource
from servingslo.explain.changes import Change
from servingslo.policy.pools.decision import FleetDecision

# A loop without a finished round for this many ticks hangs: Kubernetes should restart it.
STUCK_TICKS = 10
# A replica count for another scaler is exported no longer than this after its decision (or for this
# many ticks, if ticks are long), so that the scaler notices that it is outdated.
HANDED_OVER_SECONDS, HANDED_OVER_TICKS = 120.0, 4
# Every address of this machine, of IPv4 and IPv6: a pod may have only one of either kind.
EVERY_ADDRESS = "::"
# A tick over the whole cluster is planned to stay under 5 s.
_TICK_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The probes' answer. alive: False requests a restart. ready: decides. detail: for people."""

    alive: bool
    ready: bool
    detail: str = ""


class OperatorMetrics:
    """The operator's own counters, and the numbers of each resource's last decision."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        handed_over_seconds: float = HANDED_OVER_SECONDS,
    ) -> None:
        self.registry = CollectorRegistry()
        self._leads: Callable[[], bool] = lambda: True
        self._decided_at: dict[Resource, float] = {}
        self._handed_over_seconds = handed_over_seconds
        self._decided = DecidedMetrics(self._leading, self._is_recent)
        self.registry.register(self._decided)
        self._aside: Callable[[], int] = lambda: 0
        self._monotonic = monotonic
        self._started = monotonic()
        self._last_tick: float | None = None
        self._last_success: float | None = None
        self._overrun = ""
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        build = Info("servingslo_build", "Version of the operator.", registry=self.registry)
        build.info({"version": __version__})
        self._decisions = self._counter(
            "servingslo_decisions", "Decisions by action and reason.", "action", "reason"
        )
        self._changes = self._counter(
            "servingslo_changes",
            "Writes to targets, by what was written, how it ended and why.",
            *(*RESOURCE_LABELS, "knob", "outcome", "reason"),
        )
        self._changed: dict[Resource, set[tuple[str, ...]]] = {}
        self._ticks = Histogram(
            "servingslo_tick_duration_seconds",
            "Duration of one round of the control loop.",
            buckets=_TICK_BUCKETS,
            registry=self.registry,
        )
        self._conflicts = self._counter(
            "servingslo_write_conflicts", "Writes refused because the object had changed."
        )
        self._failures = self._counter(
            "servingslo_failures",
            "Failures by the part that failed: prometheus, kubernetes, status and so on.",
            "part",
        )
        self._gauge(
            "servingslo_last_success_age_seconds",
            "Time since the control loop last completed a round; since the start before the first.",
        ).set_function(self._success_age)
        self._gauge(
            "servingslo_leader", "1 on the process that decides, 0 on one that stands by."
        ).set_function(lambda: float(self._leads()))
        self._gauge(
            "servingslo_namespaces_aside",
            "Namespaces in which another operator of the cluster acts.",
        ).set_function(lambda: float(self._aside()))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def follow(self, leads: Callable[[], bool], aside: Callable[[], int]) -> None:
        """Set what each scrape reads: leadership, and the number of other operators' namespaces."""
        self._leads, self._aside = leads, aside

    def observe(self, fleet: FleetDecision) -> None:
        """Count a decision and export its numbers; none of the one before."""
        for one in fleet.pools.values():
            self._decisions.labels(one.action.value, one.reason.value).inc()
        self._decided_at[fleet.namespace, fleet.name] = self._monotonic()
        self._decided.show((fleet.namespace, fleet.name), fleet)

    def handed_over(self, namespace: str, name: str, pool: str = "") -> int | None:
        """The replica count for another scaler; None if none is known or another process leads."""
        fleet = self._decided.decided((namespace, name))
        if fleet is None or not self._leads() or not self._is_recent((namespace, name)):
            return None
        decision = fleet.pools.get(pool)
        given = None if decision is None else decision.handed_over
        return None if given is None else given.replicas

    def observe_undecided(self, namespace: str, name: str, not_ready: str | None) -> None:
        """Export no numbers of a resource without a decision, only why it is not ready.

        not_ready: the reason; None if there is no problem (it is paused).
        """
        self._decided.show((namespace, name), not_ready)

    def count_change(self, change: Change) -> None:
        """Count a successful or failed change of a target."""
        reason = change.refusal or change.reason
        labels = (change.namespace, change.name, change.knob, change.outcome, reason)
        self._changes.labels(*labels).inc()
        self._changed.setdefault((change.namespace, change.name), set()).add(labels)

    def forget(self, namespace: str, name: str) -> None:
        """Remove the metrics of a deleted resource."""
        for labels in self._changed.pop((namespace, name), set()):
            self._changes.remove(*labels)
        self._decided.forget((namespace, name))
        self._decided_at.pop((namespace, name), None)

    def observe_tick(self, seconds: float, *, succeeded: bool = True) -> None:
        """Record one round of the loop. A failed round shows liveness, not readiness."""
        self._ticks.observe(seconds)
        self._last_tick = self._monotonic()
        if succeeded:
            self._last_success = self._last_tick

    def observe_overruns(self, in_a_row: int, *, seconds: float, tick_seconds: float) -> None:
        """Record the number of consecutive rounds longer than a tick, and the last; 0: it ended."""
        rounds = "round" if in_a_row == 1 else "rounds in a row"
        told = (
            f"; {in_a_row} {rounds} took longer than {tick_seconds:g} s, the last {seconds:.1f} s"
        )
        self._overrun = told if in_a_row else ""

    def count_conflict(self) -> None:
        """Count a write that was refused because the object changed."""
        self._conflicts.inc()

    def count_failure(self, part: str) -> None:
        """Count a failure of a part: prometheus, kubernetes, status and so on."""
        self._failures.labels(part).inc()

    def health(self, tick_seconds: float) -> Health:
        """Ready after the first successful round; alive while rounds end."""
        since = self._started if self._last_tick is None else self._last_tick
        silent_seconds = self._monotonic() - since
        alive = silent_seconds <= STUCK_TICKS * tick_seconds
        if not alive:
            return Health(alive=False, ready=False, detail=f"no round for {silent_seconds:.0f} s")
        if self._last_success is None:
            return Health(alive=True, ready=False, detail="no successful round yet")
        return Health(alive=True, ready=True, detail=f"ok{self._overrun}")

    def render(self) -> bytes:
        """The page in Prometheus's text format."""
        return generate_latest(self.registry)

    def _leading(self) -> bool:
        return self._leads()

    def _is_recent(self, resource: Resource) -> bool:
        """Whether the last decision on a resource may still be acted on."""
        decided_at = self._decided_at.get(resource, -math.inf)
        return self._monotonic() - decided_at <= self._handed_over_seconds

    def _success_age(self) -> float:
        since = self._started if self._last_success is None else self._last_success
        return self._monotonic() - since


class HealthServer:
    """Serves the probes and the metrics until it is stopped."""

    def __init__(
        self,
        metrics: OperatorMetrics,
        health: Callable[[], Health],
        *,
        host: str = EVERY_ADDRESS,
        port: int = 8080,
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._host = host
        self._wanted_port = port
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The served port; before the start, the requested one."""
        if self._runner is None or not self._runner.addresses:
            return self._wanted_port
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Listen. Raises: OSError when the port is taken."""
        application = web.Application()
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/healthz", self._serve_alive)
        application.router.add_get("/readyz", self._serve_ready)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await self._site(self._runner).start()

    def _site(self, runner: web.AppRunner) -> web.BaseSite:
        """Where to listen. A machine without IPv6 has IPv4 addresses alone."""
        if self._host != EVERY_ADDRESS:
            return web.TCPSite(runner, self._host, self._wanted_port)
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        place = ("", self._wanted_port)
        return web.SockSite(runner, socket.create_server(place, family=family, dualstack_ipv6=dual))

    async def stop(self) -> None:
        """Close the port. Safe to call twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        # In a thread: a page of 1,000 resources takes a noticeable fraction of a second.
        page = await asyncio.to_thread(self._metrics.render)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve_alive(self, _request: web.Request) -> web.Response:
        return self._probe("alive")

    async def _serve_ready(self, _request: web.Request) -> web.Response:
        return self._probe("ready")

    def _probe(self, of: str) -> web.Response:
        health = self._health()
        passed = bool(getattr(health, of))
        text = f"{health.detail or passed}\n"
        return web.Response(status=200 if passed else 503, text=text)
