"""A kubelet's part for the pods of one namespace: start, probes, status, SIGTERM, removal.

The rig has no kubelet. KWOK only pretends that pods run; those with the annotation `failure: hang`
it leaves Pending with an address, and this starts them from an image in a folder. Missing here:
restarts, init containers, seccomp, cgroups, and every volume but emptyDir and projected ones.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes

from servingslo.adapters.clock import SystemClock
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.image.build import Image
from servingslo_lab.rig.image.pod_spec import PodSpec
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.waiting import http_get

_TURN_SECONDS = 0.2
_NOT_FOUND = 404
# Of the kubelet, if the probe does not say them. Source: core/v1 Probe.
_PROBE_DEFAULTS = {"periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3}


@dataclass(slots=True, kw_only=True)
class Probe:
    """One HTTP probe and how it went; failures: in a row, all_failures: since it began."""

    url: str
    period_seconds: float
    timeout_seconds: float
    failure_threshold: int
    due_seconds: float = 0.0
    asked: int = 0
    failures: int = 0
    all_failures: int = 0

    def ask(self, now_seconds: float) -> bool | None:
        """Whether it succeeded now; None while it is not due."""
        if now_seconds < self.due_seconds:
            return None
        self.due_seconds = now_seconds + self.period_seconds
        self.asked += 1
        succeeded = http_get(self.url, timeout_seconds=self.timeout_seconds) is not None
        self.failures = 0 if succeeded else self.failures + 1
        self.all_failures += not succeeded
        return succeeded

    @property
    def failed(self) -> bool:
        """Whether as many asked in a row have failed as may."""
        return self.failures >= self.failure_threshold


@dataclass(slots=True, kw_only=True)
class RunningPod:
    """A pod that was started here, and what became of it."""

    name: str
    process: ManagedProcess
    container: Mapping[str, Any]
    restart_policy: str
    probes: dict[str, Probe]
    started: bool = False
    ready: bool = False
    ended: bool = False
    terminated: bool = False
    grace_seconds: float = 0.0
    stop_seconds: float | None = None
    peak_memory_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def first_process(self) -> int | None:
        """Number of the container's process 1 on this machine; None when it has ended."""
        pid = self.process.pid
        if pid is None:
            return None
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
            return int(children[0]) if children else None
        return None

    def measure(self) -> None:
        """Note the peak of its resident memory."""
        with contextlib.suppress(OSError, StopIteration):
            text = Path(f"/proc/{self.first_process}/status").read_text(encoding="ascii")
            line = next(one for one in text.splitlines() if one.startswith("VmHWM:"))
            self.peak_memory_bytes = max(self.peak_memory_bytes, int(line.split()[1]) * 1024)


class Kubelet:
    """Runs the pods of one namespace from one image."""

    def __init__(self, rig: Rig, namespace: str, image: Image) -> None:
        self._rig = rig
        self._namespace = namespace
        self._image = image
        self._core = kubernetes.client.CoreV1Api(rig.api_client())
        self._pods: dict[str, RunningPod] = {}
        self._ends = threading.Event()
        self._stops: list[threading.Thread] = []
        self.errors: list[str] = []

    @property
    def pods(self) -> list[RunningPod]:
        """Every pod that was started so far, in this order."""
        return list(self._pods.values())

    @contextlib.contextmanager
    def running(self) -> Iterator["Kubelet"]:
        """Do a kubelet's part during the block; at its end no pod runs any more."""
        thread = threading.Thread(target=self._run, name="kubelet")
        thread.start()
        try:
            yield self
        finally:
            self._ends.set()
            thread.join()
            for stop in self._stops:
                stop.join()
            for pod in self.pods:
                pod.process.stop(kill=True)

    def _run(self) -> None:
        while not self._ends.wait(_TURN_SECONDS):
            try:
                self._turn()
            except (kubernetes.client.ApiException, OSError, RigError, KeyError) as error:
                self.errors.append(repr(error))

    def _turn(self) -> None:
        found = self._core.list_namespaced_pod(self._namespace).items
        sanitize = self._core.api_client.sanitize_for_serialization
        for document in map(sanitize, found):
            uid = document["metadata"]["uid"]
            known = self._pods.get(uid)
            deleted = "deletionTimestamp" in document["metadata"]
            if known is None and not deleted and document.get("status", {}).get("podIP"):
                self._pods[uid] = self._start(document)
            elif known is not None and deleted and not known.terminated:
                known.grace_seconds = document["metadata"]["deletionGracePeriodSeconds"]
                self._terminate(known, remove=True)
        for pod in self.pods:
            if not pod.ended:
                self._look_after(pod)

    def _start(self, document: Mapping[str, Any]) -> RunningPod:
        name = document["metadata"]["name"]
        server = urlsplit(self._rig.api_url)
        spec = PodSpec(
            document,
            image=self._image,
            core=self._core,
            server=(str(server.hostname), str(server.port)),
            folder=self._rig.work_dir / "pods" / document["metadata"]["uid"],
        )
        container = spec.container()
        container.make_mount_points()
        process = self._rig.run_process(f"operator-pod-{name}", container.start_command())
        described = document["spec"]["containers"][0]
        probes = {}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if kind in described:
                said = {**_PROBE_DEFAULTS, **described[kind]}
                probes[kind] = Probe(
                    url=spec.probe_url(said),
                    period_seconds=said["periodSeconds"],
                    timeout_seconds=said["timeoutSeconds"],
                    failure_threshold=said["failureThreshold"],
                )
        pod = RunningPod(
            name=name,
            process=process,
            container=described,
            restart_policy=document["spec"].get("restartPolicy", "Always"),
            grace_seconds=document["spec"].get("terminationGracePeriodSeconds", 30),
            probes=probes,
            started="startupProbe" not in probes,
        )
        pod.ready = pod.started and "readinessProbe" not in probes
        self._write_status(pod, "Running")
        return pod

    def _look_after(self, pod: RunningPod) -> None:
        pod.measure()
        if not pod.process.running:
            pod.ended, pod.ready = True, False
            status = pod.process.exit_status
            phase = "Running" if pod.restart_policy == "Always" else "Failed"
            self._write_status(pod, "Succeeded" if status == 0 and phase == "Failed" else phase)
            return
        if pod.terminated:
            return
        now = time.monotonic()
        for kind in ("livenessProbe", "readinessProbe") if pod.started else ("startupProbe",):
            if kind in pod.probes:
                self._note(pod, kind, pod.probes[kind].ask(now))

    def _note(self, pod: RunningPod, kind: str, succeeded: bool | None) -> None:
        if succeeded is None:
            return
        failed = pod.probes[kind].failed
        if kind == "startupProbe":
            pod.started = succeeded
        elif kind == "readinessProbe" and (succeeded or failed) and succeeded != pod.ready:
            pod.ready = succeeded
            self._write_status(pod, "Running")
        if failed and kind != "readinessProbe":
            pod.notes.append(f"{kind} failed")
            self._terminate(pod, remove=False)

    def _terminate(self, pod: RunningPod, *, remove: bool) -> None:
        """SIGTERM, SIGKILL after the grace period, and then the object goes."""
        pod.terminated = True

        def stop() -> None:
            begin = time.monotonic()
            pod.process.stop(timeout_seconds=pod.grace_seconds)
            pod.stop_seconds = time.monotonic() - begin
            if remove:
                self._remove(pod)

        thread = threading.Thread(target=stop, name=f"stop-{pod.name}")
        self._stops.append(thread)
        thread.start()

    def _remove(self, pod: RunningPod) -> None:
        with contextlib.suppress(kubernetes.client.ApiException):
            self._core.delete_namespaced_pod(pod.name, self._namespace, grace_period_seconds=0)

    def _write_status(self, pod: RunningPod, phase: str) -> None:
        now = datetime.fromtimestamp(SystemClock.now_seconds(), UTC).isoformat()
        verdict = "True" if pod.ready else "False"
        state: dict[str, Any] = {"running": {"startedAt": now}}
        if pod.ended:
            state = {"terminated": {"exitCode": pod.process.exit_status, "finishedAt": now}}
        container = {
            "name": pod.container["name"],
            "image": pod.container["image"],
            "imageID": "",
            "ready": pod.ready,
            "started": pod.started,
            "restartCount": 0,
            "state": state,
        }
        conditions = [
            {"type": kind, "status": verdict, "lastTransitionTime": now}
            for kind in ("Ready", "ContainersReady")
        ]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
        try:
            self._core.patch_namespaced_pod_status(pod.name, self._namespace, {"status": status})
        except kubernetes.client.ApiException as error:
            if error.status != _NOT_FOUND:
                raise
