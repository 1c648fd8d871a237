"""Find the resource of a kind, and whether it can be scaled, by the API server's discovery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.api.paths import ApiPath, api_path
from servingslo.errors import NoScaleSubresourceError, NotFoundError

# Installing an operator adds kinds, and removing it deletes them; so answers expire.
_KNOWN_SECONDS = 300.0
_UNKNOWN_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResource:
    """One kind of one apiVersion. plural: its name in paths."""

    api_version: str
    plural: str
    scalable: bool

    def path(self, namespace: str, name: str, subresource: str | None = None) -> ApiPath:
        """The path of one object, or of its subresource. Raises: InvalidNameError."""
        return api_path(
            self.api_version, self.plural, namespace=namespace, name=name, subresource=subresource
        )

    def collection(self, namespace: str) -> ApiPath:
        """The path of all objects of a namespace."""
        return api_path(self.api_version, self.plural, namespace=namespace)


class Discovery:
    """Kinds of the cluster, cached for a while."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[str, tuple[float, Mapping[str, ApiResource]]] = {}

    async def resolve(self, api_version: str, kind: str) -> ApiResource:
        """The resource of a kind.

        Raises: NotFoundError if the cluster has no such kind; ClusterError if it does not answer.
        """
        kinds = await self._kinds(api_version)
        if kind not in kinds:
            raise NotFoundError(f"the cluster has no kind {kind} in {api_version}")
        return kinds[kind]

    async def resolve_scalable(self, api_version: str, kind: str) -> ApiResource:
        """The resource of a kind that has /scale.

        Raises: NoScaleSubresourceError when it has none; otherwise as `resolve`.
        """
        resource = await self.resolve(api_version, kind)
        if not resource.scalable:
            raise NoScaleSubresourceError(f"{kind} in {api_version} has no /scale subresource")
        return resource

    async def _kinds(self, api_version: str) -> Mapping[str, ApiResource]:
        now = SystemClock.elapsed_seconds()
        known = self._known.get(api_version)
        if known is not None and now < known[0]:
            return known[1]
        try:
            answer = await self._client.get(api_path(api_version))
            kinds = _kinds_of(api_version, answer.get("resources") or ())
        except NotFoundError:
            kinds = {}
        until = now + (_KNOWN_SECONDS if kinds else _UNKNOWN_SECONDS)
        recent = {version: one for version, one in self._known.items() if now < one[0]}
        self._known = {**recent, api_version: (until, kinds)}
        return kinds


def _kinds_of(
    api_version: str, resources: Sequence[Mapping[str, Any]]
) -> Mapping[str, ApiResource]:
    scalable = {
        entry["name"].removesuffix("/scale")
        for entry in resources
        if entry["name"].endswith("/scale")
    }
    return {
        entry["kind"]: ApiResource(
            api_version=api_version, plural=entry["name"], scalable=entry["name"] in scalable
        )
        for entry in resources
        if "/" not in entry["name"]
    }
