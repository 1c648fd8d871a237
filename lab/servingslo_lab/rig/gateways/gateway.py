r"""A real Envoy in front of the rig's engines, as run by Envoy Gateway.

Start it as a separate process:

    python -m servingslo_lab.rig.gateways.gateway --kubeconfig FILE --namespace N --gateway NAME \
        --folder DIR

It reads Gateway, HTTPRoute and BackendTrafficPolicy from the API server. Envoy Gateway's own
translator (egctl) converts them to Envoy's resources. It adds the addresses of Ready pods as
endpoints, and moves the files into Envoy's folder. Envoy enforces the policies; this code neither
reads nor writes a limit. It prints one line when Envoy serves: `gateway at URL statistics at URL`.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio import client
from kubernetes.aio.config import load_kube_config

from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.gateways.envoy_files import (
    EnvoyFolder,
    Translation,
    translation_of,
    with_endpoints,
)
from servingslo_lab.rig.gateways.gateway_objects import (
    UNREACHABLE,
    GatewayObjects,
    StatusWriter,
    fingerprint,
    read_objects,
)
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.waiting import free_port, http_get, until_signalled, wait_until

_LOOK_SECONDS = 0.25
_TRANSLATION_SECONDS = 60.0
_STOP_SECONDS = 5.0


class Gateway:
    """One Gateway's proxy, kept in sync with the API server."""

    def __init__(
        self,
        *,
        namespace: str,
        name: str,
        folder: Path,
        binaries: Mapping[str, Path],
        with_policies: bool = True,
    ) -> None:
        self._with_policies = with_policies
        self._namespace = namespace
        self._key = f"{namespace}/{name}"
        self._egctl = binaries[versions.EGCTL.name]
        self._envoy = binaries[versions.ENVOY.name]
        self._folder = EnvoyFolder(path=folder / "envoy", admin_port=free_port())
        self._objects_file = folder / "objects.yaml"
        self._ports: dict[int, int] = {}
        self._translation: Translation | None = None
        self._translated = self._endpoints = ""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def statistics_url(self) -> str:
        """The URL of Envoy's counters, in Prometheus's format."""
        return f"http://127.0.0.1:{self._folder.admin_port}/stats/prometheus"

    async def run(self, kubeconfig: str) -> None:
        """Follow the API server until cancelled; its outages change nothing.

        Raises: RigError when Envoy ends.
        """
        configuration = client.Configuration()
        await load_kube_config(kubeconfig, client_configuration=configuration)
        configuration.proxy = None  # proxy settings of the environment are not for loopback
        try:
            async with client.ApiClient(configuration) as api, asyncio.TaskGroup() as group:
                statuses = StatusWriter(api)
                translating: asyncio.Task[None] | None = None
                while True:
                    with contextlib.suppress(*UNREACHABLE):
                        objects = await read_objects(
                            api, self._namespace, with_policies=self._with_policies
                        )
                        self._write_endpoints(objects)
                        if translating is None or translating.done():
                            translating = group.create_task(self._follow(objects, statuses))
                    if self._process is not None and self._process.returncode is not None:
                        raise RigError(f"envoy: ended with status {self._process.returncode}")
                    await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await self._stop()

    async def _follow(self, objects: GatewayObjects, statuses: StatusWriter) -> None:
        """Translate changed objects and pass the result to Envoy."""
        found = fingerprint(objects.translated)
        if found == self._translated:
            return
        try:
            answer = await self._translate(objects)
        except TimeoutError:
            # Of a busy machine: Envoy goes on with what it has, and the next look tries again.
            print("not translated: it took too long", flush=True)  # noqa: T201 - its log
            return
        if answer is not None and self._key in answer.get("xds", {}):
            self._translation = translation_of(answer["xds"][self._key])
            self._endpoints = ""
            if self._process is None:
                self._folder.write_bootstrap(self._translation.bootstrap)
            self._write_endpoints(objects)
            self._folder.write(self._translation, self._port_of)
            if self._process is None:
                await self._start()
        self._translated = found
        if answer is not None:
            with contextlib.suppress(*UNREACHABLE):
                await statuses.write(answer)

    async def _translate(self, objects: GatewayObjects) -> Any:
        text = yaml.dump_all(objects.translated, Dumper=_DUMPER)
        self._objects_file.write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            str(self._egctl), "experimental", "translate", "--from", "gateway-api",
            "--to", "gateway-api,xds", "--type", "all", "-o", "json", "-f", str(self._objects_file),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_TRANSLATION_SECONDS):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            print(f"not translated: {err.decode().strip()}", flush=True)  # noqa: T201 - its log
            return None
        return json.loads(out)

    def _write_endpoints(self, objects: GatewayObjects) -> None:
        if self._translation is None:
            return
        resources = [with_endpoints(one, objects.addresses) for one in self._translation.endpoints]
        if (found := fingerprint(resources)) != self._endpoints:
            self._folder.write_endpoints(resources)
            self._endpoints = found

    def _port_of(self, port: int) -> int:
        """The loopback port of a listener, fixed while the gateway runs."""
        return self._ports.setdefault(port, free_port())

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            str(self._envoy), "-c", str(self._folder.bootstrap), "--disable-hot-restart",
            "--concurrency", "1", "--log-level", "warning",
        )  # fmt: skip
        await asyncio.to_thread(
            wait_until,
            lambda: http_get(self.statistics_url) is not None,
            what="Envoy tells its statistics",
        )
        listening = min(self._ports.values(), default=0)
        print(  # noqa: T201 - for who started it
            f"gateway at http://127.0.0.1:{listening} statistics at {self.statistics_url}",
            flush=True,
        )

    async def _stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()


_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


async def _main(arguments: argparse.Namespace) -> None:
    gateway = Gateway(
        namespace=arguments.namespace,
        name=arguments.gateway,
        folder=arguments.folder,
        binaries=ensure_tools(versions.GATEWAY_TOOLS),
        with_policies=not arguments.without_policies,
    )
    await until_signalled(gateway.run(arguments.kubeconfig))


def main() -> None:
    """Run one Gateway as a process."""
    parser = argparse.ArgumentParser(description="A real Envoy, configured by Envoy Gateway's own.")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--gateway", required=True, help="name of the Gateway object")
    parser.add_argument("--folder", required=True, type=Path, help="for Envoy's files")
    parser.add_argument(
        "--without-policies", action="store_true", help="a control: no policy reaches Envoy"
    )
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
