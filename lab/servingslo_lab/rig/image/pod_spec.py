"""What a kubelet makes of a Pod: the container of an image, with its variables and volumes."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes

from servingslo_lab.errors import RigError
from servingslo_lab.rig.image.build import Image
from servingslo_lab.rig.image.container import Container, Mount

_REFERENCE = re.compile(r"\$\((\w+)\)")
_SIZE = re.compile(r"(\d+)(Ki|Mi|Gi)")
_FACTORS = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


class PodSpec:
    """The first container of a pod, as a kubelet reads it.

    pod: the object as the API server gives it in JSON. folder: for the files of its volumes.
    server: host and port of the API server.
    """

    def __init__(
        self,
        pod: Mapping[str, Any],
        *,
        image: Image,
        core: kubernetes.client.CoreV1Api,
        server: tuple[str, str],
        folder: Path,
    ) -> None:
        self._metadata = pod["metadata"]
        self._spec = pod["spec"]
        self._address = pod["status"]["podIP"]
        self._image = image
        self._core = core
        self._server = server
        self._folder = folder
        (self._container,) = self._spec["containers"]

    def container(self) -> Container:
        """What is to be started. Raises: RigError for a volume or field that is not known here."""
        variables = self._variables()
        words = self._container.get("command") or self._image.entrypoint
        given = self._container.get("args")
        if given is None:
            given = () if self._container.get("command") else self._image.command
        rights = self._container.get("securityContext") or {}
        return Container(
            root=self._image.root,
            command=[_filled(word, variables) for word in (*words, *given)],
            environment=variables,
            user=self._user(),
            working_directory=self._container.get("workingDir") or self._image.working_directory,
            hostname=self._metadata["name"],
            read_only=bool(rights.get("readOnlyRootFilesystem")),
            capabilities="ALL" not in (rights.get("capabilities") or {}).get("drop", ()),
            no_new_privileges=rights.get("allowPrivilegeEscalation") is False,
            mounts=self._mounts(),
        )

    def probe_url(self, probe: Mapping[str, Any]) -> str:
        """Where a probe asks."""
        asked = probe["httpGet"]
        ports = {one.get("name"): one["containerPort"] for one in self._container.get("ports", ())}
        return f"http://{self._address}:{ports.get(asked['port'], asked['port'])}{asked['path']}"

    def _user(self) -> tuple[int, int]:
        both = [self._spec.get("securityContext") or {}]
        both.append(self._container.get("securityContext") or {})
        said = {name: value for one in both for name, value in one.items()}
        user = said.get("runAsUser", self._image.user[0])
        group = said.get("runAsGroup", self._image.user[1])
        if said.get("runAsNonRoot") and user == 0:
            raise RigError(f"{self._metadata['name']}: runAsNonRoot, and the image runs as root")
        return user, group

    def _variables(self) -> dict[str, str]:
        """Of the image, of the Services as links, and of the pod; later ones win."""
        host, port = self._server
        found = dict(self._image.environment)
        found |= {"HOSTNAME": self._metadata["name"], "HOME": "/"}
        found |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        found |= {"KUBERNETES_SERVICE_PORT_HTTPS": port, "KUBERNETES_PORT": f"tcp://{host}:{port}"}
        if self._spec.get("enableServiceLinks", True):
            found |= service_links(self._services())
        for one in self._container.get("env") or ():
            found[one["name"]] = self._value(one, found)
        return found

    def _value(self, variable: Mapping[str, Any], known: Mapping[str, str]) -> str:
        if "valueFrom" not in variable:
            return _filled(variable.get("value", ""), known)
        return self._field(variable["valueFrom"]["fieldRef"]["fieldPath"])

    def _field(self, path: str) -> str:
        fields = {
            "metadata.name": self._metadata["name"],
            "metadata.namespace": self._metadata["namespace"],
            "status.podIP": self._address,
        }
        return str(fields[path])

    def _services(self) -> list[Any]:
        found = self._core.list_namespaced_service(self._metadata["namespace"]).items
        return [one for one in found if one.spec.cluster_ip not in {None, "", "None"}]

    def _mounts(self) -> list[Mount]:
        volumes = {volume["name"]: volume for volume in self._spec.get("volumes") or ()}
        mounted = self._container.get("volumeMounts") or ()
        mounts = [self._volume(volumes[m["name"]], m) for m in mounted]
        hosts = self._folder / "hosts"
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text("\n".join(["127.0.0.1 localhost", *self._names(), ""]), encoding="utf-8")
        return [*mounts, Mount(target="/etc/hosts", source=hosts)]

    def _names(self) -> list[str]:
        """Names of the namespace's Services, each for one ready pod: no DNS is here, no proxy."""
        namespace = self._metadata["namespace"]
        pods = self._core.list_namespaced_pod(namespace).items
        lines = []
        for service in self._services():
            wanted = (service.spec.selector or {}).items()
            ready = [p.status.pod_ip for p in pods if _ready(p) and wanted <= _labels(p).items()]
            name = f"{service.metadata.name}.{namespace}"
            lines += [f"{address} {name} {name}.svc" for address in ready[:1]]
        return lines

    def _volume(self, volume: Mapping[str, Any], mount: Mapping[str, Any]) -> Mount:
        target = mount["mountPath"]
        if "emptyDir" in volume:
            size = _SIZE.fullmatch((volume["emptyDir"] or {}).get("sizeLimit") or "64Mi")
            if size is None:
                raise RigError(f"{volume['name']}: sizeLimit is not in Ki, Mi or Gi")
            return Mount(target=target, size_bytes=int(size[1]) * _FACTORS[size[2]])
        if "projected" not in volume:
            raise RigError(f"{volume['name']}: only emptyDir and projected volumes are mounted")
        place = self._folder / volume["name"]
        place.mkdir(parents=True)
        for source in volume["projected"]["sources"]:
            for name, text in self._projected(source).items():
                (place / name).write_text(text, encoding="utf-8")
        return Mount(target=target, source=place)

    def _projected(self, source: Mapping[str, Any]) -> dict[str, str]:
        if "serviceAccountToken" in source:
            said = source["serviceAccountToken"]
            return {said["path"]: self._token(said["expirationSeconds"])}
        namespace = self._metadata["namespace"]
        if "configMap" in source:
            said = source["configMap"]
            data = self._core.read_namespaced_config_map(said["name"], namespace).data
            return {item["path"]: data[item["key"]] for item in said["items"]}
        items = source["downwardAPI"]["items"]
        return {item["path"]: self._field(item["fieldRef"]["fieldPath"]) for item in items}

    def _token(self, expiration_seconds: int) -> str:
        """A token of the pod's ServiceAccount that is bound to the pod."""
        bound = {"kind": "Pod", "apiVersion": "v1", "name": self._metadata["name"]}
        bound["uid"] = self._metadata["uid"]
        answer = self._core.create_namespaced_service_account_token(
            self._spec["serviceAccountName"],
            self._metadata["namespace"],
            {"spec": {"expirationSeconds": expiration_seconds, "boundObjectRef": bound}},
        )
        return str(answer.status.token)


def service_links(services: Sequence[Any]) -> dict[str, str]:
    """The variables that a kubelet adds for each Service of the namespace."""
    found: dict[str, str] = {}
    for service in services:
        name = service.metadata.name.upper().replace("-", "_")
        address, first = service.spec.cluster_ip, service.spec.ports[0]
        found |= {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(first.port)}
        found[f"{name}_PORT"] = f"tcp://{address}:{first.port}"
        for port in service.spec.ports:
            prefix = f"{name}_PORT_{port.port}_TCP"
            found |= {prefix: f"tcp://{address}:{port.port}", f"{prefix}_ADDR": address}
            found |= {f"{prefix}_PORT": str(port.port), f"{prefix}_PROTO": "tcp"}
            if port.name:
                named = port.name.upper().replace("-", "_")
                found[f"{name}_SERVICE_PORT_{named}"] = str(port.port)
    return found


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with `$(NAME)` replaced; an unknown name stays as it is."""
    return _REFERENCE.sub(lambda match: variables.get(match[1], match[0]), text)


def _labels(pod: Any) -> dict[str, str]:
    return dict(pod.metadata.labels or {})


def _ready(pod: Any) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
