"""The operator asks Prometheus with its own ServiceAccount's token, as on OpenShift.

In front of a real Prometheus stands what OpenShift has in front of its Thanos Querier: TLS by an
authority of the cluster, and a proxy that has the API server review each token.
"""

from collections.abc import Iterator
from pathlib import Path

import kubernetes
import pytest
import yaml
from tests.integration.operator_under_test import (
    RELEASE_NAMESPACE,
    SERVICE_ACCOUNT,
    Engines,
    Operator,
    Tenant,
    install_chart,
)
from tests.integration.prometheus_world import proxying

from servingslo_lab.rig.cluster import Rig

DATA = Path(__file__).parent / "data"
OWN = f"system:serviceaccount:{RELEASE_NAMESPACE}:{SERVICE_ACCOUNT}"


def token_of(rig: Rig, namespace: str, name: str) -> str:
    """A real token of a ServiceAccount, as the kubelet projects it into a pod."""
    config = yaml.safe_load(rig.kubeconfig_for_service_account(namespace, name).read_text("utf-8"))
    return str(config["users"][0]["user"]["token"])


@pytest.fixture
def token(rig: Rig, tmp_path: Path) -> Path:
    """The file with the token of the operator's own account."""
    install_chart(rig)
    file = tmp_path / "token"
    file.write_text(token_of(rig, RELEASE_NAMESPACE, SERVICE_ACCOUNT), encoding="utf-8")
    return file


@pytest.fixture
def user(
    rig: Rig, namespace: str, audited: None, engines: Engines, token: Path
) -> Iterator[Tenant]:
    """A tenant of an operator that knows Prometheus only through that proxy."""
    reviews = kubernetes.client.AuthenticationV1Api(rig.api_client())

    def admits(bearer: str) -> bool:
        found = reviews.create_token_review({"spec": {"token": bearer or "none"}}).status
        return bool(found.authenticated) and found.user.username == OWN

    with proxying(rig.prometheus_url, DATA / "loopback.pem") as proxy:
        proxy.admits = admits
        running = Operator(
            rig,
            f"--prometheus-url={proxy.url}",
            f"--prometheus-bearer-token-file={token}",
            f"--prometheus-ca-file={DATA / 'loopback-ca.pem'}",
        )
        running.start()
        yield Tenant(rig, namespace, engines)
        running.stop()


def test_the_token_is_reviewed_read_again_and_missed_by_its_flag(
    rig: Rig, user: Tenant, token: Path
) -> None:
    """Another account's is refused; a file that went is named; the next one is used at once."""
    own = token.read_text(encoding="utf-8")
    user.create_deployment()
    user.create_slo()
    user.wait_condition("MetricsFresh", "True")
    token.write_text(token_of(rig, user.namespace, "default"), encoding="utf-8")
    user.wait_condition("MetricsFresh", "False", "PrometheusUnavailable")
    user.wait_message("MetricsFresh", "HTTP 401")
    token.write_text(own, encoding="utf-8")
    user.wait_condition("MetricsFresh", "True")
    token.unlink()
    user.wait_message("MetricsFresh", f"--prometheus-bearer-token-file: {token} does not exist")
    token.write_text(own, encoding="utf-8")
    user.wait_condition("MetricsFresh", "True")
