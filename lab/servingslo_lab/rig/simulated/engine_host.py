"""The engines of the rig's ready pods and the traffic on them, on one clock."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from servingslo.errors import InvalidInputError
from servingslo_lab.rig.simulated.direct_requests import DirectRequest, DirectRequests
from servingslo_lab.rig.simulated.engine_metrics import GPUReading, asleep_page, dcgm_page
from servingslo_lab.rig.simulated.engine_pods import EnginePod
from servingslo_lab.rig.simulated.gateway_metrics import envoy_page
from servingslo_lab.rig.simulated.kv_transfers import CacheAddress, cache_address, keeps_cache
from servingslo_lab.rig.simulated.traffic import Traffic, TrafficPlan
from servingslo_lab.rig.simulated.transfer_metrics import engine_page
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine, RequestTable

_TICK_SECONDS = 0.05
# Checking hundreds of engines for events at each tick would keep a core busy.
_TICK_SECONDS_PER_ENGINE = 0.001
# An answer may be late by up to this time; a step of an engine takes longer.
_HTTP_TICK_SECONDS = 0.01
_UTILIZATION_SPAN_SECONDS = 1.0
_ENVOY = {"namespace": "envoy-gateway-system", "pod": "envoy-rig", "container": "envoy"}
_DCGM_EXPORTER = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter", "container": "dcgm"}


class FaultKind(StrEnum):
    """How a pod's metrics or its engine can be broken."""

    NONE = "none"
    NAN = "nan"
    EMPTY = "empty"
    ERROR = "error"
    SLOW = "slow"
    FROZEN = "frozen"
    XID = "xid"
    SLOWNESS = "slowness"
    BROKEN = "broken"
    GPU = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a pod.

    `slow` answers after the given seconds (value), `frozen` repeats one page, `xid` reports an XID
    error (value), `slowness` multiplies step times (value), `broken` answers 500 to this share of
    requests (value), `gpu` reports this utilization of the GPU (value, 0 to 1), whatever the engine
    does; the others need no value. `none` repairs everything.
    """

    namespace: str
    pod: str
    kind: FaultKind
    value: float = 1.0


@dataclass(slots=True)
class _Hosted:
    """A ready pod and its engine."""

    pod: EnginePod
    engine: Engine
    since: float
    direct: DirectRequests | None
    gpu: int = 0
    sampled: tuple[float, float] = (0.0, 0.0)
    utilization: float = 0.0
    faults: dict[FaultKind, float] | None = None
    frozen_page: str = ""
    awake: asyncio.Event = field(default_factory=asyncio.Event)

    def fault(self, kind: FaultKind) -> float | None:
        """The value of a fault, None if it is not set."""
        return (self.faults or {}).get(kind)


class EngineHost:
    """Runs the engines of ready pods, and traffic on them, on one clock.

    clock: seconds that never go back. exported_gpu_labels: let Prometheus store GPU metrics under
    exported_namespace and exported_pod, as it does when it scrapes DCGM without honorLabels.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        exported_gpu_labels: bool = False,
    ) -> None:
        self._clock = clock
        self._exported_gpu_labels = exported_gpu_labels
        self._hosted: dict[str, _Hosted] = {}
        self._draining: dict[str, tuple[str, DirectRequests]] = {}
        self._traffic: dict[str, Traffic] = {}
        self._random = random.Random(0)  # noqa: S311  how long steps take is no secret
        self.synced = False
        self.changed = asyncio.Event()

    def set_pods(self, pods: Sequence[EnginePod]) -> None:
        """Update the engines for these pods: new ones start empty, those of removed pods end."""
        now = self._clock()
        self.synced = True
        ready = {pod.key: pod for pod in pods if pod.ready}
        ended = [key for key, hosted in self._hosted.items() if not _goes_on(hosted, ready)]
        for key in ended:
            self._advance_one(self._hosted[key], now)
            self._end(key, now)
        for key in list(self._hosted):
            self._follow_labels(key, ready[key], now)
        begun = [key for key in ready if key not in self._hosted]
        for key in begun:
            if (traffic := self._traffic_of(ready[key])) is not None:
                traffic.advance(now)
            self._begin(key, ready[key], now)
        # Most pod events change no engine, and checking hundreds takes long.
        if ended or begun:
            self.changed.set()

    def _follow_labels(self, key: str, pod: EnginePod, now: float) -> None:
        """Take an engine out of the traffic whose selector its pod leaves, and put it back.

        Of other traffic than the one it began with it has no requests: it begins anew.
        """
        hosted = self._hosted[key]
        before, hosted.pod = self._traffic_of(hosted.pod), pod
        if (after := self._traffic_of(pod)) is before:
            return
        for traffic in (before, after):
            if traffic is not None:
                traffic.advance(now)
        if before is not None:
            before.service.remove(key, now, drain=True)
        if after is None:
            return
        if hosted.engine.requests is after.service.requests:
            after.service.add(key, hosted.engine, now)
            return
        asleep = self.sleeps(key)
        self._end(key, now)
        self._begin(key, pod, now)
        self.put_to_sleep(key, asleep=asleep)

    def put_to_sleep(self, key: str, *, asleep: bool) -> None:
        """Put a pod's engine to sleep, or wake it; its requests go on."""
        if (hosted := self._hosted.get(key)) is None:
            return
        if asleep:
            hosted.awake.clear()
        else:
            hosted.awake.set()

    def sleeps(self, key: str) -> bool:
        """Whether a pod's engine sleeps."""
        hosted = self._hosted.get(key)
        return hosted is not None and not hosted.awake.is_set()

    async def awake(self, key: str) -> None:
        """Wait while a pod's engine sleeps, or until it ends."""
        if (hosted := self._hosted.get(key)) is not None:
            await hosted.awake.wait()

    def _begin(self, key: str, pod: EnginePod, now: float) -> None:
        traffic = self._traffic_of(pod)
        engine = Engine(
            law=pod.kind.law,
            limits=pod.limits,
            requests=traffic.service.requests if traffic else RequestTable(),
            max_queued=pod.max_queued,
            max_model_len=pod.max_model_len,
        )
        taken = {other.gpu for other in self._hosted.values() if other.pod.node == pod.node}
        gpu = next(index for index in itertools.count() if index not in taken)
        own = DirectRequests(engine, engine_id=pod.incarnation, connector=pod.connector)
        direct = None if traffic else own
        self._hosted[key] = _Hosted(
            pod=pod, engine=engine, since=now, direct=direct, gpu=gpu, sampled=(now, 0.0)
        )
        self._hosted[key].awake.set()
        if traffic:
            traffic.service.add(key, engine, now)

    def _end(self, key: str, now: float) -> None:
        hosted = self._hosted.pop(key)
        hosted.awake.set()
        if hosted.direct is not None and hosted.pod.drain:
            self._draining[key] = (hosted.pod.incarnation, hosted.direct)
        elif hosted.direct is not None:
            hosted.direct.fail(now)
        for traffic in self._traffic.values():
            traffic.service.remove(key, now, drain=hosted.pod.drain)

    def _traffic_of(self, pod: EnginePod) -> Traffic | None:
        for traffic in self._traffic.values():
            if traffic.serves(pod.namespace, pod.labels):
                return traffic
        return None

    def begin_traffic(self, plan: TrafficPlan) -> None:
        """Begin traffic now. Its pods start with empty engines.

        Raises: InvalidInputError when the name is taken or the trace cannot be read.
        """
        if plan.name in self._traffic:
            raise InvalidInputError("name", plan.name, "a name that no traffic has")
        traffic = Traffic(plan, began=self._clock())  # reads the trace before time is taken
        traffic.rebase(self._clock())
        self._traffic[plan.name] = traffic
        for key, hosted in list(self._hosted.items()):
            if traffic.serves(hosted.pod.namespace, hosted.pod.labels):
                self._end(key, self._clock())
                self._begin(key, hosted.pod, self._clock())

    def end_traffic(self, name: str) -> None:
        """Stop offering requests; those in flight are lost. Raises: InvalidInputError."""
        if name not in self._traffic:
            raise InvalidInputError("traffic", name, ", ".join(self._traffic) or "none runs")
        now = self._clock()
        self._advance(now)
        traffic = self._traffic.pop(name)
        for key, hosted in list(self._hosted.items()):
            if traffic.serves(hosted.pod.namespace, hosted.pod.labels):
                self._end(key, now)
                self._begin(key, hosted.pod, now)

    def set_fault(self, fault: Fault) -> None:
        """Break or repair a pod. Raises: InvalidInputError when no engine of that name runs."""
        hosted = self._hosted.get(f"{fault.namespace}/{fault.pod}")
        if hosted is None:
            raise InvalidInputError("pod", fault.pod, ", ".join(self._hosted) or "no pod is ready")
        self._advance(self._clock())
        if fault.kind is FaultKind.NONE:
            hosted.faults = None
            hosted.engine.row.floats[layout.SLOWNESS] = 1.0
            return
        if fault.kind is FaultKind.FROZEN:
            hosted.frozen_page = _page(hosted)
        if fault.kind is FaultKind.SLOWNESS:
            hosted.engine.row.floats[layout.SLOWNESS] = fault.value
        hosted.faults = {**(hosted.faults or {}), fault.kind: fault.value}

    def _advance(self, now: float) -> None:
        for hosted in self._hosted.values():
            if hosted.pod.uneven is not None:
                factor = hosted.pod.uneven.factor(hosted.engine.running, self._random)
                fault = hosted.fault(FaultKind.SLOWNESS) or 1.0
                hosted.engine.row.floats[layout.SLOWNESS] = fault * factor
        for traffic in self._traffic.values():
            traffic.advance(now)
        for hosted in self._hosted.values():
            if hosted.direct is not None and not hosted.direct.is_idle:
                hosted.direct.advance(now)
        for key, (_, direct) in list(self._draining.items()):
            direct.advance(now)
            if direct.is_idle:
                del self._draining[key]
                self.changed.set()

    def _advance_one(self, hosted: _Hosted, now: float) -> None:
        """Advance one pod and those that share its traffic, not thousands."""
        traffic = self._traffic_of(hosted.pod)
        if traffic is not None:
            traffic.advance(now)
        elif hosted.direct is not None:
            hosted.direct.advance(now)

    # Requests over HTTP

    def pods(self) -> tuple[EnginePod, ...]:
        """The pods with a running engine."""
        return tuple(hosted.pod for hosted in self._hosted.values())

    def has_left(self, key: str, incarnation: str) -> bool:
        """Whether this incarnation of a pod has ended and has no requests left."""
        hosted, draining = self._hosted.get(key), self._draining.get(key)
        runs = hosted is not None and hosted.pod.incarnation == incarnation
        return not runs and (draining is None or draining[0] != incarnation)

    def submit(
        self, key: str, *, prompt_tokens: int, output_tokens: int,
        transfer: Mapping[str, Any] = MappingProxyType({}),
    ) -> DirectRequest | None:  # fmt: skip
        """Submit a request, with `kv_transfer_params`, to a pod's engine now; None without one."""
        hosted, now = self._hosted.get(key), self._clock()
        if hosted is None or hosted.direct is None:
            return None
        direct, cache = hosted.direct, cache_address(transfer)
        if cache is None:
            return direct.submit(
                prompt_tokens=prompt_tokens, output_tokens=output_tokens, now=now,
                keeps=keeps_cache(transfer),
            )  # fmt: skip
        return direct.submit_remote(
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, now=now,
            source=self._source(cache, now), cache=cache,
        )  # fmt: skip

    def _source(self, cache: CacheAddress, now: float) -> DirectRequests | None:
        """The engine that keeps a KV cache; it may drain already."""
        hosted = (one.direct for one in self._hosted.values())
        draining = (direct for _, direct in self._draining.values())
        for direct in (*hosted, *draining):
            if direct is not None and direct.engine_id == cache.engine_id:
                direct.advance(now)
                return direct
        return None

    def abort(self, key: str, request: DirectRequest) -> None:
        """Abort a request whose client has left."""
        hosted, draining = self._hosted.get(key), self._draining.get(key)
        if hosted is not None and hosted.direct is not None:
            hosted.direct.abort(request, self._clock())
        if draining is not None:
            draining[1].abort(request, self._clock())

    async def run(self) -> None:
        """Advance all engines until cancelled."""
        while True:
            now = self._clock()
            self._advance(now)
            for hosted in self._hosted.values():
                _sample_utilization(hosted, now)
            await asyncio.sleep(_HTTP_TICK_SECONDS if self._answers() else self._pause_seconds())

    def _pause_seconds(self) -> float:
        """Pause between ticks; longer with hundreds of engines, as a page advances its own."""
        return max(_TICK_SECONDS, _TICK_SECONDS_PER_ENGINE * len(self._hosted))

    def _answers(self) -> bool:
        """Whether a client waits for an answer over HTTP."""
        direct = [hosted.direct for hosted in self._hosted.values() if hosted.direct is not None]
        return bool(self._draining) or not all(one.is_idle for one in direct)

    def discovery(self, address: str) -> list[dict[str, Any]]:
        """Prometheus's HTTP discovery answer: every ready pod, and one exporter for all GPUs.

        In addition one gateway, once it counts any traffic.
        """
        targets: list[dict[str, Any]] = [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": f"/metrics/{key}",
                    "instance": key,
                    "namespace": hosted.pod.namespace,
                    "pod": hosted.pod.name,
                    "container": hosted.pod.container,
                },
            }
            for key, hosted in self._hosted.items()
        ]
        # Target labels clash with those on the page, and Prometheus renames the latter.
        labels = _DCGM_EXPORTER if self._exported_gpu_labels else {}
        gpus = {"__metrics_path__": "/dcgm", "instance": "dcgm", **labels}
        targets.append({"targets": [address], "labels": gpus})
        if any(traffic.counted() for traffic in self._traffic.values()):
            envoy = {"__metrics_path__": "/envoy", "instance": "envoy", **_ENVOY}
            targets.append({"targets": [address], "labels": envoy})
        return targets

    async def page(self, key: str) -> str | None:
        """The metrics page of a pod with its faults, None if no engine of that name runs."""
        hosted = self._hosted.get(key)
        if hosted is None:
            return None
        delay = hosted.fault(FaultKind.SLOW)
        if delay is not None:
            await asyncio.sleep(delay)
        if hosted.fault(FaultKind.EMPTY) is not None:
            return ""
        if hosted.fault(FaultKind.FROZEN) is not None:
            return hosted.frozen_page
        self._advance_one(hosted, self._clock())
        return _page(hosted, nan=hosted.fault(FaultKind.NAN) is not None)

    def failing(self, key: str) -> bool:
        """Whether scrapes of this pod are answered with an error."""
        hosted = self._hosted.get(key)
        return hosted is not None and hosted.fault(FaultKind.ERROR) is not None

    def breaks(self, key: str) -> bool:
        """Whether this pod's server fails the next request."""
        hosted = self._hosted.get(key)
        share = None if hosted is None else hosted.fault(FaultKind.BROKEN)
        return share is not None and self._random.random() < share

    def gpu_page(self) -> str:
        """The page of the GPU exporter."""
        self._advance(self._clock())
        return dcgm_page(
            GPUReading(
                namespace=hosted.pod.namespace,
                pod=hosted.pod.name,
                container=hosted.pod.container,
                node=hosted.pod.node,
                index=hosted.gpu,
                utilization_ratio=hosted.utilization
                if (stuck := hosted.fault(FaultKind.GPU)) is None
                else stuck,
                kv_usage_ratio=hosted.engine.kv_usage_ratio,
                xid_error=int(hosted.fault(FaultKind.XID) or 0),
                product=hosted.pod.kind.gpu_product,
            )
            for hosted in self._hosted.values()
        )

    def gateway_page(self) -> str:
        """The metrics page of the gateway, for all traffic that it counts."""
        self._advance(self._clock())
        counted = (traffic.counted() for traffic in self._traffic.values())
        return envoy_page(route for route in counted if route is not None)

    def stats(self) -> dict[str, Any]:
        """The true results of all traffic, by name, and the serving pods, for JSON."""
        now = self._clock()
        self._advance(now)
        return {
            "traffic": {name: traffic.stats(now) for name, traffic in self._traffic.items()},
            "pods": [
                {
                    "namespace": hosted.pod.namespace,
                    "pod": hosted.pod.name,
                    "ready_for_seconds": now - hosted.since,
                    "max_num_seqs": hosted.pod.limits.max_num_seqs,
                    "max_num_batched_tokens": hosted.pod.limits.max_num_batched_tokens,
                    "max_queued": hosted.pod.max_queued,
                    "gpu_utilization_ratio": hosted.utilization,
                }
                for hosted in self._hosted.values()
            ],
        }


def _goes_on(hosted: _Hosted, ready: Mapping[str, EnginePod]) -> bool:
    pod = ready.get(hosted.pod.key)
    return pod is not None and pod.incarnation == hosted.pod.incarnation


def _page(hosted: _Hosted, *, nan: bool = False) -> str:
    pod, direct = hosted.pod, hosted.direct
    counts = None if direct is None or pod.connector is None else direct.counts
    page = engine_page(hosted.engine, counts, model_name=pod.model_name, nan=nan)
    return page if hosted.awake.is_set() else asleep_page(page)


def _sample_utilization(hosted: _Hosted, now: float) -> None:
    then, busy_then = hosted.sampled
    if now - then < _UTILIZATION_SPAN_SECONDS:
        return
    busy = hosted.engine.busy_seconds
    hosted.utilization = min(max((busy - busy_then) / (now - then), 0.0), 1.0)
    hosted.sampled = (now, busy)
