"""A switch that `helm upgrade` turns off in mid-change: put back first, with the former rights."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import kubernetes
import pytest
import yaml
from tests.features.batch_limits.orders import canary_order
from tests.integration.gateway_manifests import MANAGED, ROUTE_GROUP
from tests.integration.manifests import workload
from tests.integration.operator_under_test import CHART

from servingslo.adapters.kubernetes.api.client import KubeClient, connect
from servingslo.errors import WriteConflictError
from servingslo.features.batch_limits.pod_template import BatchCanaries
from servingslo.features.degradation.routes import WeightsOwner, weighted_routes
from servingslo.policy.inputs import ScaleTarget
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

# Another name than that of the operator under test, whose cluster-scoped objects are not ours.
RELEASE, NAME = "switched", "switched-servingslo-operator"
ALL_ON = (
    "degradation.enabled=true",
    "batching.apply.enabled=true",
    "admission.kinds={BackendTrafficPolicy,DestinationRule}",
    "engines.ranges={10.0.0.0/8}",
    "watchNamespaces={team-a,team-b}",
)
KINDS = ("--admission-kind=BackendTrafficPolicy", "--admission-kind=DestinationRule")
NO_KIND = "--admission-kind=EngineArguments"
NO_ROUTES, NO_CANARIES, NO_BUFFERS = "--no-degradation", "--no-canaries", "--no-node-buffers"
IN_BOTH = ("--namespace=team-a", "--namespace=team-b")
TRIES = 10
TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
OWNER, SINCE_SECONDS, BATCHING, RUNTIME = canary_order((64, 2048), (32, 2048))


def _helm(rig: Rig, namespace: str, *settings: str, dry: bool = False) -> str:
    """Install or upgrade the release; what it would render, if dry."""
    command = ("template", "--is-upgrade", "--dry-run=server") if dry else ("upgrade", "--install")
    done = rig.helm(
        *command, RELEASE, str(CHART), f"--namespace={namespace}",
        *(() if dry else ("--take-ownership", "--force-conflicts", "--timeout=120s")),
        *(f"--set={setting}" for setting in settings),
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def release(rig: Rig, namespace: str) -> Iterator[str]:
    """A namespace for a release that is gone afterwards."""
    yield namespace
    rig.helm("uninstall", RELEASE, f"--namespace={namespace}", "--ignore-not-found", "--no-hooks")


def _without(*gone: str) -> tuple[str, ...]:
    return tuple(one for one in ALL_ON if one not in gone)


def test_the_job_of_an_upgrade_is_for_what_it_switches_off_and_no_more(
    rig: Rig, release: str
) -> None:
    """With the account of the operator that runs; by dry runs against one installed release."""
    for name in ("team-a", "team-b"):
        rig.create_namespace(name)
    _helm(rig, release, "replicaCount=1", *ALL_ON)

    def job(*settings: str) -> list[str] | None:
        text = _helm(rig, release, *settings, dry=True)
        found = [
            one
            for one in yaml.safe_load_all(text)
            if one and one["kind"] == "Job" and one["metadata"]["name"].endswith("-put-back")
        ]
        if not found:
            return None
        pod = found[0]["spec"]["template"]["spec"]
        assert found[0]["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
        assert pod["serviceAccountName"] == NAME
        args: list[str] = pod["containers"][0]["args"]
        assert args[:2] == ["release", "--all"]
        return args[2:]

    assert job(*ALL_ON, "tickSeconds=30") is None
    routes = job(*_without(ALL_ON[0]))
    assert routes == [*IN_BOTH, NO_KIND, NO_CANARIES, NO_BUFFERS]
    policies = job(*_without(ALL_ON[2]), "admission.kinds={DestinationRule}")
    assert policies == [*IN_BOTH, KINDS[0], NO_CANARIES, NO_ROUTES, NO_BUFFERS]
    templates = job(*ALL_ON, "batching.apply.serversOnly=true")
    assert templates == [*IN_BOTH, NO_KIND, NO_ROUTES, NO_BUFFERS]
    assert job(*ALL_ON, "replicaCount=0") == [*IN_BOTH, *KINDS, NO_BUFFERS]
    left = job(*_without(ALL_ON[4]), "watchNamespaces={team-a}")
    assert left == [IN_BOTH[1], *KINDS, NO_BUFFERS]
    assert job(*_without(ALL_ON[4])) is None
    # An account of another name is not there before the upgrade.
    assert job(*_without(ALL_ON[0]), "serviceAccount.name=other") == routes
    with pytest.raises(RigError, match=r"without --engine-range=10.0.0.0/8, limits of servers"):
        job(*_without(ALL_ON[3]))


def _route() -> dict[str, Any]:
    marked = {"port": 80, "filters": [{
        "type": "ResponseHeaderModifier",
        "responseHeaderModifier": {"set": [{"name": "x-model", "value": "m"}]},
    }]}  # fmt: skip
    backends = [{"name": "chat", "weight": 1, **marked}, {"name": "small", "weight": 0, **marked}]
    return {
        "apiVersion": f"{ROUTE_GROUP}/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "chat", "labels": MANAGED},
        "spec": {"rules": [{"backendRefs": backends}]},
    }


def _asked(rig: Rig, work: Callable[[KubeClient], Awaitable[None]]) -> None:
    async def ask() -> None:
        client = await connect(kubeconfig=str(rig.admin_kubeconfig))
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(ask())


@pytest.mark.timeout(400)
def test_what_an_upgrade_switches_off_is_put_back_before_the_right_goes(
    rig: Rig, release: str, gateway_crds: None
) -> None:
    """A quarter at the fallback, and a Deployment paused with one pod of other limits."""
    api = rig.api_client()
    apps, core = kubernetes.client.AppsV1Api(api), kubernetes.client.CoreV1Api(api)
    custom = kubernetes.client.CustomObjectsApi(api)
    roles = kubernetes.client.RbacAuthorizationV1Api(api)
    place = (ROUTE_GROUP, "v1", release, "httproutes")
    custom.create_namespaced_custom_object(*place, _route())
    apps.create_namespaced_deployment(release, workload("chat", replicas=2))

    def specs() -> tuple[Any, Any]:
        found = apps.read_namespaced_deployment("chat", release)
        route = custom.get_namespaced_custom_object(*place, "chat")
        return api.sanitize_for_serialization(found)["spec"], route["spec"]

    before = specs()
    on = ("degradation.enabled=true", "batching.apply.enabled=true")
    _helm(rig, release, "replicaCount=1", *on)

    async def write(client: KubeClient) -> None:
        routes, canaries = weighted_routes(client), BatchCanaries(client)
        owner = WeightsOwner(name="chat", uid="u", rule=0, weights=(750, 250), former=(1, 0))
        await routes.write(await routes.read(release, "chat"), owner)
        begin = partial(
            canaries.start,
            owner=OWNER,
            since_seconds=SINCE_SECONDS,
            batching=BATCHING,
            runtime=RUNTIME,
        )
        for step in (begin, canaries.hold):
            # Meanwhile its controller writes the Deployment's status, as at any tick.
            for _ in range(TRIES):
                target = await canaries.read(release, TARGET)
                assert target is not None
                with suppress(WriteConflictError):
                    assert await step(target)
                    break
            else:
                raise AssertionError("the Deployment changed at each try")

    _asked(rig, write)
    assert specs()[0]["paused"]
    assert specs() != before

    played: list[subprocess.CompletedProcess[str]] = []
    kubelet = threading.Thread(target=lambda: played.append(_play_job(rig, core, release)))
    kubelet.start()
    _helm(rig, release, "replicaCount=1")
    kubelet.join(timeout=60)
    (done,) = played
    assert done.returncode == 0, done.stderr
    assert "HTTPRoute" in done.stdout
    assert "max_num_seqs 32 -> 64" in done.stdout
    assert specs() == before
    rules = roles.read_cluster_role(NAME).rules
    assert not [one for one in rules if "httproutes" in one.resources]
    assert not [one for one in rules if "deployments" in one.resources and "patch" in one.verbs]
    # Nothing is left to put back.
    _helm(rig, release, "replicaCount=1", "tickSeconds=30")


def _play_job(rig: Rig, core: Any, namespace: str) -> subprocess.CompletedProcess[str]:
    """Run the Job's container here, as the account of its pod, and say how it ended."""
    found: list[Any] = []

    def comes() -> bool:
        pods = core.list_namespaced_pod(namespace, label_selector="batch.kubernetes.io/job-name")
        found[:] = [one for one in pods.items if one.status.phase == "Running"]
        return bool(found)

    wait_until(comes, what="the Job's pod runs", timeout_seconds=100.0)
    pod = found[0]
    args: Sequence[str] = pod.spec.containers[0].args
    account = rig.kubeconfig_for_service_account(namespace, pod.spec.service_account_name)
    done = subprocess.run(
        [sys.executable, "-m", "servingslo.cli", *args],
        env={**os.environ, "KUBECONFIG": str(account)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    phase = "Succeeded" if done.returncode == 0 else "Failed"
    core.patch_namespaced_pod_status(pod.metadata.name, namespace, {"status": {"phase": phase}})
    return done
