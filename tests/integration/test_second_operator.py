"""Two releases in one cluster that watch the same namespace: the second finds the first."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import kubernetes
import pytest
from tests.integration.operator_under_test import (
    CHART,
    RELEASE_NAMESPACE,
    Engines,
    Operator,
    Tenant,
    install_chart,
    ticks_pass,
)

from servingslo_lab.rig.cluster import Rig

pytestmark = pytest.mark.slow("servingslo.controller.lease", "servingslo.handlers")

FIRST, SECOND = "servingslo-operator", "second-servingslo-operator"
# With a value the Lease of the one that is gone is waited for: it ends after 40 s, and is asked for
# every 10 s.
FOR_A_RELEASE = bool(os.environ.get("SERVINGSLO_LEASES"))
HANDOVER_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """Both, and the namespace of the second one."""

    first: Operator
    second: Operator
    second_namespace: str

    @property
    def names(self) -> tuple[str, str]:
        """As they call themselves."""
        return f"{RELEASE_NAMESPACE}/{FIRST}", f"{self.second_namespace}/{SECOND}"


@pytest.fixture
def releases(
    rig: Rig, audited: None, engines: Engines, namespace: str
) -> Iterator[tuple[Releases, Tenant]]:
    """One for the whole cluster, one confined to the tenant's namespace that is not started."""
    install_chart(rig)
    other = rig.create_namespace(f"{namespace}-second")
    rig.helm(
        "upgrade",
        "--install",
        "second",
        str(CHART),
        f"--namespace={other}",
        "--set=replicaCount=0",
        "--set=crds.install=false",
        f"--set=watchNamespaces[0]={namespace}",
    )
    first = Operator(
        rig,
        f"--lease-namespace={RELEASE_NAMESPACE}",
        f"--lease-name={FIRST}",
        name="operator-first",
    )
    second = Operator(
        rig,
        f"--lease-namespace={other}",
        f"--lease-name={SECOND}",
        f"--namespace={namespace}",
        name="operator-second",
        account=(other, SECOND),
    )
    first.start()
    yield (
        Releases(first=first, second=second, second_namespace=other),
        Tenant(rig, namespace, engines),
    )
    second.stop()
    first.stop()
    rig.helm("uninstall", "second", f"--namespace={other}")
    rig.delete_namespace(other)


def written_by(rig: Rig, account: str) -> list[str]:
    """What a ServiceAccount changed beside its release's own Lease."""
    found = []
    for line in rig.audit_log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef", {})
        if (
            entry["user"]["username"] == f"system:serviceaccount:{account}"
            and entry["verb"] in {"create", "patch", "update", "delete"}
            and entry["stage"] == "ResponseComplete"
            and entry["responseStatus"]["code"] < 300
            and not reference["resource"].startswith("selfsubject")
            and (reference["resource"], reference["namespace"])
            != ("leases", account.partition(":")[0])
        ):
            found.append(f"{entry['verb']} {reference['resource']}")
    return found


def test_the_younger_stands_aside_says_so_once_and_takes_over_when_the_older_is_gone(
    rig: Rig, releases: tuple[Releases, Tenant]
) -> None:
    """It writes nothing but one event that names both; then it decides as if it had been alone."""
    both, user = releases
    older, younger = both.names
    user.create_deployment(replicas=1)
    user.create_slo(replicas={"min": 2, "max": 4})
    user.wait(lambda: user.replicas() == 2, what="the older one's order")
    both.second.start()
    user.wait(
        lambda: f"stands aside in {user.namespace} ({older})" in both.second.readiness(),
        what="the younger one stands aside",
    )
    user.patch_slo({"replicas": {"min": 3, "max": 4}})
    user.wait(lambda: user.replicas() == 3, what="another order of the older one")
    ticks_pass(both.second)
    account = f"{both.second_namespace}:{SECOND}"
    assert written_by(rig, account) == ["create events"]
    assert "servingslo_namespaces_aside 1.0" in both.second.metrics()
    assert f'namespace="{user.namespace}"' not in both.second.metrics()
    said = both.second.log_lines("standing aside", user.namespace)
    assert len(said) == 1
    assert f"operator={younger} other={older}" in said[0]
    (message,) = (
        item.message
        for item in user.core.list_namespaced_event(user.namespace).items
        if item.reason == "AnotherOperator"
    )
    assert older in message
    assert younger in message
    both.first.stop()
    if not FOR_A_RELEASE:
        # As the runbook says, to hand a namespace over at once.
        kubernetes.client.CoordinationV1Api(rig.api_client()).delete_namespaced_lease(
            "servingslo-acting-operator", user.namespace
        )
    user.patch_slo({"replicas": {"min": 4, "max": 4}})
    user.wait(
        lambda: user.replicas() == 4,
        what="the younger one's order",
        timeout_seconds=HANDOVER_SECONDS,
    )
    assert "patch deployments" in written_by(rig, account)
    assert "stands aside" not in both.second.readiness()
