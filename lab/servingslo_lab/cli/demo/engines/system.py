"""Real engines on the rig: a program behind each pod of one Deployment, clients, the operator."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes

from servingslo_lab.cli.demo.system import (
    SCRAPE_INTERVAL_SECONDS,
    Reporter,
    install_chart,
    start_operator,
)
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.pod_servers import Clients, Place, PodServers, Question, Server

NODE_COUNT = 2
READY_DELAY = "5s"
_READY_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What runs behind the pods, and what its clients ask.

    settings: further values of the chart. flags: further flags of the operator.
    """

    name: str
    container: Mapping[str, Any]
    server_at: Callable[[Place], Server]
    question: Callable[[random.Random], Question]
    settings: Sequence[str] = ()
    flags: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RealEngines:
    """The running system."""

    rig: Rig
    pods: PodServers
    clients: Clients
    namespace: str
    name: str

    def ask(self, spec: Mapping[str, Any]) -> None:
        """Create the ServingSLO of the Deployment. spec: without its target."""
        slo = {
            "apiVersion": "servingslo.dev/v1beta1",
            "kind": "ServingSLO",
            "metadata": {"name": self.name},
            "spec": {"targetRef": {"kind": "Deployment", "name": self.name}, **spec},
        }
        kubernetes.client.CustomObjectsApi(self.rig.api_client()).create_namespaced_custom_object(
            "servingslo.dev", "v1beta1", self.namespace, "servingslos", slo
        )

    def replicas(self) -> int:
        """Desired replicas of the Deployment."""
        apps = kubernetes.client.AppsV1Api(self.rig.api_client())
        return apps.read_namespaced_deployment(self.name, self.namespace).spec.replicas or 0

    def log_lines(self, word: str) -> list[str]:
        """What the operator logged of this namespace, from this word on."""
        log = (self.rig.work_dir / "logs" / "operator.log").read_text(encoding="utf-8")
        wanted = (f"{word} ", f"namespace={self.namespace} ")
        lines = [line for line in log.splitlines() if all(one in line for one in wanted)]
        return [line[line.index(wanted[0]) :] for line in lines]


@contextmanager
def real_engines(root: Path, engine: Engine, tell: Reporter) -> Iterator[RealEngines]:
    """Start everything but the traffic, and stop everything at the end."""
    tell("starting the control plane, KWOK and Prometheus")
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS)) as rig:
        rig.add_nodes(NODE_COUNT)
        pods = PodServers(rig, f"app={engine.name}", engine.server_at)
        pods.start()
        clients = Clients(pods, engine.question)
        try:
            rig.configure_prometheus(http_sd_url=pods.url)
            values = [f"--set {one}" for one in engine.settings]
            tell(" ".join(["helm install servingslo", *values]))
            install_chart(rig, root, *engine.settings)
            tell(f"a real {engine.container['name']} behind the pod of a Deployment")
            namespace = rig.create_namespace(f"{engine.container['name']}-demo")
            _deploy(rig, namespace, engine)
            rig.wait_for(lambda: bool(pods.routed), what="a server", timeout_seconds=_READY_SECONDS)
            tell("starting the operator with its ServiceAccount's token")
            start_operator(rig, *engine.flags)
            clients.start()
            yield RealEngines(
                rig=rig, pods=pods, clients=clients, namespace=namespace, name=engine.name
            )
        finally:
            clients.stop()
            pods.stop()


def _deploy(rig: Rig, namespace: str, engine: Engine) -> None:
    labels = {"app": engine.name}
    container = {**engine.container, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    annotations = {"rig.servingslo.dev/ready-delay": READY_DELAY}
    body = {
        "metadata": {"name": engine.name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"containers": [container]},
            },
        },
    }
    kubernetes.client.AppsV1Api(rig.api_client()).create_namespaced_deployment(namespace, body)
