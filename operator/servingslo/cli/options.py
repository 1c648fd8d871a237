"""Options that several commands share, worded once."""

from pathlib import Path
from typing import Annotated

import typer

Kubeconfig = Annotated[
    Path | None, typer.Option(help="Kubeconfig to use instead of kubectl's default.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]

GatewayProfileName = Annotated[
    str,
    typer.Option(
        "--gateway-profile",
        envvar="SERVINGSLO_GATEWAY_PROFILE",
        help="Gateway whose counts are read: istio, envoy-gateway, gateway-api-inference-extension "
        "or none.",
    ),
]
GatewayWorkloadLabel = Annotated[
    str,
    typer.Option(
        envvar="SERVINGSLO_GATEWAY_WORKLOAD_LABEL",
        help="Label that names the workload, if not the profile's own.",
    ),
]
GatewayNamespaceLabel = Annotated[
    str,
    typer.Option(
        envvar="SERVINGSLO_GATEWAY_NAMESPACE_LABEL",
        help="Label that names its namespace, if not the profile's own.",
    ),
]
GatewayReporter = Annotated[
    str,
    typer.Option(
        envvar="SERVINGSLO_GATEWAY_REPORTER",
        help="Istio's reporter: source (default), destination or waypoint.",
    ),
]
GatewayPattern = Annotated[
    str,
    typer.Option(
        envvar="SERVINGSLO_GATEWAY_PATTERN",
        help="Envoy Gateway's cluster names, as a pattern with the groups namespace and name.",
    ),
]


def path_text(path: Path | None) -> str | None:
    """A path as configurations hold it; None stays None."""
    return None if path is None else str(path)
