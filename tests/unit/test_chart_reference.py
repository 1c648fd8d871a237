"""The chart's README and schema say what values.yaml says, of every value."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer.main
from tests.charts.reference import CHART, readme, schema, schema_properties, undescribed, values
from typer.core import TyperGroup

from servingslo.cli.main import app

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

# An argument of the operator, its value, and the value that `with` leaves out if it is 0.
ARGUMENT = re.compile(
    r"(?:\{\{- with \.Values\.([\w.]+) \}\}\n)?- (--[a-z-]+)=\{\{ ?([^}]*?) ?\}\}"
)
# Helm reads each number of a file as a float, and Go writes those from here on as 1e+06.
WRITTEN_WITH_EXPONENT = 1_000_000


def passed_on() -> Iterator[tuple[str, str, str, bool, Mapping[str, Any]]]:
    """Each argument without quotes: path, flag, template, whether 0 is left out, and schema."""
    schemas = dict(schema_properties(SCHEMA))
    for file in sorted((CHART / "templates").glob("*.tpl")):
        for within, flag, value in ARGUMENT.findall(file.read_text(encoding="utf-8")):
            path = "".join(re.findall(r"\.Values\.([\w.]+)", value)) or within
            if path in schemas:
                yield path, flag, value, bool(within), schemas[path]


def test_a_text_is_passed_on_in_quotes() -> None:
    """YAML would read `tenant #1` as `tenant`."""
    assert not [
        path
        for path, _, _, _, part in passed_on()
        if part.get("type") == "string"
        and any(re.search(part.get("pattern", ""), text) for text in ("a #b", "/a #b"))
    ]


def test_a_whole_number_is_passed_on_without_an_exponent() -> None:
    """However large it is: the operator takes 1e+06 for no integer and would not start."""
    found = list(passed_on())
    assert {"limits.maxReplicas", "limits.maxPriority", "tickSeconds"} <= {one[0] for one in found}
    assert not [
        (path, value)
        for path, _, value, _, part in found
        if part.get("type") == "integer"
        and part.get("maximum", WRITTEN_WITH_EXPONENT) >= WRITTEN_WITH_EXPONENT
        and not re.search(r"\bint(64)?\b", value)
    ]


def test_the_chart_allows_no_number_that_the_operator_refuses() -> None:
    """Helm refuses it with its path; otherwise the pods would restart for ever."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    context = group.make_context("servingslo", ["run"], resilient_parsing=True)
    options = {
        flag: (getattr(one, "min", None), getattr(one, "max", None))
        for one in group.resolve_command(context, ["run"])[1].params
        for flag in one.opts
    }
    checked = set()
    for path, flag, _, zero_is_left_out, part in passed_on():
        least, most = options[flag]
        stated = part.get("minimum", part.get("exclusiveMinimum"))
        if least is not None and not (zero_is_left_out and stated == 0):
            checked.add(path)
            assert stated >= least, path
        if most is not None:
            assert part["maximum"] <= most, path
    assert "prometheus.timeoutSeconds" in checked


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
