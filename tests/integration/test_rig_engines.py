"""Simulated engines on the real control plane: they follow Ready pods, Prometheus scrapes them."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import requests

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import free_port

# Of the rig itself: what it runs is another matter.
pytestmark = pytest.mark.slow("servingslo_lab.rig")

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"


class Engines:
    """The engine host as a process of the rig."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = rig.run_process(
            f"engines-{port}",
            [
                sys.executable, "-m", "servingslo_lab.rig.simulated.engines",
                "--kubeconfig", str(rig.admin_kubeconfig), "--port", str(port),
            ],
        )  # fmt: skip
        self._http = requests.Session()
        self._http.trust_env = False
        rig.wait_for(self._healthy, what="the engine host")

    def _healthy(self) -> bool:
        try:
            return self.get("/healthz").ok
        except requests.ConnectionError:
            return False

    def get(self, path: str) -> requests.Response:
        """Answer of the host."""
        return self._http.get(self.url + path, timeout=10)

    def post(self, path: str, document: dict[str, Any]) -> None:
        """Send a document that must be accepted."""
        self._http.post(self.url + path, json=document, timeout=10).raise_for_status()

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        """Pods with an engine."""
        return [p for p in self.get("/stats").json()["pods"] if p["namespace"] == namespace]

    def wait_pods(self, namespace: str, count: int) -> None:
        """Wait until so many engines run."""
        self.rig.wait_for(
            lambda: len(self.pods(namespace)) == count, what=f"{count} engines in {namespace}"
        )

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Answer of the rig's Prometheus."""
        answer = self._http.get(
            f"{self.rig.prometheus_url}/api/v1/query", params={"query": promql}, timeout=10
        )
        return answer.json()["data"]["result"]


@pytest.fixture
def engines(rig: Rig) -> Iterator[Engines]:
    """An engine host that Prometheus discovers its targets from."""
    host = Engines(rig)
    rig.configure_prometheus(http_sd_url=f"{host.url}/sd")
    yield host
    host.process.stop(kill=True)


def deployment(replicas: int) -> dict[str, Any]:
    """A Deployment of vLLM pods that become Ready after half a second."""
    labels = {"app": "chat", "rig.servingslo.dev/engine": "vllm"}
    return {
        "metadata": {"name": "chat"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {
                        "rig.servingslo.dev/fleet": "h100-8b",
                        "rig.servingslo.dev/ready-delay": "500ms",
                    },
                },
                "spec": {
                    "containers": [
                        {
                            "name": "vllm",
                            "image": "vllm/vllm-openai:v0.32.0",
                            "args": ["--model", "m", "--max-num-seqs", "48"],
                            "resources": {"limits": {"nvidia.com/gpu": "1"}},
                        }
                    ]
                },
            },
        },
    }


def test_engines_follow_pods_serve_a_trace_and_are_scraped(engines, rig, namespace):
    """One engine for each Ready pod, with its limits; its metrics arrive under its pod's labels."""
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    apps.create_namespaced_deployment(namespace, deployment(2))
    engines.wait_pods(namespace, 2)
    engines.post(
        "/traffic",
        {
            "name": namespace,
            "namespace": namespace,
            "selector": {"app": "chat"},
            "trace": str(TRACE),
            "start_seconds": 600,
        },
    )
    names = {pod["pod"] for pod in engines.pods(namespace)}
    rig.wait_for(
        lambda: (
            {
                one["metric"]["pod"]
                for one in engines.query(
                    f'vllm:generation_tokens_total{{namespace="{namespace}"}} > 0'
                )
            }
            == names
        ),
        what="token counters of both pods in Prometheus",
    )
    rig.wait_for(
        lambda: len(engines.query(f'DCGM_FI_DEV_GPU_UTIL{{namespace="{namespace}"}}')) == 2,
        what="GPU metrics of both pods in Prometheus",
    )
    truth = engines.get("/stats").json()["traffic"][namespace]

    assert {pod["max_num_seqs"] for pod in engines.pods(namespace)} == {48}
    assert truth["offered"] > 0
    assert truth["outcomes"]["failed"] == 0

    apps.patch_namespaced_deployment_scale("chat", namespace, {"spec": {"replicas": 1}})
    engines.wait_pods(namespace, 1)
    rig.wait_for(
        lambda: len(engines.query(f'vllm:num_requests_running{{namespace="{namespace}"}}')) == 1,
        what="the series of the deleted pod stale",
    )


def test_host_ends_cleanly_on_interrupt(engines, rig):
    """Ctrl-C: status 0 and no traceback."""
    pid = engines.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    rig.wait_for(lambda: not engines.process.running, what="the end of the engine host")

    assert engines.process.exit_status == 0
    assert "Traceback" not in engines.process.log_path.read_text()
