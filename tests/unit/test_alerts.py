"""The chart's alerts speak of what the operator exports, and each has a page of what to do."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.reasons import Reason

ROOT = Path(__file__).parents[2]
RULES: dict[str, Any] = yaml.safe_load(
    (ROOT / "charts/servingslo-operator/files/rules.yaml").read_text(encoding="utf-8")
)
FEATURES = ROOT / "operator" / "servingslo" / "features"
ALL = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL if "alert" in rule}
RECORDED = {rule["record"] for rule in ALL if "record" in rule}


def exported_names() -> set[str]:
    """Names of all series that the operator can export; of features those in their sources."""
    metrics = OperatorMetrics()
    sources = (path.read_text(encoding="utf-8") for path in FEATURES.rglob("*.py"))
    names = {name for text in sources for name in re.findall(r'"(servingslo_\w+)"', text)}
    for family in text_string_to_metric_families(metrics.render().decode()):
        kinds = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        names |= {family.name + end for end in kinds.get(family.type, ("",))}
    return names


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_expressions_name_what_is_exported(rule: dict[str, Any]) -> None:
    """Each metric of an expression is exported by the operator or recorded by a rule."""
    expression = re.sub(r'"[^"]*"', '""', rule["expr"])
    named = set(re.findall(r"\bservingslo[_:][\w:]+", expression))
    assert named
    assert named - exported_names() - RECORDED == set()


@pytest.mark.parametrize("alert", ALERTS)
def test_reasons_in_expressions_are_known(alert: str) -> None:
    """A reason that is renamed would silence its alert."""
    for words in re.findall(r'reason=~?"([^"]*)"', ALERTS[alert]["expr"]):
        assert set(words.split("|")) <= set(Reason)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_its_page(alert: str) -> None:
    """The page is named after the alert and says what it means and what to do."""
    assert ALERTS[alert]["annotations"]["runbook_url"] == f"RUNBOOKS/{alert}.md"
    text = (ROOT / "docs" / "runbooks" / f"{alert}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {alert}\n")
    assert {"## What it means", "## What to do"} <= set(text.splitlines())
    index = (ROOT / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
    assert f"({alert}.md)" in index


def test_each_alert_is_severe_or_a_warning() -> None:
    """Severities are those that routes know."""
    assert {rule["labels"]["severity"] for rule in ALERTS.values()} <= {"critical", "warning"}


def test_each_reason_that_holds_has_its_section() -> None:
    """The page of holds leads to each heading of a runbook about a reason, and to no other."""
    page = (ROOT / "docs/how-to/when-it-holds.md").read_text(encoding="utf-8")
    led = set(re.findall(r"\[`(\w+)`\]\(\.\./runbooks/(\w+\.md)#\w+\)", page))
    headed = {
        (word, runbook.name)
        for runbook in (ROOT / "docs" / "runbooks").glob("*.md")
        for word in re.findall(r"^### `(\w+)`$", runbook.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(headed) > 40
    assert led == headed
    assert {word for word, _ in headed} <= set(Reason)
