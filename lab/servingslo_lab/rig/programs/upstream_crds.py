"""CRDs of the projects that the operator works with, from their Go modules.

They are downloaded once for each user and version, into the cache of the rig's programs.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
import yaml

from servingslo_lab.errors import RigError
from servingslo_lab.rig.programs.cache import cache_directory, cache_lock
from servingslo_lab.rig.programs.commands import CommandRunner
from servingslo_lab.rig.programs.toolchain import find_go
from servingslo_lab.rig.programs.versions import TOOLS_DIRECTORY, pinned_version
from servingslo_lab.rig.waiting import wait_until

LABEL = "CRDs of other projects"
_DOWNLOAD_TIMEOUT_SECONDS = 600
_ESTABLISHED_SECONDS = 90.0
_ALREADY_THERE = 409
_KIND = "CustomResourceDefinition"
_CRDS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
# The compiled loader reads these two and a half megabytes ten times faster.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCRDs:
    """The CRDs of one project: their Go module, and the folder inside it.

    tool: folder with the go.mod and go.sum that pin the module. kinds: of objects that are taken.
    files: which files of the folder.
    """

    name: str
    module: str
    folder: str
    tool: str = "crds"
    kinds: tuple[str, ...] = (_KIND,)
    files: str = "*.yaml"

    @property
    def source_directory(self) -> Path:
        """The folder with the go.mod and go.sum that pin the module."""
        return TOOLS_DIRECTORY / self.tool

    @property
    def version(self) -> str:
        """The pinned version of the module, for example ``v1.6.3``."""
        return pinned_version(self.source_directory / "go.mod", self.module)

    @property
    def cached(self) -> Path:
        """The cache file of the manifests, a JSON list."""
        digest = hashlib.sha256((self.source_directory / "go.sum").read_bytes())
        digest.update(self.folder.encode())
        if self.files != "*.yaml":
            digest.update(self.files.encode())
        return cache_directory() / f"crds-{self.name}-{self.version}-{digest.hexdigest()[:12]}.json"


GATEWAY_API = UpstreamCRDs(
    name="gateway-api", module="sigs.k8s.io/gateway-api", folder="config/crd/standard"
)
ENVOY_GATEWAY = UpstreamCRDs(
    name="envoy-gateway",
    module="github.com/envoyproxy/gateway",
    folder="charts/gateway-crds-helm/templates/generated",
)
ISTIO = UpstreamCRDs(name="istio", module="istio.io/api", folder="kubernetes")
ARGO_ROLLOUTS = UpstreamCRDs(
    name="argo-rollouts", module="github.com/argoproj/argo-rollouts", folder="manifests/crds"
)
KEDA = UpstreamCRDs(name="keda", module="github.com/kedacore/keda/v2", folder="config/crd/bases")
LEADER_WORKER_SET = UpstreamCRDs(
    name="lws", module="sigs.k8s.io/lws", folder="config/crd/bases", tool="lws"
)
LEADER_WORKER_SET_WEBHOOKS = UpstreamCRDs(
    name="lws-webhooks",
    module="sigs.k8s.io/lws",
    folder="config/webhook",
    tool="lws",
    kinds=("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
)
KUEUE_CRDS = UpstreamCRDs(
    name="kueue",
    module="sigs.k8s.io/kueue",
    folder="config/components/crd/bases",
    tool="kueue",
)
KUEUE_WEBHOOKS = UpstreamCRDs(
    name="kueue-webhooks",
    module="sigs.k8s.io/kueue",
    folder="config/components/webhook",
    tool="kueue",
    kinds=("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
)
INFERENCE_EXTENSION = UpstreamCRDs(
    name="inference-extension",
    module="sigs.k8s.io/gateway-api-inference-extension",
    folder="config/crd/bases",
    tool="epp",
)
# Its folder also has patches for kustomize, which are no CRDs of their own.
LLM_INFERENCE_SERVICE = UpstreamCRDs(
    name="kserve-llm",
    module="github.com/kserve/kserve",
    folder="config/crd/full/llmisvc",
    tool="kserve",
    files="serving.kserve.io_llminferenceservices.yaml",
)
# What its controller merges a service's pod template over.
LLM_PRESET = UpstreamCRDs(
    name="kserve-llm-preset",
    module="github.com/kserve/kserve",
    folder="config/llmisvcconfig",
    tool="kserve",
    kinds=("LLMInferenceServiceConfig",),
    files="config-llm-template.yaml",
)
INFERENCE_SERVICE = UpstreamCRDs(
    name="kserve",
    module="github.com/kserve/kserve",
    # The one whose spec is not described: half a minute of a busy API server less.
    folder="config/crd/minimal",
    tool="kserve",
    files="serving.kserve.io_inferenceservices.yaml",
)
CAPACITY_BUFFER = UpstreamCRDs(
    name="karpenter",
    module="sigs.k8s.io/karpenter",
    folder="pkg/apis/crds",
    tool="karpenter",
    files="autoscaling.x-k8s.io_capacitybuffers.yaml",
)
# Those of Karpenter, Kueue, KServe and of the inference extension are downloaded by the tests that
# run them.

ALL = (GATEWAY_API, ENVOY_GATEWAY, ISTIO, ARGO_ROLLOUTS, KEDA, LEADER_WORKER_SET)


def all_here() -> bool:
    """Whether the cache has the CRDs of every project."""
    return all(crds.cached.exists() for crds in ALL)


def download_all() -> None:
    """Download CRDs that the cache lacks; the caller must hold its lock.

    Raises: RigError if a module cannot be downloaded or contains no CRDs.
    """
    for crds in ALL:
        if not crds.cached.exists():
            _download(crds)


def manifests(crds: UpstreamCRDs) -> list[dict[str, Any]]:
    """The project's CustomResourceDefinitions, downloaded first if the cache has none.

    Raises: RigError if the module cannot be downloaded or contains none.
    """
    if not crds.cached.exists():
        with cache_lock():
            if not crds.cached.exists():
                _download(crds)
    found: list[dict[str, Any]] = json.loads(crds.cached.read_text(encoding="utf-8"))
    return found


def install_crds(client: kubernetes.client.ApiClient, *wanted: UpstreamCRDs) -> None:
    """Create missing CRDs on the API server, and wait until all are served.

    Raises: RigError if they cannot be downloaded, are refused, or are not served in time.
    """
    # As plain objects: converting these schemas to the client's classes takes seconds each.
    custom = kubernetes.client.CustomObjectsApi(client)
    names = []
    for manifest in (one for crds in wanted for one in manifests(crds)):
        names.append(manifest["metadata"]["name"])
        try:
            custom.create_cluster_custom_object(*_CRDS, manifest)
        except kubernetes.client.ApiException as error:
            if error.status != _ALREADY_THERE:
                raise RigError(f"{names[-1]}: {error.body}") from error
    wait_until(
        lambda: all(_is_established(custom.get_cluster_custom_object(*_CRDS, n)) for n in names),
        what=f"CRDs of {', '.join(crds.name for crds in wanted)} are served",
        timeout_seconds=_ESTABLISHED_SECONDS,
        interval_seconds=0.2,
    )


def _is_established(crd: Mapping[str, Any]) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _download(crds: UpstreamCRDs) -> None:
    """Download the module, checked against go.sum, and keep its CRDs as JSON, which loads fast."""
    runner = CommandRunner({})
    go = find_go(cache_directory(), sources=[crds.source_directory], runner=runner)
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=".crds-") as scratch:
        source = Path(scratch) / "source"
        # Go may write next to go.mod, and an installed package may be read-only.
        shutil.copytree(crds.source_directory, source)
        lines = runner.run(
            crds.name,
            [str(go), "mod", "download", "-json", f"{crds.module}@{crds.version}"],
            log_path=cache_directory() / "logs" / f"crds-{crds.name}.log",
            timeout_seconds=_DOWNLOAD_TIMEOUT_SECONDS,
            working_directory=source,
        )
        found = _manifests_below(_module_folder(lines) / crds.folder, crds.kinds, crds.files)
        if not found:
            raise RigError(f"{crds.name}: no CRDs in {crds.folder} of {crds.module}")
        written = Path(scratch) / "manifests.json"
        written.write_text(json.dumps(found), encoding="utf-8")
        written.replace(crds.cached)


def _module_folder(lines: Iterable[str]) -> Path:
    text = "\n".join(lines)
    document = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return Path(document["Dir"])


def _manifests_below(folder: Path, kinds: Collection[str], files: str) -> list[dict[str, Any]]:
    """Objects of these kinds in the folder; a chart's templates only wrap them in a condition."""
    found = []
    for path in sorted(folder.glob(files)):
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.startswith("{{"))
        found += [
            one
            for one in yaml.load_all(text, Loader=_LOADER)
            if isinstance(one, dict) and one.get("kind") in kinds
        ]
    return found
