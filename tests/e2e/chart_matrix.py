"""The chart rendered by a matrix of values, beside what it rendered when that was looked at.

    python -m tests.e2e.chart_matrix

writes the renderings anew after a change that is meant to move them. The CRD is left out: it is
generated, and held equal to the models elsewhere.
"""

import subprocess
from pathlib import Path
from typing import Any

import typer.main
import yaml
from typer.core import TyperGroup

from servingslo.cli.main import app
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.programs.versions import HELM

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "servingslo-operator"
DATA = ROOT / "tests" / "golden" / "data" / "chart"
RELEASE, NAMESPACE, KUBE_VERSION = "servingslo", "servingslo-system", "1.36.3"
WATCHED = ("team-a", "team-b")
_WATCHED = tuple(f"watchNamespaces[{place}]={name}" for place, name in enumerate(WATCHED))
# What a name stands for, one way of use each; switches together that are used together.
CASES: dict[str, tuple[str, ...]] = {
    "default": (),
    "one-replica": ("replicaCount=1",),
    "shards": ("shards=3",),
    "namespaced": ("rbac.clusterRoles=false", "crds.install=false", *_WATCHED),
    "watched-namespaces": _WATCHED,
    "recommend": ("mode=Recommend", "limits.maxReplicas=40", "limits.maxStep=5"),
    "batching": ("batching.apply.enabled=true", "logFormat=json"),
    "credentials": (
        "prometheus.bearerTokenSecret=prometheus-token",
        "prometheus.caConfigMap=prometheus-ca",
        "prometheus.tenant=team",
        'prometheus.matchers=cluster="a"',
        "imagePullSecrets[0].name=registry",
    ),
    "own-token": (
        "prometheus.url=https://thanos-querier.openshift-monitoring.svc:9091",
        "prometheus.bearerTokenFile=/var/run/secrets/kubernetes.io/serviceaccount/token",
        "prometheus.caFile=/var/run/secrets/kubernetes.io/serviceaccount/service-ca.crt",
    ),
    "network-policy": (
        "networkPolicy.enabled=true",
        "networkPolicy.from[0].namespaceSelector.matchLabels.name=monitoring",
    ),
    "monitored": (
        "monitoring.serviceMonitor.enabled=true",
        "monitoring.podMonitor.enabled=true",
        "monitoring.podMonitor.selector.matchLabels.app=llama-chat",
        "monitoring.prometheusRule.enabled=true",
        "monitoring.labels.release=kube-prometheus-stack",
    ),
    "keda": (
        "keda.externalScaler.enabled=true",
        "keda.externalScaler.tlsSecret=scaler-tls",
        "keda.externalScaler.clientCASecret=keda-ca",
        "networkPolicy.enabled=true",
    ),
    "envoy-gateway": ("gateway.profile=envoy-gateway",),
    "degradation": (
        "gateway.profile=envoy-gateway",
        "admission.kinds[0]=BackendTrafficPolicy",
        "degradation.enabled=true",
    ),
    "istio": ("gateway.profile=istio", "admission.kinds[0]=DestinationRule"),
    "engines": (
        "engines.ranges[0]=10.0.0.0/16",
        "engines.ranges[1]=fd00::/48",
        "engines.keysSecret=engine-keys",
        "networkPolicy.enabled=true",
    ),
    "engines-set": (
        "engines.ranges[0]=10.0.0.0/16",
        "batching.apply.enabled=true",
        "batching.apply.serversOnly=true",
    ),
    "runtimes": (
        "runtimes.vllm.metrics.running=renamed_running",
        "runtimes.triton.modelRepositoryPort=9000",
        "engines.ranges[0]=10.0.0.0/16",
        "networkPolicy.enabled=true",
    ),
    "named": (
        "fullnameOverride=scaler",
        "nameOverride=slo",
        f"image.digest=sha256:{'0123456789abcdef' * 4}",
        "logLevel=DEBUG",
        "extraArgs[0]=--max-step=3",
        "extraEnv[0].name=HTTPS_PROXY",
        "extraEnv[0].value=http://proxy:3128",
        "podLabels.team=serving",
        "podSecurityContext.runAsUser=1000",
        "admission.kinds[0]=DestinationRule",
    ),
    # As with --reuse-values, of a release that was installed before the chart had defaults here.
    "partial-contexts": (
        "podSecurityContext.runAsNonRoot=null",
        "podSecurityContext.seccompProfile=null",
        "podSecurityContext.runAsUser=1000",
        "securityContext.allowPrivilegeEscalation=null",
        "securityContext.capabilities=null",
        "securityContext.readOnlyRootFilesystem=false",
    ),
    "tenants-apart": (
        *_WATCHED,
        "budgets.enabled=true",
        "configMaps.read.enabled=true",
        f"configMaps.read.namespaces[0]={WATCHED[0]}",
        "metricsAuthorization.enabled=true",
        "monitoring.serviceMonitor.enabled=true",
        "networkPolicy.enabled=true",
    ),
    # Objects and labels that are somebody else's, and files of one's own.
    "adopted": (
        "commonLabels.team=serving",
        "image.registry=registry.example",
        "revisionHistoryLimit=2",
        "extraVolumes[0].name=authority",
        "extraVolumes[0].configMap.name=authority",
        "extraVolumeMounts[0].name=authority",
        "extraVolumeMounts[0].mountPath=/etc/authority",
        "rbac.create=false",
        "serviceAccount.create=false",
        "serviceAccount.name=made-elsewhere",
    ),
    "other-kinds": (
        "extraScalableKinds[0].apiGroup=leaderworkerset.x-k8s.io",
        "extraScalableKinds[0].resource=leaderworkersets",
    ),
}


def rendered(case: str) -> str:
    """What Helm renders of a case, without the CRD."""
    return rendered_with(*CASES[case])


def flags(document: str) -> dict[str, Any]:
    """The options that the operator's container starts with, by the command itself."""
    (pod,) = (
        one["spec"]["template"]["spec"]
        for one in yaml.safe_load_all(document)
        if one and one["kind"] == "Deployment"
    )
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    words = next(one["args"] for one in pod["containers"] if one["name"] == "operator")
    # Options of all commands stand before its name.
    rest = words[words.index("run") :]
    context = group.make_context("servingslo", list(words), resilient_parsing=True)
    name, command, rest = group.resolve_command(context, rest)
    assert command is not None
    values: dict[str, Any] = command.make_context(name, rest, parent=context).params
    return values


def rendered_with(*settings: str) -> str:
    """What Helm renders with these values, without the CRD."""
    helm = ensure_tools((HELM,))[HELM.name]
    done = subprocess.run(
        [
            *(str(helm), "template", RELEASE, str(CHART), f"--namespace={NAMESPACE}"),
            *(f"--kube-version={KUBE_VERSION}", *(f"--set={setting}" for setting in settings)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    documents = done.stdout.split("\n---\n")
    return "\n---\n".join(one for one in documents if "CustomResourceDefinition" not in one)


def main() -> None:
    """Write every rendering."""
    DATA.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        (DATA / f"{case}.yaml").write_text(rendered(case), encoding="utf-8")


if __name__ == "__main__":
    main()
