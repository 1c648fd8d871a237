"""The chart's README and schema say what values.yaml says, of every value."""

import json

from tests.charts.reference import CHART, readme, schema, schema_properties, undescribed, values

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def test_the_readme_is_current() -> None:
    """`make chart-docs` writes it."""
    assert (CHART / "README.md").read_text(encoding="utf-8") == readme()


def test_the_schema_is_current() -> None:
    """Its descriptions are those of values.yaml; `make chart-docs` writes them."""
    assert (CHART / "values.schema.json").read_text(encoding="utf-8") == schema()


def test_every_value_is_described() -> None:
    """By a comment of values.yaml, and so in the README."""
    assert undescribed() == []
    assert len(values()) > 60


def test_every_property_of_the_schema_is_described() -> None:
    """Also those that have no default."""
    properties = list(schema_properties(SCHEMA))
    assert len(properties) > 100
    assert [path for path, part in properties if not part.get("description")] == []


def test_a_value_without_a_comment_would_be_found() -> None:
    """Each leaf of values.yaml has a description of its own or one above it."""
    paths = {one.path for one in values()}
    assert {"image.digest", "prometheus.labels.pod", "podSecurityContext", "resources"} <= paths
    assert "podSecurityContext.runAsNonRoot" not in paths
