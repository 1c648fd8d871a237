"""The inference extension's own endpoint picker (EPP) and a real Envoy in front of rig engines.

The picker reads its InferencePool, its InferenceObjectives and the pods from the API server, and
scrapes the engines itself. Envoy asks it for each request (ext_proc) and sends the request to the
pod in its answer. A request names its InferenceObjective in the header `OBJECTIVE_HEADER`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import kubernetes
import yaml

from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.gateway_objects import ENGINE_PORT
from servingslo_lab.rig.gateways.picker_envoy import bootstrap
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.programs.upstream_crds import INFERENCE_EXTENSION, install_crds
from servingslo_lab.rig.prometheus import ScrapedProxy
from servingslo_lab.rig.waiting import free_port, http_get

OBJECTIVE_HEADER = "x-gateway-inference-objective"
POOL_GROUP, POOL_VERSION, POOLS = "inference.networking.k8s.io", "v1", "inferencepools"
OBJECTIVE_GROUP, OBJECTIVE_VERSION, OBJECTIVES = (
    "inference.networking.x-k8s.io",
    "v1alpha2",
    "inferenceobjectives",
)
_READY_SECONDS = 60.0


class PickerFront:
    """An InferencePool of one workload's pods (label `app`), its picker, and Envoy."""

    def __init__(self, rig: Rig, namespace: str, workload: str) -> None:
        self._rig = rig
        self.namespace = namespace
        self.workload = workload
        self._custom = kubernetes.client.CustomObjectsApi(rig.api_client())
        self._port, self._admin, self._picker, self._metrics = (free_port() for _ in range(4))

    def create(self, priorities: Mapping[str, int]) -> None:
        """Create the InferencePool and an InferenceObjective for each name, with its priority."""
        install_crds(self._rig.api_client(), INFERENCE_EXTENSION)
        spec = {
            "selector": {"matchLabels": {"app": self.workload}},
            "targetPorts": [{"number": ENGINE_PORT}],
            "endpointPickerRef": {"name": f"{self.workload}-epp", "port": {"number": 9002}},
        }
        self._create(POOL_GROUP, POOL_VERSION, POOLS, "InferencePool", self.workload, spec)
        for name, priority in priorities.items():
            self._create(
                OBJECTIVE_GROUP, OBJECTIVE_VERSION, OBJECTIVES, "InferenceObjective", name,
                {"priority": priority, "poolRef": {"name": self.workload}},
            )  # fmt: skip

    def change_priority(self, name: str, priority: int) -> None:
        """Change an InferenceObjective's priority while the picker runs."""
        self._custom.patch_namespaced_custom_object(
            OBJECTIVE_GROUP, OBJECTIVE_VERSION, self.namespace, OBJECTIVES, name,
            {"spec": {"priority": priority}},
        )  # fmt: skip

    def start(self, config: Mapping[str, Any]) -> None:
        """Start picker and Envoy, and wait until they serve; Prometheus scrapes the picker.

        config: the picker's EndpointPickerConfig, without apiVersion and kind.
        Raises: RigError when one cannot be built, or does not serve in time.
        """
        tools = ensure_tools((versions.PICKER, versions.ENVOY))
        folder = self._rig.work_dir / f"picker-{self.namespace}"
        folder.mkdir()
        kind = {
            "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
            "kind": "EndpointPickerConfig",
        }
        settings = folder / "picker.yaml"
        settings.write_text(yaml.safe_dump({**kind, **config}), encoding="utf-8")
        self._rig.run_process(
            self._process("epp"),
            [
                str(tools[versions.PICKER.name]),
                f"--pool-name={self.workload}", f"--pool-namespace={self.namespace}",
                f"--grpc-port={self._picker}", f"--grpc-health-port={free_port()}",
                f"--metrics-port={self._metrics}", "--metrics-endpoint-auth=false",
                "--secure-serving=false", "--tracing=false", "--enable-pprof=false",
                f"--config-file={settings}",
            ],
            environment={"KUBECONFIG": str(self._rig.admin_kubeconfig)},
        ).wait_for(
            self._sees_pods, what="the picker sees pods", timeout_seconds=_READY_SECONDS
        )  # fmt: skip
        files = folder / "envoy.json"
        found = bootstrap(port=self._port, admin_port=self._admin, picker_port=self._picker)
        files.write_text(json.dumps(found), encoding="utf-8")
        self._rig.run_process(
            self._process("envoy"),
            [
                str(tools[versions.ENVOY.name]), "-c", str(files), "--disable-hot-restart",
                "--concurrency", "1", "--log-level", "warning",
            ],
        ).wait_for(
            lambda: http_get(f"http://127.0.0.1:{self._admin}/ready") is not None,
            what="Envoy is ready", timeout_seconds=_READY_SECONDS,
        )  # fmt: skip
        self._rig.scrape_proxy(self.scraped())

    def stop(self) -> None:
        """Stop Envoy and the picker."""
        for part in ("envoy", "epp"):
            self._rig.processes[self._process(part)].stop()

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self._port}"

    def scraped(self) -> ScrapedProxy:
        """The picker as a PodMonitor would find it."""
        pod = f"{self.workload}-epp-0"
        labels = {"namespace": self.namespace, "pod": pod, "container": "epp"}
        address = f"127.0.0.1:{self._metrics}"
        return ScrapedProxy(
            name=f"epp-{self.namespace}", address=address, path="/metrics", labels=labels
        )

    def page(self) -> str:
        """The picker's metrics. Raises: RigError when it does not answer."""
        page = http_get(f"http://127.0.0.1:{self._metrics}/metrics")
        if page is None:
            raise RigError("epp: no answer")
        return page

    def total(self, name: str, **labels: str) -> float:
        """The sum of the picker's series of a name with these labels; 0 if there is none."""
        found = 0.0
        for held, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", self.page(), re.MULTILINE):
            if all(f'{label}="{wanted}"' in held for label, wanted in labels.items()):
                found += float(value)
        return found

    def _sees_pods(self) -> bool:
        page = http_get(f"http://127.0.0.1:{self._metrics}/metrics") or ""
        found = re.search(r"^inference_pool_ready_pods{[^}]*} (\d+)", page, re.MULTILINE)
        return found is not None and int(found[1]) > 0

    def _process(self, part: str) -> str:
        return f"picker-{part}-{self.namespace}"

    def _create(
        self, group: str, version: str, plural: str, kind: str, name: str, spec: Mapping[str, Any]
    ) -> None:
        body = {
            "apiVersion": f"{group}/{version}",
            "kind": kind,
            "metadata": {"name": name},
            "spec": dict(spec),
        }
        self._custom.create_namespaced_custom_object(group, version, self.namespace, plural, body)
