r"""Write the addresses of a Service's pods to the endpoint file of Istio's Envoy.

It updates the file as a separate process, for IstioFront:

    python -m servingslo_lab.rig.gateways.istio_pods --kubeconfig FILE \
        --namespace N --service NAME --folder DIR
"""

import argparse
import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.config import load_kube_config

from servingslo_lab.rig.gateways.envoy_files import EnvoyFolder
from servingslo_lab.rig.gateways.gateway_objects import (
    ENGINE_PORT,
    UNREACHABLE,
    GatewayObjects,
    fingerprint,
)
from servingslo_lab.rig.waiting import until_signalled

_LOOK_SECONDS = 0.25


def cluster_name(namespace: str, service: str, subset: str = "") -> str:
    """Name in istiod of the cluster of a Service's port, or of a DestinationRule's subset."""
    return f"outbound|{ENGINE_PORT}|{subset}|{service}.{namespace}.svc.cluster.local"


async def _follow(kubeconfig: str, namespace: str, service: str, folder: EnvoyFolder) -> None:
    """Update the file with the addresses of Ready pods; outages do not change it."""
    configuration = client.Configuration()
    await load_kube_config(kubeconfig, client_configuration=configuration)
    configuration.proxy = None  # proxy settings of the environment are not for loopback
    name, written = cluster_name(namespace, service), ""
    async with client.ApiClient(configuration) as api:
        core = client.CoreV1Api(api)
        while True:
            with contextlib.suppress(*UNREACHABLE):
                services = (await core.list_namespaced_service(namespace)).items
                found = GatewayObjects(
                    translated=(),
                    services={one.metadata.name: one for one in services},
                    pods=tuple((await core.list_namespaced_pod(namespace)).items),
                )
                port = {"name": service, "sectionName": ENGINE_PORT}
                resource = _endpoints(name, found.addresses(port))
                if (print_of := fingerprint([resource])) != written:
                    folder.write_endpoints([resource])
                    written = print_of
            await asyncio.sleep(_LOOK_SECONDS)


def _endpoints(name: str, addresses: Iterable[tuple[str, int]]) -> dict[str, Any]:
    sockets = [{"socketAddress": {"address": ip, "portValue": port}} for ip, port in addresses]
    return {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "clusterName": name,
        "endpoints": [{"lbEndpoints": [{"endpoint": {"address": one}} for one in sockets]}],
    }


def main() -> None:
    """Update the file of one Service's pods, as a process."""
    parser = argparse.ArgumentParser(
        description="Where pods are, for an Envoy that istiod configures."
    )
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--service", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="for Envoy's files")
    given = parser.parse_args()
    folder = EnvoyFolder(path=given.folder, admin_port=0)
    asyncio.run(until_signalled(_follow(given.kubeconfig, given.namespace, given.service, folder)))


if __name__ == "__main__":
    main()
