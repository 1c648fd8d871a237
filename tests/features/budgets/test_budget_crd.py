"""The CRD of a ServingBudget."""

from tests.unit.test_api_crd import nodes

from servingslo.api.crd import definitions
from servingslo.features.budgets.kind import KIND


def definition() -> dict:
    """The CRD."""
    (found,) = (one for one in definitions() if one["spec"]["names"]["kind"] == KIND)
    return found


def test_a_budget_is_of_the_cluster() -> None:
    """An administrator's resource: cluster-scoped, and every field of it is described."""
    spec = definition()["spec"]
    assert spec["scope"] == "Cluster"
    schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
    assert all(
        part.get("description")
        for path, part in nodes(schema)
        if path and "metadata" not in path and not path.endswith("[]")
    )
    labels = schema["properties"]["spec"]["properties"]["selector"]["properties"]["matchLabels"]
    assert labels["additionalProperties"]["type"] == "string"
    assert labels["maxProperties"] == 32
    conditions = schema["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
