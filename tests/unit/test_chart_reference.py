"""The chart's README and schema say what values.yaml says, of every value."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
import typer.main
from hypothesis import example, given
from hypothesis import strategies as st
from tests.charts.reference import CHART, readme, schema, schema_properties, undescribed, values
from typer.core import TyperGroup

from servingslo.adapters.engines.channel import engine_options
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.api.runtime_profiles import runtimes_of
from servingslo.cli.main import app
from servingslo.errors import InvalidInputError
from servingslo.runtimes.gateway_catalogue import gateway_profile

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


def _envoy(pattern: str) -> object:
    return gateway_profile("envoy-gateway", pattern=pattern)


def _prometheus(url: str) -> object:
    return PrometheusConfig(url=url)


def _matched(matchers: str) -> object:
    return PrometheusConfig(url="http://a", matchers=matchers)


@pytest.mark.parametrize(
    ("path", "operator", "texts"),
    [
        ("prometheus.url", _prometheus, ("http://", "http://[::1", "https://me:secret@a:9090/x")),
        ("prometheus.matchers", _matched, ('a="b\nc"', 'a="b', "a=b")),
        ("gateway.pattern", _envoy, ("(?P<name>.+)", "(?P<namespace>.+)", "name")),
    ],
    ids=["url", "matchers", "pattern"],
)
def test_the_chart_allows_no_text_that_the_operator_refuses(
    path: str, operator: Callable[[str], object], texts: tuple[str, ...]
) -> None:
    """Helm refuses it with its path; otherwise the pods would restart for ever."""
    pattern = dict(schema_properties(SCHEMA))[path]["pattern"]
    for text in texts:
        assert not re.search(pattern, text), text
        with pytest.raises(InvalidInputError):
            operator(text)


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("prometheus.url", ("http://a", "https://a.b:9090/c@d", "http://[::1]:9090")),
        ("prometheus.matchers", ("", 'a="b", c=~"d.*",')),
        ("gateway.pattern", ("", "(?P<name>.).(?P<namespace>.)", "(?P<namespace>.).(?P<name>.)")),
    ],
    ids=["url", "matchers", "pattern"],
)
def test_the_chart_allows_what_the_operator_takes(path: str, texts: tuple[str, ...]) -> None:
    """A stricter pattern would refuse a release that runs."""
    pattern = dict(schema_properties(SCHEMA))[path]["pattern"]
    assert all(re.search(pattern, text) for text in texts)


_RANGES = [
    part["items"]["pattern"]
    for _, part in schema_properties(SCHEMA)
    if part.get("type") == "array" and "(CIDR)" in part["description"]
]


@given(st.one_of(st.ip_addresses(), st.ip_addresses(v=6)), st.integers(0, 128))
@example(ip_address("::"), 0)
def test_the_chart_allows_every_range_of_addresses(
    address: IPv4Address | IPv6Address, bits: int
) -> None:
    """In the short and the long form of IPv6."""
    found = ip_network((address, min(bits, address.max_prefixlen)), strict=False)
    for pattern in _RANGES:
        assert re.search(pattern, str(found))
        assert re.search(pattern, found.exploded)


@pytest.mark.parametrize(
    "text",
    ["10.0.0.0/99", "10.0.0.0/33", "256.0.0.0/8", "10.0/8", "010.0.0.0/8", "fd00::/129",
     "fd00::/", "fd00/8", "fd00::1::/48", "fd000::/48", ":/0", "a.b/8", "1:2:3:4:5:6:7:8:9/64"],
)  # fmt: skip
def test_the_chart_allows_no_range_that_is_none(text: str) -> None:
    """The operator would not start with it."""
    with pytest.raises(InvalidInputError):
        engine_options("--range", [text])
    assert not [pattern for pattern in _RANGES if re.search(pattern, text)]


def test_the_chart_knows_the_metrics_that_a_runtime_may_name() -> None:
    """Of a field that none has, Helm says so at its path."""
    metrics = SCHEMA["properties"]["runtimes"]["additionalProperties"]["properties"]["metrics"]
    with pytest.raises(InvalidInputError) as refused:
        runtimes_of({"vllm": {"metrics": {"runing": "a"}}})
    assert [*metrics["patternProperties"]] == [f"^({refused.value.allowed.replace(', ', '|')})$"]
    assert metrics["additionalProperties"] is False


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
