"""Whose count a ScaledObject is given: by its own namespace and its target."""

import pytest

from servingslo.adapters.kubernetes.pods.records import ScalerRecord
from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.controller.registry import Registry
from servingslo.errors import MetricsUnavailableError, NotFoundError
from servingslo.features.keda_scaler.counts import ScaledObjectCounts
from servingslo.policy.inputs import ScaleTarget

COUNTS = {("team", "slo"): 5, ("team", "younger"): None, ("other", "slo"): 9}


def _slo(namespace, name, *, target="chat", actuation="Keda"):
    return ResourceRecord(
        ref=ResourceRef(namespace=namespace, name=name, uid=f"{namespace}/{name}"),
        generation=1,
        created_seconds=0.0,
        deleting=False,
        spec={
            "targetRef": {"kind": "Deployment", "name": target},
            "actuation": actuation,
            "objectives": [{"metric": "ttft", "percentile": 99, "threshold": "1s"}],
            "replicas": {"max": 9},
        },
        status={},
    )


def _counts(*slos):
    registry = Registry()
    for slo in slos:
        registry.upsert(slo)

    def scaled_object(namespace, name):
        if name == "unknown":
            return None
        return ScalerRecord(
            namespace=namespace,
            name=name,
            group="apps",
            target_kind="Deployment",
            target_name="chat",
        )

    return ScaledObjectCounts(
        scaled_object=scaled_object,
        registry=registry,
        handed_over=lambda namespace, name, _pool: COUNTS.get((namespace, name)),
    )


def test_the_count_is_of_the_same_target_in_the_same_namespace():
    """Names of the two need not agree; a namesake elsewhere is another workload."""
    counts = _counts(_slo("team", "slo"), _slo("other", "slo"))
    assert counts.count("team", "by-keda") == 5
    assert counts.count("other", "by-keda") == 9


def test_of_two_with_one_target_the_one_that_owns_it_gives():
    """The younger one gives none, so the older one's is told."""
    counts = _counts(_slo("team", "younger"), _slo("team", "slo"))
    assert counts.count("team", "by-keda") == 5


def test_a_target_stands_for_the_workload_that_was_found_for_it():
    """KServe's ScaledObject names the child, and the ServingSLO the service that made it."""
    parent = _slo("team", "slo", target="llama")
    parent.spec["targetRef"] |= {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
    }
    counts = _counts(parent)
    with pytest.raises(NotFoundError):
        counts.count("team", "by-keda")
    child = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
    counts.registry.stands_for = lambda _namespace, target: (
        child if target.name == "llama" else target
    )
    assert counts.count("team", "by-keda") == 5
    counts.registry.upsert(_slo("team", "younger"))
    (conflict,) = counts.registry.conflicts().values()
    assert "LLMInferenceService/llama" in conflict.detail or "Deployment/chat" in conflict.detail


@pytest.mark.parametrize(
    ("slos", "asked", "error"),
    [
        pytest.param([_slo("team", "slo")], "unknown", NotFoundError, id="no-scaled-object"),
        pytest.param([_slo("other", "slo")], "chat", NotFoundError, id="other-namespace"),
        pytest.param([_slo("team", "slo", target="x")], "chat", NotFoundError, id="other-target"),
        pytest.param(
            [_slo("team", "slo", actuation="Metric")], "chat", NotFoundError, id="not-by-keda"
        ),
        pytest.param([_slo("team", "younger")], "chat", MetricsUnavailableError, id="no-count"),
    ],
)
def test_nothing_else_is_given(slos, asked, error):
    """Each with its error, which KEDA's fallback answers to."""
    with pytest.raises(error):
        _counts(*slos).count("team", asked)
