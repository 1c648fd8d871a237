"""`servingslo migrate`: annotations of KEDA and AIBrix, and fields that are not read."""

from typing import Any

import pytest
from tests.unit.cli_calls import CLI
from tests.unit.test_migrate import HPA, SCALED_OBJECT, annotated, changed, comments, spec_of

POD_AUTOSCALER: dict[str, Any] = {
    "apiVersion": "autoscaling.aibrix.ai/v1alpha1",
    "kind": "PodAutoscaler",
    "metadata": {"name": "llama-chat", "namespace": "inference"},
    "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "llama-chat"}, "maxReplicas": 8},
}
NO_STEP_DOWN = {"scaleDown": {"selectPolicy": "Disabled"}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param(
            changed(SCALED_OBJECT, minReplicas=1, maxReplicas=10),
            ("spec.minReplicas 1: not read", "spec.maxReplicas 10: not read"),
            id="names of the HPA in a ScaledObject",
        ),
        pytest.param(
            changed(HPA, behavior={"scaleDown": {"stabilisationWindowSeconds": 600}}),
            ("spec.behavior.scaleDown.stabilisationWindowSeconds 600: not read",),
            id="a misspelled name in a part",
        ),
        pytest.param(
            changed(
                POD_AUTOSCALER,
                schedules=[
                    {"name": "a", "startTime": "08:00", "endTime": "18:00", "minReplicas": 2},
                    {"name": "b", "startTime": "19:00", "endTime": "20:00", "days": ["Mon"]},
                ],
            ),
            ("spec.schedules[1].days ['Mon']: not read",),
            id="a misspelled name in an item of a list",
        ),
        pytest.param(
            changed(POD_AUTOSCALER, subTargetSelector={"roleName": "decode"}),
            ("spec.subTargetSelector {'roleName': 'decode'}: one role alone is not scaled",),
            id="a role of AIBrix's StormService",
        ),
    ],
)
def test_a_field_that_is_not_read_is_said(cli: CLI, document: Any, words: tuple[str, ...]) -> None:
    """The spec has none of it."""
    said = comments(cli, document)
    assert all(one in said for one in words), said
    assert "isation" not in str(spec_of(cli, document))


@pytest.mark.parametrize(
    ("source", "annotation", "behavior", "words"),
    [
        ("KEDA", {"autoscaling.keda.sh/paused-scale-in": "true"}, NO_STEP_DOWN, ""),
        ("KEDA", {"autoscaling.keda.sh/paused-scale-in": "false"}, None, "changes nothing"),
        ("KEDA", {"autoscaling.keda.sh/paused-replicas": "4"}, None, "mode Paused"),
        (
            "KEDA",
            {"autoscaling.keda.sh/paused-scale-out": ""},
            {"scaleUp": {"selectPolicy": "Disabled"}},
            "",
        ),
        (
            "AIBrix",
            {"autoscaling.aibrix.ai/scale-down-cooldown-window": "5m"},
            {"scaleDown": {"stabilizationWindowSeconds": 300}},
            "",
        ),
        (
            "AIBrix",
            {"autoscaling.aibrix.ai/scale-up-cooldown-window": "2h"},
            {"scaleUp": {"stabilizationWindowSeconds": 3600}},
            "up to 3600",
        ),
        ("AIBrix", {"autoscaling.aibrix.ai/scale-up-cooldown-window": "30"}, None, "no duration"),
        ("AIBrix", {"autoscaling.aibrix.ai/max-scale-up-rate": "3"}, None, "tunes a rule"),
        ("AIBrix", {"kpa.autoscaling.aibrix.ai/scale-down-delay": "0s"}, None, "tunes a rule"),
    ],
)
def test_an_annotation_becomes_behavior_or_is_said(
    cli: CLI, source: str, annotation: dict[str, str], behavior: Any, words: str
) -> None:
    """KEDA's pause of one direction, and AIBrix's windows."""
    autoscaler = SCALED_OBJECT if source == "KEDA" else POD_AUTOSCALER
    document = annotated(autoscaler, annotations=annotation)
    assert spec_of(cli, document).get("behavior") == behavior
    (name, value), said = *annotation.items(), comments(cli, document)
    assert f"metadata.annotations[{name}] {value}".rstrip() + ": " in said
    assert words in said


def test_a_pause_is_beside_the_stated_behavior(cli: CLI) -> None:
    """As KEDA puts it into the HPA that it makes."""
    stated = {"scaleDown": {"stabilizationWindowSeconds": 600}}
    document = changed(
        annotated(SCALED_OBJECT, annotations={"autoscaling.keda.sh/paused-scale-in": "true"}),
        advanced={"horizontalPodAutoscalerConfig": {"behavior": stated}},
    )
    wanted = {**stated["scaleDown"], **NO_STEP_DOWN["scaleDown"]}
    assert spec_of(cli, document)["behavior"] == {"scaleDown": wanted}
