"""Where kopf reaches the API server from a pod."""

import pytest

from servingslo.handlers.lifecycle import pod_server

OF_DNS = "https://kubernetes.default.svc"


@pytest.mark.parametrize(
    ("environment", "server"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "https://10.0.0.1:443"),
        (
            {"KUBERNETES_SERVICE_HOST": "api.example", "KUBERNETES_SERVICE_PORT": "6443"},
            "https://api.example:6443",
        ),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1"}, "https://[fd00::1]:443"),
        ({}, OF_DNS),
    ],
)
def test_a_pod_reaches_the_api_server_that_its_environment_names(
    environment: dict[str, str], server: str
) -> None:
    """Without such variables it is the name in the cluster's DNS."""
    assert pod_server(environment, otherwise=OF_DNS) == server
