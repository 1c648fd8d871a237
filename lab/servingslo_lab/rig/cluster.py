"""The rig: a real Kubernetes control plane, Prometheus and simulated nodes on this machine."""

import atexit
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import kubernetes

from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.kubernetes.control_plane import ControlPlane, FrontProxy
from servingslo_lab.rig.kubernetes.credentials import write_kubeconfig
from servingslo_lab.rig.kubernetes.kwok import GPU_RESOURCE, Kwok, node_manifest, schedulable
from servingslo_lab.rig.processes import ManagedProcess, ProcessFamily, uninterrupted
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.prometheus import Prometheus, ScrapedProxy, ScrapePlan
from servingslo_lab.rig.waiting import wait_until

_HELM_TIMEOUT_SECONDS = 180
_TOKEN_LIFETIME_SECONDS = 24 * 3600
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class RigOptions:
    """How a rig is started.

    scrape_interval_seconds: of Prometheus, for scraping and for engine discovery.
    engine_discovery_url: where Prometheus finds the engines (HTTP discovery); may be set later.
    hpa_sync_period_seconds: interval of the HorizontalPodAutoscaler controller (default of
        Kubernetes: 15).
    front_proxy: identity of the API server for servers of aggregated APIs; None: no such servers.
    kubernetes: programs of Kubernetes instead of those of the rig's own version.
    work_dir: an empty or new folder for state and logs; a temporary one when None.
    keep_work_dir: leave that folder behind; a folder given by work_dir is always left.
    """

    scrape_interval_seconds: float = 1.0
    engine_discovery_url: str | None = None
    hpa_sync_period_seconds: float = 1.0
    front_proxy: FrontProxy | None = None
    kubernetes: Sequence[versions.Tool] = ()
    work_dir: Path | None = None
    keep_work_dir: bool = False


class Rig:
    """A running rig; a context manager that leaves nothing behind.

    Everything listens only on 127.0.0.1. Start one with ``with Rig.start() as rig:``.
    """

    def __init__(self, options: RigOptions, binaries: Mapping[str, Path]) -> None:
        """Prepare folders and commands; use ``Rig.start`` instead."""
        self.options = options
        if options.work_dir is None:
            self.work_dir = Path(tempfile.mkdtemp(prefix="servingslo-rig-"))
        else:
            self.work_dir = options.work_dir.resolve()
            self.work_dir.mkdir(parents=True, exist_ok=True)
        self._temporary = options.work_dir is None and not options.keep_work_dir
        self._binaries = binaries
        self._node_count = 0
        self._family = ProcessFamily(work_dir=self.work_dir, remove_work_dir=self._temporary)
        self._control_plane = ControlPlane(
            binaries=binaries,
            work_dir=self.work_dir,
            family=self._family,
            hpa_sync_period_seconds=options.hpa_sync_period_seconds,
            front_proxy=options.front_proxy,
        )
        self._prometheus = Prometheus(
            binaries=binaries,
            work_dir=self.work_dir,
            family=self._family,
            plan=ScrapePlan(
                http_sd_url=options.engine_discovery_url,
                scrape_interval_seconds=options.scrape_interval_seconds,
            ),
        )
        self._kwok = Kwok(
            binaries=binaries,
            kubeconfig=self.admin_kubeconfig,
            family=self._family,
            work_dir=self.work_dir,
        )

    @classmethod
    def start(cls, options: RigOptions | None = None) -> Self:
        """Start a rig and wait until it is ready; builds missing programs first.

        Raises: RigError when a program cannot be built or does not start; nothing is left.
        """
        options = options or RigOptions()
        others = {tool.name: tool for tool in options.kubernetes}
        binaries = ensure_tools([others.get(one.name, one) for one in versions.DEFAULT_TOOLS])
        rig: Self | None = None
        try:
            # A Ctrl-C in between would leave a folder that is never removed.
            with uninterrupted():
                rig = cls(options, binaries)
                # Needed between the return from here and the caller's `with`.
                atexit.register(rig.stop)
            rig._start()
        except BaseException:
            if rig is not None:
                rig.stop()
            raise
        return rig

    def _start(self) -> None:
        self._prometheus.start()
        self._control_plane.start()
        self._kwok.start()
        self._kwok.wait_ready()
        self._prometheus.wait_ready()
        self._wait_service_account("default")

    def stop(self) -> None:
        """Stop every process and remove the work folder if it is temporary. Safe to call twice.

        A second Ctrl-C waits until it is done.
        """
        with uninterrupted():
            self._family.stop()
            if self._temporary:
                shutil.rmtree(self.work_dir, ignore_errors=True)
            atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # Addresses and credentials

    @property
    def api_url(self) -> str:
        """Address of the API server, https on 127.0.0.1."""
        return self._control_plane.url

    @property
    def prometheus_url(self) -> str:
        """Address of Prometheus, http on 127.0.0.1."""
        return self._prometheus.url

    @property
    def audit_log(self) -> Path:
        """The log of writes by ServiceAccounts, one JSON object a line."""
        return self._control_plane.audit_log

    @property
    def admin_kubeconfig(self) -> Path:
        """A kubeconfig file of a member of system:masters."""
        return self._control_plane.admin_kubeconfig

    @property
    def processes(self) -> Mapping[str, ManagedProcess]:
        """Every process of the rig by name: etcd, kube-apiserver, prometheus, kwok, ..."""
        return self._family.members

    def api_client(self, kubeconfig: Path | None = None) -> kubernetes.client.ApiClient:
        """A client of the API server: for the administrator, or for this kubeconfig."""
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(
            str(kubeconfig or self.admin_kubeconfig), client_configuration=configuration
        )
        configuration.proxy = None  # proxy settings of the environment are not for loopback
        return kubernetes.client.ApiClient(configuration)

    def kubeconfig_for_service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig file with a real token of this ServiceAccount, valid for a day.

        Raises: RigError when the API server refuses, for example because there is no such account.
        """
        request = {"spec": {"expirationSeconds": _TOKEN_LIFETIME_SECONDS}}
        core = kubernetes.client.CoreV1Api(self.api_client())
        try:
            answer = core.create_namespaced_service_account_token(name, namespace, request)
        except kubernetes.client.ApiException as error:
            raise RigError(f"token of ServiceAccount {namespace}/{name}: {error.reason}") from error
        return write_kubeconfig(
            self.work_dir / "kubeconfigs" / f"{namespace}.{name}.kubeconfig",
            server=self.api_url,
            certificate_authority=self._control_plane.certificate_authority,
            token=answer.status.token,
            namespace=namespace,
        )

    # Namespaces, nodes, pods

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Create a namespace and wait for its default ServiceAccount; returns the name."""
        metadata = {"name": name, "labels": dict(labels or {})}
        kubernetes.client.CoreV1Api(self.api_client()).create_namespace({"metadata": metadata})
        self._wait_service_account(name)
        return name

    def delete_namespace(self, name: str) -> None:
        """Request the deletion of a namespace and its content; returns before it is gone."""
        with _ignoring_not_found():
            kubernetes.client.CoreV1Api(self.api_client()).delete_namespace(name)

    def add_nodes(
        self,
        count: int,
        *,
        gpus_per_node: int = 8,
        labels: Mapping[str, str] | None = None,
        gpu_resource: str = GPU_RESOURCE,
    ) -> list[str]:
        """Add Ready, schedulable nodes with this many GPUs each; returns their names.

        Raises: RigError when they are not Ready after 30 s.
        """
        core = kubernetes.client.CoreV1Api(self.api_client())
        names = [f"gpu-node-{self._node_count + index}" for index in range(count)]
        self._node_count += count
        for name in names:
            core.create_node(
                node_manifest(
                    name,
                    gpu_count=gpus_per_node,
                    labels=labels or {},
                    gpu_resource=gpu_resource,
                )
            )
        self.wait_for(
            lambda: all(schedulable(core.read_node(name)) for name in names),
            what=f"nodes {', '.join(names)} Ready",
        )
        return names

    def remove_nodes(self, names: Sequence[str]) -> None:
        """Delete these nodes; their pods are evicted by the garbage collector."""
        core = kubernetes.client.CoreV1Api(self.api_client())
        for name in names:
            with _ignoring_not_found():
                core.delete_node(name)

    def wait_for(
        self, check: Callable[[], bool], *, what: str, timeout_seconds: float = 30.0
    ) -> None:
        """Wait until ``check()`` is true. Raises: RigError that names ``what`` otherwise."""
        wait_until(check, what=what, timeout_seconds=timeout_seconds)

    # Helm and further programs

    def helm(
        self, *arguments: str, major: int = 4, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run Helm as administrator with its own caches; returns the finished process.

        major: 4, or 3 for Helm 3, which is built on first use.
        Raises: RigError with Helm's own message when it fails and ``check`` is true.
        """
        tool = {4: versions.HELM, 3: versions.HELM3}[major]
        binary = ensure_tools((tool,))[tool.name]
        home = self.work_dir / tool.name
        environment = {
            "KUBECONFIG": str(self.admin_kubeconfig),
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_DATA_HOME": str(home / "data"),
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
        }
        home.mkdir(exist_ok=True)
        try:
            finished = subprocess.run(
                [str(binary), *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_HELM_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RigError(f"helm {' '.join(arguments)}: no end after {error.timeout} s") from error
        if check and finished.returncode != 0:
            raise RigError(f"helm {' '.join(arguments)}: {finished.stderr.strip()}")
        return finished

    def run_process(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
    ) -> ManagedProcess:
        """Start one more process that ends with the rig, for example the operator under test.

        environment: variables on top of this program's own; output goes to logs/<name>.log.
        Raises: RigError when it cannot be executed, or one of this name is running.
        """
        process = self._family.add(
            name, command, environment=environment, working_directory=working_directory
        )
        process.start()
        return process

    # Outages

    def stop_api_server(self) -> None:
        """Kill the API server: connections are refused until start_api_server."""
        self._control_plane.api_server.stop(kill=True)

    def start_api_server(self) -> None:
        """Start the API server again at the same address and wait until it is ready."""
        self._control_plane.start_api_server()

    def pause_api_server(self) -> None:
        """Freeze the API server: connections open and hang until resume_api_server."""
        self._control_plane.api_server.pause()

    def resume_api_server(self) -> None:
        """Resume a paused API server, and wait until it answers."""
        self._control_plane.api_server.resume()
        self.wait_for(self._control_plane.answers, what="the API server answers")

    def stop_prometheus(self) -> None:
        """Stop Prometheus: connections are refused until start_prometheus."""
        self._prometheus.process.stop()

    def start_prometheus(self) -> None:
        """Start Prometheus again with its old data, and wait until it is ready."""
        self._prometheus.start()
        self._prometheus.wait_ready()

    def pause_prometheus(self) -> None:
        """Freeze Prometheus: connections open and hang until resume_prometheus."""
        self._prometheus.process.pause()

    def resume_prometheus(self) -> None:
        """Resume a paused Prometheus, and wait until it answers."""
        self._prometheus.process.resume()
        self.wait_for(self._prometheus.answers, what="Prometheus answers")

    def configure_prometheus(
        self,
        *,
        http_sd_url: str | None = None,
        scrape_interval_seconds: float | None = None,
        static_targets: Mapping[str, Sequence[str]] | None = None,
        engines_prefix: str | None = None,
    ) -> None:
        """Change Prometheus' scrape configuration; None does not change a value.

        static_targets, engines_prefix: see ScrapePlan.
        Raises: RigError when Prometheus refuses the configuration.
        """
        changes: dict[str, Any] = {"http_sd_url": http_sd_url, "static_targets": static_targets}
        changes["scrape_interval_seconds"] = scrape_interval_seconds
        changes["engines_prefix"] = engines_prefix
        given = {name: value for name, value in changes.items() if value is not None}
        self._prometheus.configure(replace(self._prometheus.plan, **given))

    def scrape_proxy(self, proxy: ScrapedProxy) -> None:
        """Scrape one more proxy of a gateway. Raises: RigError when Prometheus refuses it."""
        self._prometheus.configure(self._prometheus.plan.with_proxy(proxy))

    @contextlib.contextmanager
    def scrape_plan_kept(self) -> Iterator[None]:
        """Undo changes by configure_prometheus at the end of the block."""
        plan = self._prometheus.plan
        try:
            yield
        finally:
            self._prometheus.configure(plan)

    def _wait_service_account(self, namespace: str) -> None:
        core = kubernetes.client.CoreV1Api(self.api_client())

        def exists() -> bool:
            names = core.list_namespaced_service_account(namespace, watch=False).items
            return any(account.metadata.name == "default" for account in names)

        self._family.members["kube-controller-manager"].wait_for(
            exists, what=f"ServiceAccount {namespace}/default exists"
        )


@contextlib.contextmanager
def _ignoring_not_found() -> Iterator[None]:
    try:
        yield
    except kubernetes.client.ApiException as error:
        if error.status != _NOT_FOUND:
            raise RigError(f"API server: {error.status} {error.reason}") from error
