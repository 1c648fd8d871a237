"""What SECURITY.md says of permissions is what the chart grants."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
CHART = ROOT / "charts" / "servingslo-operator"
RULES = (CHART / "templates" / "_rules.tpl").read_text(encoding="utf-8")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
# What these are called where people read of them.
SPOKEN = {
    "servingslos/status": "/status` of ServingSLOs",
    "deployments/scale": "/scale` of Deployments",
    "statefulsets/scale": "StatefulSets, and of `extraScalableKinds",
    "horizontalpodautoscalers": "HorizontalPodAutoscalers",
    "backendtrafficpolicies": "BackendTrafficPolicies",
    "destinationrules": "DestinationRules",
    "configmaps": "ConfigMaps",
}


def resources() -> list[str]:
    """Every resource that a rule of the chart names, whatever values turn it on."""
    lists = re.findall(r"resources: \[([^{}\]]+)\]", RULES)
    return sorted({name.strip() for one in lists for name in one.split(",")})


@pytest.mark.parametrize("resource", resources())
def test_every_resource_of_the_rules_is_named(resource: str) -> None:
    """A right that the chart grants is told, with what it is for."""
    spoken = SPOKEN.get(resource, resource)
    assert spoken.lower() in PAGE.lower(), resource


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"^\| `([a-zA-Z.]+)` \|", PAGE, re.MULTILINE)))
)
def test_every_value_that_adds_a_right_is_off_by_default(name: str) -> None:
    """The page says that the administrator turns it on."""
    value = VALUES
    for part in name.split("."):
        value = value[part]
    assert value in (False, [])


def test_what_is_never_granted_is_never_granted() -> None:
    """Neither Secrets nor nodes nor exec, and nothing is deleted."""
    assert not {"secrets", "nodes", "pods/exec"} & set(resources())
    verbs = {
        verb.strip() for one in re.findall(r"verbs: \[([^\]]+)\]", RULES) for verb in one.split(",")
    }
    assert verbs <= {"get", "list", "watch", "create", "patch", "update"}
    created = re.findall(r"resources: \[([^\]]+)\]\s+(?:#.*\s+)*verbs: \[create", RULES)
    assert sorted(created) == ["events"]
    updated = re.findall(r"resources: (.*)\n.*\n.*verbs: \[.*update\]", RULES)
    assert updated == ["[leases]"]
    assert re.findall(r"resourceNames: (.*)", RULES) == ["[servingslo-acting-operator]"]


def test_the_process_runs_as_the_page_says() -> None:
    """File system, capabilities, profile, and the image's own user, since the chart names none."""
    assert VALUES["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert VALUES["podSecurityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "USER 65532:65532" in (CHART.parents[1] / "Dockerfile").read_text(encoding="utf-8")
    assert "user 65532" in PAGE
