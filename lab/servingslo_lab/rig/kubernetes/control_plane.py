"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from servingslo_lab.rig.kubernetes.credentials import (
    new_token,
    write_kubeconfig,
    write_signing_key,
    write_token_file,
)
from servingslo_lab.rig.processes import ManagedProcess, ProcessFamily
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.waiting import free_port

_SERVICE_RANGE = "10.0.0.0/24"
_ISSUER = "https://kubernetes.default.svc"
# Far above the defaults (20 and 30): one controller manager serves the whole test run.
_CLIENT_QPS = 200
_CLIENT_BURST = 400
_PROBE_TIMEOUT_SECONDS = 2.0
# In this namespace statuses are logged with their body: a status names what decides it.
STATUSES_AUDITED = "statuses-audited"
# Logs every write of a ServiceAccount with its body. Status and events are long and many, so they
# are logged without the body. The rig's own controllers act as administrator and are not logged.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["patch"],
            "resources": [{"group": "servingslo.dev", "resources": ["servingslos/status"]}],
            "namespaces": [STATUSES_AUDITED],
        },
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [
                {"group": "events.k8s.io", "resources": ["events"]},
                {"group": "servingslo.dev", "resources": ["servingslos/status"]},
            ],
        },
        {
            "level": "Request",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
        },
        {"level": "None"},
    ],
}
# One file for the rig's whole run: rotated entries could not be compared.
_AUDIT_MEBIBYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """How the API server proves itself to servers of aggregated APIs; files in PEM.

    certificate: with its key, of a client that such a server accepts as the API server.
    authority: of that certificate.
    """

    certificate: Path
    key: Path
    authority: Path

    def flags(self) -> Sequence[str]:
        """The flags of kube-apiserver."""
        return (
            f"--proxy-client-cert-file={self.certificate}",
            f"--proxy-client-key-file={self.key}",
            f"--requestheader-client-ca-file={self.authority}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        )


class ControlPlane:
    """The four processes, their credentials, and the outages for tests."""

    def __init__(
        self,
        *,
        binaries: Mapping[str, Path],
        work_dir: Path,
        family: ProcessFamily,
        hpa_sync_period_seconds: float,
        front_proxy: FrontProxy | None = None,
    ) -> None:
        self._binaries = binaries
        self._front_proxy = front_proxy
        self._directory = work_dir / "control-plane"
        self._directory.mkdir(parents=True)
        self._family = family
        self._hpa_sync_period_seconds = hpa_sync_period_seconds
        self._etcd_port, self._etcd_peer_port, self._port = free_port(), free_port(), free_port()
        self._admin = new_token("rig-admin", "system:masters")
        self.url = f"https://127.0.0.1:{self._port}"
        self.certificate_authority = self._directory / "certificates" / "apiserver.crt"
        self.admin_kubeconfig = work_dir / "admin.kubeconfig"
        self.audit_log = self._directory / "audit.jsonl"
        self.api_server = self._define_api_server()
        self.etcd = self._define_etcd()

    def start(self) -> None:
        """Start all four and return when the API server is ready.

        Raises: RigError, with the end of the log, when a process ends or stays unready.
        """
        self.etcd.start()
        self.start_api_server()
        write_kubeconfig(
            self.admin_kubeconfig,
            server=self.url,
            certificate_authority=self.certificate_authority,
            token=self._admin.secret,
        )
        self._define_controller_manager().start()
        self._define_scheduler().start()

    def start_api_server(self) -> None:
        """Start kube-apiserver, also after an outage, and wait until it is ready.

        Raises: RigError when it ends or stays unready.
        """
        self.api_server.start()
        self.api_server.wait_for(self.answers, what="/readyz answers", timeout_seconds=180.0)

    def answers(self) -> bool:
        """Whether the API server reports ready."""
        if not self.certificate_authority.exists():
            return False
        try:
            context = ssl.create_default_context(cafile=self.certificate_authority)
        except (ssl.SSLError, OSError):  # the file is being written
            return False
        request = urllib.request.Request(  # noqa: S310 - the address is ours, always https
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {self._admin.secret}"}
        )
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(request, timeout=_PROBE_TIMEOUT_SECONDS) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _define_etcd(self) -> ManagedProcess:
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._etcd_peer_port}"
        return self._family.add(
            "etcd",
            [
                str(self._binaries[versions.ETCD.name]),
                "--name=rig",
                f"--data-dir={self._directory / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=rig={peer}",
                "--unsafe-no-fsync",  # no data is needed after the rig ends
                "--log-level=warn",
            ],
        )

    def _define_api_server(self) -> ManagedProcess:
        signing_key = self._directory / "service-account.key"
        write_signing_key(signing_key)
        token_file = self._directory / "tokens.csv"
        write_token_file(token_file, [self._admin])
        audit_policy = self._directory / "audit-policy.yaml"
        audit_policy.write_text(yaml.safe_dump(_AUDIT_POLICY), encoding="utf-8")
        return self._family.add(
            "kube-apiserver",
            [
                str(self._binaries[versions.KUBE_APISERVER.name]),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._port}",
                "--advertise-address=127.0.0.1",
                # Validation refuses endpoints on loopback, and they are not needed here.
                "--endpoint-reconciler-type=none",
                f"--cert-dir={self.certificate_authority.parent}",
                f"--token-auth-file={token_file}",
                "--authorization-mode=RBAC",
                f"--service-account-issuer={_ISSUER}",
                f"--service-account-key-file={signing_key}",
                f"--service-account-signing-key-file={signing_key}",
                f"--service-cluster-ip-range={_SERVICE_RANGE}",
                "--allow-privileged=true",
                f"--audit-policy-file={audit_policy}",
                f"--audit-log-path={self.audit_log}",
                f"--audit-log-maxsize={_AUDIT_MEBIBYTES}",
                # The log line is written before the answer.
                "--audit-log-mode=blocking",
                *(() if self._front_proxy is None else self._front_proxy.flags()),
            ],
        )

    def _define_controller_manager(self) -> ManagedProcess:
        return self._family.add(
            "kube-controller-manager",
            [
                str(self._binaries[versions.KUBE_CONTROLLER_MANAGER.name]),
                f"--kubeconfig={self.admin_kubeconfig}",
                "--leader-elect=false",
                "--secure-port=0",
                f"--root-ca-file={self.certificate_authority}",
                f"--service-account-private-key-file={self._directory / 'service-account.key'}",
                f"--horizontal-pod-autoscaler-sync-period={self._hpa_sync_period_seconds:g}s",
                f"--kube-api-qps={_CLIENT_QPS}",
                f"--kube-api-burst={_CLIENT_BURST}",
            ],
        )

    def _define_scheduler(self) -> ManagedProcess:
        config_path = self._directory / "scheduler.yaml"
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.admin_kubeconfig),
                "qps": _CLIENT_QPS,
                "burst": _CLIENT_BURST,
            },
            # A pod that waits for a GPU is retried soon after one is free (default 10 s).
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
        }
        config_path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return self._family.add(
            "kube-scheduler",
            [
                str(self._binaries[versions.KUBE_SCHEDULER.name]),
                f"--config={config_path}",
                "--secure-port=0",
            ],
        )
