"""The Grafana dashboard of the chart is the generated one and asks for what is exported."""

import json
import re

import pytest
from tests.dashboards.servingslo import PATH, ROWS, queries, rendered
from tests.unit.test_alerts import exported_names


def test_the_chart_s_dashboard_is_the_generated_one() -> None:
    """`make dashboard` writes it; nothing is edited by hand."""
    assert PATH.read_text(encoding="utf-8") == rendered(), "run `make dashboard`"


@pytest.mark.parametrize(("panel", "expression"), [*queries()])
def test_panels_ask_for_what_is_exported(panel: str, expression: str) -> None:
    """Each metric of a query is one that the operator can export."""
    named = set(re.findall(r"\bservingslo_\w+", expression))
    assert named
    assert named - exported_names() == set()


def test_each_question_has_a_row_and_each_panel_a_number() -> None:
    """Rows and panels stand in the order of the questions, none twice."""
    panels = json.loads(PATH.read_text(encoding="utf-8"))["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == list(ROWS)
    assert len({panel["id"] for panel in panels}) == len(panels)
