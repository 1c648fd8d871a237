"""An API server with one workload whose template has an engine, which carries JSON Patches out."""

import copy
from typing import Any

from servingslo.errors import InvalidObjectError, ServingSLOError

ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
ENGINE = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.20.0",
    "args": ["--model=m", "--max-num-seqs", "8"],
}


class WorkloadServer:
    """One Deployment by default. refuses: what every patch is answered. patches: those made."""

    def __init__(
        self,
        spec: dict[str, Any],
        container: dict[str, Any] | None = None,
        *,
        name: str = "chat",
        namespace: str = "a",
    ) -> None:
        containers = [{**ENGINE, **(container or {})}]
        self.item: dict[str, Any] = {
            "metadata": {
                "name": name, "namespace": namespace, "uid": "t-1", "resourceVersion": "7",
                "generation": 1,
            },
            "spec": {**copy.deepcopy(spec), "template": {"spec": {"containers": containers}}},
            "status": {"observedGeneration": 1, "updatedReplicas": 1},
        }  # fmt: skip
        self.refuses: ServingSLOError | None = None
        self.patches = 0

    async def get(self, path: str, _query: object = None) -> dict[str, Any]:
        """The workload, or all Deployments."""
        if path.endswith(f"/{self.item['metadata']['name']}"):
            return copy.deepcopy(self.item)
        kept = [self.item] if path == "/apis/apps/v1/deployments" else []
        return {"items": copy.deepcopy(kept), "metadata": {"resourceVersion": "7"}}

    async def patch(self, _path: str, patch: list[dict[str, Any]], _kind: str, **_: object) -> None:
        """All of it, or nothing where a test fails."""
        if self.refuses is not None:
            raise self.refuses
        item = copy.deepcopy(self.item)
        for change in patch:
            parts = [p.replace("~1", "/") for p in change["path"].strip("/").split("/")]
            place: Any = item
            for part in parts[:-1]:
                place = place[int(part)] if isinstance(place, list) else place[part]
            key = int(parts[-1]) if isinstance(place, list) else parts[-1]
            if change["op"] == "test" and place[key] != change["value"]:
                raise InvalidObjectError("test failed")
            if change["op"] in {"add", "replace"}:
                place[key] = change["value"]
            if change["op"] == "remove":
                del place[key]
        item["metadata"]["resourceVersion"] += "1"
        self.item = item
        self.patches += 1

    @property
    def spec(self) -> dict[str, Any]:
        """Its spec."""
        found: dict[str, Any] = self.item["spec"]
        return found
