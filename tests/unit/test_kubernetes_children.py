"""Which workload a target of KServe stands for: by its owner and its labels."""

from typing import Any

import pytest

from servingslo.adapters.kubernetes import children as children_module
from servingslo.adapters.kubernetes.api.discovery import ApiResource
from servingslo.adapters.kubernetes.children import Children
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.pods.parents import PartOf, part_of, part_wanted
from servingslo.adapters.kubernetes.pods.records import deployment_record
from servingslo.errors import ClusterError, NotFoundError, PermissionDeniedError
from servingslo.policy.inputs import ScaleTarget

KSERVE = "serving.kserve.io/v1alpha2"
SERVICE = ScaleTarget(api_version=KSERVE, kind="LLMInferenceService", name="llama")
PREFILL = ScaleTarget(api_version=KSERVE, kind="LLMInferenceService", name="llama", part="prefill")
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/n/leaderworkersets"


def _child(
    name: str,
    component: str,
    *,
    owner: str = "LLMInferenceService",
    api_version: str = KSERVE,
    controller: bool = True,
) -> dict[str, Any]:
    reference = {
        "apiVersion": api_version,
        "kind": owner,
        "name": "llama",
        "uid": "u",
        "controller": controller,
    }
    labels = {"app.kubernetes.io/component": component, "component": component}
    return {
        "metadata": {
            "namespace": "n",
            "name": name,
            "uid": name,
            "labels": labels,
            "ownerReferences": [reference],
        },
        "spec": {},
    }


MAIN = _child("llama-kserve", "llminferenceservice-workload")


@pytest.mark.parametrize(
    ("item", "part"),
    [
        pytest.param(MAIN, "", id="main"),
        pytest.param(_child("x", "llminferenceservice-workload-prefill"), "prefill", id="prefill"),
        pytest.param(_child("x", "llminferenceservice-workload-worker"), "", id="groups"),
        pytest.param(
            _child("x", "llminferenceservice-workload-worker-prefill"), "prefill", id="its-groups"
        ),
        pytest.param(_child("x", "llminferenceservice-router-scheduler"), None, id="picker"),
        pytest.param(_child("x", "predictor", owner="InferenceService"), "", id="predictor"),
        pytest.param(_child("x", "transformer", owner="InferenceService"), None, id="transformer"),
        pytest.param(
            _child("x", "llminferenceservice-workload", api_version="serving.kserve.io.evil/v1"),
            None,
            id="other-group",
        ),
        pytest.param(
            _child("x", "llminferenceservice-workload", controller=False), None, id="no-controller"
        ),
    ],
)
def test_a_part_is_known_by_its_controller_and_its_label(
    item: dict[str, Any], part: str | None
) -> None:
    """The picker and a transformer are no engines, and a label alone makes no part."""
    found = part_of(item["metadata"])
    assert (None if found is None else found.part) == part


def test_kinds_of_other_groups_stand_for_themselves() -> None:
    """Another project has an InferenceService too."""
    other = ScaleTarget(api_version="llmkube.dev/v1alpha1", kind="InferenceService", name="llama")
    assert part_wanted(other) is None
    assert part_wanted(PREFILL) == PartOf(kind="LLMInferenceService", name="llama", part="prefill")


class _Api:
    """An API server with these LeaderWorkerSets, which counts how often it is asked."""

    def __init__(self, *sets: dict[str, Any], error: ClusterError | None = None) -> None:
        self.sets, self.error, self.asked = list(sets), error, 0

    async def get(self, path: str, _query: object = None) -> dict[str, Any]:
        assert path == SETS
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {"items": self.sets, "metadata": {}}


class _Kinds:
    """A discovery that knows LeaderWorkerSets, or does not."""

    def __init__(self, *, known: bool = True) -> None:
        self.known = known

    async def resolve(self, api_version: str, kind: str) -> ApiResource:
        if not self.known:
            raise NotFoundError(kind)
        return ApiResource(api_version=api_version, plural="leaderworkersets", scalable=True)


def _children(api: Any, *deployments: dict[str, Any], known: bool = True) -> Children:
    inventory = Inventory(api)
    for one in deployments:
        inventory._deployment_changed(None, deployment_record(one, None))
    kinds: Any = _Kinds(known=known)
    return Children(api, kinds, inventory)


async def test_a_deployment_is_found_among_the_watched_ones() -> None:
    """Without a request; and before it was looked for, a target stands for itself."""
    api = _Api()
    prefill = _child("llama-kserve-prefill", "llminferenceservice-workload-prefill")
    children = _children(api, MAIN, prefill)
    assert children.stands_for("n", SERVICE) == SERVICE
    found = await children.find("n", SERVICE)
    assert (found.kind, found.name) == ("Deployment", "llama-kserve")
    assert (await children.find("n", PREFILL)).name == "llama-kserve-prefill"
    assert children.stands_for("n", SERVICE) == found
    assert api.asked == 0
    plain = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama-kserve")
    assert await children.find("n", plain) == plain


async def test_groups_are_looked_for_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeaderWorkerSets are not watched; one that is gone is noticed then."""
    now = [1000.0]
    monkeypatch.setattr(children_module.SystemClock, "elapsed_seconds", lambda: now[0])
    api = _Api(_child("llama-kserve-mn", "llminferenceservice-workload-worker"))
    children = _children(api)
    for _ in range(3):
        assert (await children.find("n", SERVICE)).kind == "LeaderWorkerSet"
    assert api.asked == 1
    api.sets.clear()
    now[0] += 60.0
    with pytest.raises(NotFoundError, match="no Deployment or LeaderWorkerSet"):
        await children.find("n", SERVICE)


async def test_why_there_is_no_child_is_told() -> None:
    """None yet; several; no right to look for one, with the value that grants it."""
    with pytest.raises(NotFoundError, match="LLMInferenceService/llama"):
        await _children(_Api(), known=False).find("n", SERVICE)
    twice = _child("llama-kserve-worker", "llminferenceservice-workload")
    with pytest.raises(ClusterError, match="llama-kserve, llama-kserve-worker"):
        await _children(_Api(), MAIN, twice).find("n", SERVICE)
    denied = _Api(error=PermissionDeniedError("forbidden"))
    with pytest.raises(PermissionDeniedError, match="extraScalableKinds"):
        await _children(denied).find("n", SERVICE)


async def test_targets_that_are_not_asked_for_any_more_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ServingSLO may name another service with each edit; a Deployment may leave its part."""
    now = [0.0]
    monkeypatch.setattr(children_module.SystemClock, "elapsed_seconds", lambda: now[0])
    inventory_api = _Api()
    children = _children(inventory_api, MAIN)
    for number in range(50):
        now[0] += 60.0
        target = ScaleTarget(
            api_version=f"serving.kserve.io/v{number}", kind=SERVICE.kind, name="llama"
        )
        await children.find("n", target)
    assert len(children._known) <= 11
    record = deployment_record(MAIN, None)
    children._inventory._deployment_changed(record, None)
    assert not children._inventory._parts
