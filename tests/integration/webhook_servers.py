"""Controllers of other projects with webhooks: their certificates, and how they are asked.

They make their certificates themselves, keep them in a Secret, and wait for them as files.
"""

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import UpstreamCRDs, manifests
from servingslo_lab.rig.waiting import free_port, http_get

_START_SECONDS = 120.0
_MOUNT_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookServer:
    """The names that a controller looks for, and where its webhooks listen on loopback."""

    namespace: str
    service: str
    secret: str
    port: int

    def create(self, rig: Rig) -> None:
        """Its namespace, its empty Secret and its Service."""
        core = kubernetes.client.CoreV1Api(rig.api_client())
        rig.create_namespace(self.namespace)
        core.create_namespaced_secret(self.namespace, {"metadata": {"name": self.secret}})
        # A Service with endpoints on loopback is refused.
        service = {"type": "ExternalName", "externalName": "localhost"}
        core.create_namespaced_service(
            self.namespace, {"metadata": {"name": self.service}, "spec": service}
        )

    def at(self, path: str) -> dict[str, Any]:
        """The `clientConfig` of a webhook at this path."""
        where = {"name": self.service, "namespace": self.namespace}
        return {"service": {**where, "port": self.port, "path": path}}

    def create_webhooks(
        self,
        rig: Rig,
        source: UpstreamCRDs,
        *,
        prefix: str,
        paths: tuple[str, ...],
        fields: Callable[[str], Mapping[str, Any]],
    ) -> None:
        """The project's webhooks whose path has one of these parts.

        prefix: of the names of their configurations. fields: set in the webhook at a path.
        """
        api = kubernetes.client.CustomObjectsApi(rig.api_client())
        for manifest in manifests(source):
            kept = []
            for one in manifest["webhooks"]:
                path = one["clientConfig"]["service"]["path"]
                if any(part in path for part in paths):
                    kept.append({**one, "clientConfig": self.at(path), **fields(path)})
            manifest["metadata"]["name"] = f"{prefix}-{manifest['metadata']['name']}"
            where = ("admissionregistration.k8s.io", "v1", f"{manifest['kind'].lower()}s")
            api.create_cluster_custom_object(*where, {**manifest, "webhooks": kept})

    def run(self, rig: Rig, command: Sequence[str], folder: Path, health: int) -> None:
        """The controller by its command, until the rig ends. Returns when it is ready.

        folder: where it waits for its certificates. health: its port for /readyz.
        """
        folder.mkdir()
        core = kubernetes.client.CoreV1Api(rig.api_client())
        threading.Thread(target=self._mount, args=(core, folder), daemon=True).start()
        process = rig.run_process(
            self.namespace,
            command,
            environment={"KUBECONFIG": str(rig.admin_kubeconfig)},
        )
        process.wait_for(
            lambda: http_get(f"http://127.0.0.1:{health}/readyz") is not None,
            what=f"the controller of {self.namespace} is ready",
            timeout_seconds=_START_SECONDS,
        )

    def _mount(self, core: kubernetes.client.CoreV1Api, folder: Path) -> None:
        """Write the Secret's files into the folder once it has them, as a kubelet does."""
        waiting = threading.Event()
        while not waiting.wait(_MOUNT_SECONDS):
            data = core.read_namespaced_secret(self.secret, self.namespace).data or {}
            if "tls.crt" not in data:
                continue
            for name in sorted(data, key=lambda one: one == "tls.crt"):
                (folder / name).write_bytes(base64.b64decode(data[name]))
            return


def server_at_free_port(namespace: str, service: str, secret: str) -> WebhookServer:
    """A server under these names."""
    return WebhookServer(namespace=namespace, service=service, secret=secret, port=free_port())
