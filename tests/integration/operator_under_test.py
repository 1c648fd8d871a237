"""The operator as a process with its ServiceAccount's token, and a tenant who uses it."""

import json
import math
import random
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes
import yaml
from tests.integration.manifests import slo_spec, workload

from servingslo.adapters.clock import SystemClock
from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION
from servingslo.cli.decision_document import last_document
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import free_port, http_get, wait_until

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "servingslo-operator"
RELEASE = "servingslo"
RELEASE_NAMESPACE = "servingslo-system"
SERVICE_ACCOUNT = "servingslo-operator"
TICK_SECONDS = 1.0
# Several ticks: long enough for the operator to do what it must not.
QUIET_TICKS = 4
# Before a step down 45 s pass, after the first scrapes of new pods, on a machine that may be busy.
PATIENCE_SECONDS = 120.0
# Of equal requests that come evenly each window holds the same, and nothing tells what a step would
# take at another load: laws are not identifiable then, and none ought to be trusted.
LENGTH_SPREAD = 0.8
KILLED = "the test killed the operator"


def install_chart(rig: Rig, *settings: str) -> None:
    """Everything of the chart but the running operator, which is a process of the test."""
    wait_until(lambda: not _is_ending(rig), what="the former release's namespace is gone")
    rig.helm(
        "upgrade",
        "--install",
        RELEASE,
        str(CHART),
        # The CRD of this control plane may have come with another test.
        "--take-ownership",
        "--force-conflicts",
        f"--namespace={RELEASE_NAMESPACE}",
        "--create-namespace",
        "--set=replicaCount=0",
        *(f"--set={setting}" for setting in settings),
    )


def _is_ending(rig: Rig) -> bool:
    """Whether another test deletes the namespace of the release now."""
    core = kubernetes.client.CoreV1Api(rig.api_client())
    found = core.list_namespace(field_selector=f"metadata.name={RELEASE_NAMESPACE}").items
    return any(one.status.phase == "Terminating" for one in found)


class Operator:
    """`servingslo run` as a process, with the token of a ServiceAccount (namespace, name)."""

    def __init__(
        self,
        rig: Rig,
        *settings: str,
        name: str = "operator",
        account: tuple[str, str] = (RELEASE_NAMESPACE, SERVICE_ACCOUNT),
        program: str = "servingslo.cli",
        prefix: Sequence[str] = (),
    ) -> None:
        """prefix: a command that starts the operator in its turn."""
        self._rig = rig
        self._command = (*prefix, sys.executable, "-m", program)
        self._name = name
        self._settings = settings
        self._kubeconfig = rig.kubeconfig_for_service_account(*account)
        self._port = free_port()
        self.process = None

    @property
    def kubeconfig(self) -> Path:
        """Of the operator's ServiceAccount."""
        return self._kubeconfig

    def reach_through(self, port: int) -> None:
        """Reach the API server through what listens on this port of loopback."""
        config = yaml.safe_load(self._kubeconfig.read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        self._kubeconfig = self._kubeconfig.with_name(f"{self._name}.kubeconfig")
        self._kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")

    def start(self, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Start it and wait until it is ready."""
        self.process = self._rig.run_process(
            self._name,
            [
                *self._command,
                "run",
                f"--prometheus-url={self._rig.prometheus_url}",
                "--prometheus-timeout-seconds=2",
                f"--tick-seconds={TICK_SECONDS:g}",
                f"--health-port={self._port}",
                *self._settings,
            ],
            environment={"KUBECONFIG": str(self._kubeconfig)},
        )
        self.process.wait_for(self.ready, what="/readyz answers", timeout_seconds=timeout_seconds)

    def kill(self) -> None:
        """SIGKILL, with a line in its log: what it wrote last it may not have told any more."""
        assert self.process is not None
        self.process.stop(kill=True)
        with self.process.log_path.open("a", encoding="utf-8") as log:
            log.write(f"\n{KILLED} at_seconds={SystemClock.now_seconds():.3f}\n")

    def ready(self) -> bool:
        """Whether it says that it is ready."""
        return http_get(f"http://127.0.0.1:{self._port}/readyz") is not None

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None:
            self.process.stop()

    def readiness(self) -> str:
        """What /readyz says while it is ready; '' else."""
        return http_get(f"http://127.0.0.1:{self._port}/readyz") or ""

    @property
    def metrics_address(self) -> str:
        """Where Prometheus finds its metrics page."""
        return f"127.0.0.1:{self._port}"

    def metrics(self) -> str:
        """Its own metrics page."""
        return http_get(f"http://127.0.0.1:{self._port}/metrics") or ""

    def log_lines(self, *needles: str) -> list[str]:
        """Lines of its log that hold all of these."""
        assert self.process is not None
        text = self.process.log_path.read_text(encoding="utf-8")
        return [line for line in text.splitlines() if all(needle in line for needle in needles)]


class Engines:
    """The host of the simulated engines."""

    def __init__(self, rig: Rig) -> None:
        # The log is kept when the process of another module had the same name.
        log = rig.work_dir / "logs" / "engines.log"
        before = len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0
        process = rig.run_process(
            "engines",
            [
                sys.executable,
                "-m",
                "servingslo_lab.rig.simulated.engines",
                "--kubeconfig",
                str(rig.admin_kubeconfig),
            ],
        )
        found: list[str] = []

        def listens() -> bool:
            lines = process.log_path.read_text(encoding="utf-8").splitlines()[before:]
            found.extend(line.split()[-1] for line in lines if line.startswith("engines at"))
            return bool(found)

        process.wait_for(listens, what="the engine host listens")
        self.process = process
        self.url = found[-1]

    def send(self, path: str, document: Mapping[str, Any] | None, *, method: str = "POST") -> None:
        """Ask the host for something."""
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(  # noqa: S310  a loopback address
            f"{self.url}{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            pass

    def break_pod(self, namespace: str, pod: str, kind: str, value: float = 1.0) -> None:
        """Break the metrics or the engine of a pod; 'none' repairs it."""
        self.send("/faults", {"namespace": namespace, "pod": pod, "kind": kind, "value": value})


class Tenant:
    """One namespace: workloads, ServingSLOs and what came of them."""

    def __init__(self, rig: Rig, namespace: str, engines: Engines) -> None:
        self.rig = rig
        self.namespace = namespace
        self.engines = engines
        client = rig.api_client()
        self.apps = kubernetes.client.AppsV1Api(client)
        self.core = kubernetes.client.CoreV1Api(client)
        self.custom = kubernetes.client.CustomObjectsApi(client)
        self._traffic: set[str] = set()

    # Workloads

    def create_deployment(
        self,
        name: str = "chat",
        *,
        replicas: int = 1,
        args: Sequence[str] = (),
        command: Sequence[str] = (),
        ready_delay: str = "500ms",
        only_these: bool = False,
        pod: Mapping[str, Any] | None = None,
        container: Mapping[str, Any] | None = None,
    ) -> None:
        """A Deployment of simulated engines, and wait until it is ready.

        args: further ones. command: instead of the usual arguments. only_these: what is given alone
        is what the container has. pod, container: further fields of them.
        """
        manifest = workload(name, replicas=replicas, args=args, ready_delay=ready_delay)
        pod_spec = manifest["spec"]["template"]["spec"]
        engine = pod_spec["containers"][0]
        if command:
            engine.update(command=list(command), args=[])
        if only_these:
            engine["args"] = list(args)
        pod_spec.update(pod or {})
        engine.update(container or {})
        self.apps.create_namespaced_deployment(self.namespace, manifest)
        self.wait(lambda: self.ready_replicas(name) == replicas, what=f"{name} is ready")

    def replicas(self, name: str = "chat") -> int:
        """The replica count that the Deployment asks for."""
        found = self.apps.read_namespaced_deployment(name, self.namespace)
        return int(found.spec.replicas or 0)

    def ready_replicas(self, name: str = "chat") -> int:
        """Ready pods of the Deployment."""
        found = self.apps.read_namespaced_deployment(name, self.namespace)
        return int(found.status.ready_replicas or 0)

    def scale(self, replicas: int, name: str = "chat") -> None:
        """Edit the count by hand."""
        self.apps.patch_namespaced_deployment_scale(
            name, self.namespace, {"spec": {"replicas": replicas}}
        )

    def arguments(self, name: str = "chat") -> list[str]:
        """The container's arguments in the pod template."""
        found = self.apps.read_namespaced_deployment(name, self.namespace)
        return list(found.spec.template.spec.containers[0].args or [])

    def template(self, name: str = "chat") -> dict[str, Any]:
        """The Deployment's pod template, as the API server has it."""
        found = self.apps.read_namespaced_deployment(name, self.namespace)
        template: dict[str, Any] = found.spec.template.to_dict()
        return template

    def pods(self, name: str = "chat") -> list[str]:
        """Names of the pods that are not being deleted."""
        found = self.core.list_namespaced_pod(self.namespace, label_selector=f"app={name}").items
        return sorted(pod.metadata.name for pod in found if not pod.metadata.deletion_timestamp)

    def version(self, name: str = "chat") -> str:
        """The Deployment's resourceVersion."""
        found = self.apps.read_namespaced_deployment(name, self.namespace)
        return str(found.metadata.resource_version)

    # Traffic

    def begin_traffic(self, trace: Path, *, name: str = "chat", **plan: Any) -> None:
        """Send a trace to the workload's pods until `end_traffic`."""
        key = f"{self.namespace}-{name}"
        document = {
            "name": key,
            "namespace": self.namespace,
            "selector": {"app": name},
            "trace": str(trace),
            **plan,
        }
        self.engines.send("/traffic", document)
        self._traffic.add(key)

    def end_traffic(self, *names: str) -> None:
        """End the traffic of these workloads, or all of this tenant."""
        for key in [f"{self.namespace}-{name}" for name in names] or list(self._traffic):
            self.engines.send(f"/traffic/{key}", None, method="DELETE")
            self._traffic.discard(key)

    def served(self, name: str = "chat") -> dict[str, Any]:
        """The truth about the traffic so far."""
        page = http_get(f"{self.engines.url}/stats")
        assert page is not None
        found: dict[str, Any] = json.loads(page)["traffic"][f"{self.namespace}-{name}"]
        return found

    # ServingSLOs

    def create_slo(
        self, name: str = "chat", *, dry_run: bool = False, **spec: Any
    ) -> dict[str, Any]:
        """A ServingSLO on the Deployment of the same name, with quick reactions.

        Fields that the schema does not know are refused, as by kubectl.
        """
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "ServingSLO",
            "metadata": {"name": name},
            "spec": slo_spec(name, spec),
        }
        created: dict[str, Any] = self.custom.create_namespaced_custom_object(
            GROUP,
            VERSION,
            self.namespace,
            PLURAL,
            body,
            field_validation="Strict",
            **({"dry_run": "All"} if dry_run else {}),
        )
        return created

    def patch_slo(self, spec: Mapping[str, Any], name: str = "chat") -> None:
        """Change fields of a spec."""
        self.custom.patch_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, name, {"spec": dict(spec)}
        )

    def delete_slo(self, name: str = "chat") -> None:
        """Ask for the deletion of a ServingSLO."""
        self.custom.delete_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name)

    def slo(self, name: str = "chat") -> dict[str, Any]:
        """A ServingSLO as it is now."""
        found: dict[str, Any] = self.custom.get_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, name
        )
        return found

    def slo_names(self) -> list[str]:
        """Names of the ServingSLOs that are there."""
        found = self.custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL)
        return [item["metadata"]["name"] for item in found["items"]]

    def slo_exists(self, name: str = "chat") -> bool:
        """Whether the ServingSLO is still there."""
        return name in self.slo_names()

    def status(self, name: str = "chat") -> dict[str, Any]:
        """The status, empty before the first write."""
        found: dict[str, Any] = self.slo(name).get("status") or {}
        return found

    def decision(self, name: str = "chat") -> dict[str, Any]:
        """The whole last decision that the status holds; empty while there is none."""
        return dict(last_document(self.status(name)) or {})

    def condition(self, type_: str, name: str = "chat") -> tuple[str, str]:
        """Status and reason of a condition; empty strings while it is not there."""
        for entry in self.status(name).get("conditions") or ():
            if entry["type"] == type_:
                return entry["status"], entry["reason"]
        return "", ""

    def message(self, type_: str, name: str = "chat") -> str:
        """The message of a condition."""
        entries = self.status(name).get("conditions") or ()
        return next((entry["message"] for entry in entries if entry["type"] == type_), "")

    def wait_condition(
        self,
        type_: str,
        status: str,
        reason: str | None = None,
        *,
        name: str = "chat",
        timeout_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Wait until a condition says this."""

        def says() -> bool:
            found = self.condition(type_, name)
            return found[0] == status and reason in {None, found[1]}

        try:
            self.wait(says, what=f"{type_}={status} {reason}", timeout_seconds=timeout_seconds)
        except Exception as error:
            error.add_note(f"status: {json.dumps(self.status(name), indent=1)}")
            raise

    def wait_message(self, type_: str, words: str, *, name: str = "chat") -> None:
        """Wait until the message of a condition has these words.

        A message may change at each tick: the one that is read after a wait is not always the one
        that ended it.
        """
        self.wait(lambda: words in self.message(type_, name), what=f"{type_} says {words!r}")

    def wait_line(self, operator: Operator, *needles: str) -> None:
        """Wait for a line of the operator's log about this namespace: it may follow the write."""
        self.wait(
            lambda: bool(operator.log_lines(self.namespace, *needles)),
            what=f"a line with {needles}",
        )

    def events(self, name: str = "chat") -> list[tuple[str, str]]:
        """Reason and message of the events about a ServingSLO."""
        found = self.core.list_namespaced_event(
            self.namespace,
            field_selector=f"involvedObject.kind=ServingSLO,involvedObject.name={name}",
        )
        return [(item.reason, item.message) for item in found.items]

    def wait_event(
        self, reason: str, *, name: str = "chat", timeout_seconds: float = PATIENCE_SECONDS
    ) -> str:
        """Wait for an event; returns its message."""
        self.wait(
            lambda: reason in dict(self.events(name)),
            what=f"event {reason}",
            timeout_seconds=timeout_seconds,
        )
        return dict(self.events(name))[reason]

    def wait_reconciled(self, name: str = "chat") -> None:
        """Wait until the operator wrote a status for the present spec."""

        def reconciled() -> bool:
            found = self.slo(name)
            seen = (found.get("status") or {}).get("observedGeneration")
            return bool(seen == found["metadata"]["generation"])

        self.wait(reconciled, what=f"ServingSLO {name} is reconciled")

    def wait(
        self, check: Callable[[], bool], *, what: str, timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Wait until something holds. Raises: RigError with what the operator says by then."""
        try:
            wait_until(check, what=what, timeout_seconds=timeout_seconds, interval_seconds=0.2)
        except RigError as error:
            raise RigError(f"{error}\n{self._told()}") from error

    def _told(self) -> str:
        """Decision and conditions of each ServingSLO, and which pods are there."""
        found = self.custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL)
        statuses = [item.get("status") or {} for item in found["items"]]
        lines = [
            json.dumps([last_document(one), one.get("conditions")], indent=1) for one in statuses
        ]
        pods = self.core.list_namespaced_pod(self.namespace).items
        return "\n".join((*lines, *(f"{pod.metadata.name}: {pod.status.phase}" for pod in pods)))


def ticks_pass(operator: Operator, count: int = QUIET_TICKS) -> None:
    """Wait until the operator has looked at everything this often again."""

    def ticks() -> float:
        lines = operator.metrics().splitlines()
        name = "servingslo_tick_duration_seconds_count"
        return float(next(line.split()[-1] for line in lines if line.startswith(name)))

    begin = ticks()
    wait_until(
        lambda: ticks() >= begin + count,
        what=f"{count} ticks",
        # A tick in which every request to the API server times out takes many times as long.
        timeout_seconds=PATIENCE_SECONDS + 10 * count * TICK_SECONDS,
    )


def steady_trace(
    path: Path,
    *,
    rate: float,
    seconds: float,
    prompt_tokens: int = 512,
    output_tokens: int = 128,
    spread: float = 0.0,
) -> Path:
    """A trace of evenly spaced requests; lengths vary evenly by this share of their mean.

    Their means are met in each minute.
    """
    count, minute = round(rate * seconds), math.ceil(60.0 * rate)
    rng = random.Random(count)  # noqa: S311  lengths, no secrets
    ratios = [1.0 + spread * ((2 * i + 1) / minute - 1.0) for i in range(minute)]
    minutes = range(math.ceil(count / minute))
    prompts, outputs = (
        [round(tokens * ratio) for _ in minutes for ratio in rng.sample(ratios, minute)]
        for tokens in (prompt_tokens, output_tokens)
    )
    lines = [f"{i / rate:.4f},{prompts[i]},{outputs[i]}" for i in range(count)]
    path.write_text("\n".join(["arrival_seconds,prompt_tokens,output_tokens", *lines]) + "\n")
    return path


def process_use(pid: int) -> tuple[float, float]:
    """CPU seconds and resident MiB of a process."""
    out = subprocess.run(
        ["ps", "-o", "cputimes=,rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    cpu, rss = out.stdout.split()
    return float(cpu), float(rss) / 1024
