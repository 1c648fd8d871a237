"""Lists in the pages that repeat what code, chart or API have are the same lists."""

import ast
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from tests.unit.test_docs_map import CODE, DOCS, FENCE, PAGES, ROOT, SOURCES
from typer.core import TyperGroup

from servingslo.api.crd import custom_resource_definition
from servingslo.api.runtime_profiles import AddedRuntime
from servingslo.cli.main import app
from servingslo.controller.actuators.catalogue import ACTUATORS
from servingslo.estimation.law.trust import LawSource
from servingslo.estimation.pods.batch_limits import LimitSource
from servingslo.explain.changes import ChangeOutcome, Knob
from servingslo.policy.inputs import Actuation, AdmissionMode, LimitKind
from servingslo.policy.knobs.protocol import KNOB
from servingslo.policy.rules.needs import BOUNDED_CEILING, UTILIZATION_CEILING
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.gateway_catalogue import GATEWAYS, NO_GATEWAY
from servingslo_lab.cli.demo.scenarios import DemoEngine, Scenario
from servingslo_lab.cli.top import SortBy

CHART = ROOT / "charts" / "servingslo-operator"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
# What a page says of a right's condition, for the condition in the chart.
CONDITIONS = {
    "": "every installation",
    'ne (toString .Values.rbac.create) "false"': "every installation",
    "and .Values.batching.apply.enabled (not .Values.batching.apply.serversOnly)": (
        "`batching.apply.enabled`, unless `serversOnly`"
    ),
    "and .Values.configMaps.read.enabled (not .Values.configMaps.read.namespaces)": (
        "`configMaps.read.enabled`"
    ),
    ".Values.configMaps.read.namespaces": "`configMaps.read.enabled`",
    ".Values.extraScalableKinds": "`extraScalableKinds`",
    'has "BackendTrafficPolicy" .Values.admission.kinds': (
        "`admission.kinds` with BackendTrafficPolicy"
    ),
    'has "DestinationRule" .Values.admission.kinds': "`admission.kinds` with DestinationRule",
    'and (or (has "BackendTrafficPolicy" .Values.admission.kinds) '
    '(has "DestinationRule" .Values.admission.kinds)) (not (contains "[services]" $rights))': (
        "`admission.kinds` with either of these"
    ),
    'eq .Values.gateway.profile "envoy-gateway"': "`gateway.profile: envoy-gateway`",
}
Table = list[list[str]]


def read(name: str) -> str:
    """A page of the documentation."""
    return (DOCS / name).read_text(encoding="utf-8")


def table(name: str, *head: str) -> Table:
    """The rows of the one table of a page whose head begins so."""
    found: list[Table] = []
    for block in re.findall(r"(?:^\|.*\n)+", read(name), re.MULTILINE):
        rows = [
            [cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.split("\n")
        ]
        if tuple(rows[0][: len(head)]) == head:
            found.append([row for row in rows[2:] if row != [""]])
    (rows,) = found
    return rows


def words(cells: Iterator[str] | list[str]) -> set[str]:
    """Everything in backquotes."""
    return {word for cell in cells for word in CODE.findall(cell)}


def condition(text: str) -> str:
    """What a page says of a condition of the chart."""
    switch = re.fullmatch(r"\(?\.Values\.(\w+)\)?\.(enabled|maxReplicas|ranges)", text)
    return CONDITIONS[text] if switch is None else f"`{switch[1]}.{switch[2]}`"


def granted() -> set[tuple[str, str, str]]:
    """What the chart grants to the operator, and when: condition, resource, verb."""
    shared = (CHART / "templates" / "_rules.tpl").read_text(encoding="utf-8")
    more = (
        (CHART / "templates" / one).read_text("utf-8") for one in ("rbac.yaml", "_features.tpl")
    )
    lines = [*shared.partition("-}}\n{{- define")[2].splitlines()[1:-1]]
    lines += [line for text in more for line in text.splitlines()]
    found, conditions, resources, of_tenants = set(), [""], [], False
    for line in map(str.strip, lines):
        begins = re.match(r"\{\{- (?:if|range|with|define) (.+) }}", line)
        if begins:
            conditions.append(begins[1])
        elif line.startswith("{{- end"):
            conditions.pop()
        elif line == "---" or "aggregate-to-" in line:
            of_tenants = line != "---"
        elif of_tenants:
            continue
        elif "resources:" in line:
            resources = [one.strip() for one in line.partition("[")[2].rstrip("]").split(", ")]
        elif "verbs:" in line:
            verbs = line.partition("[")[2].rstrip("]").split(", ")
            when = condition(conditions[-1]) if conditions else ""
            found |= {(when, one, verb) for one in resources for verb in verbs}
    return found


def test_the_page_tells_every_right_that_the_chart_grants_and_no_other() -> None:
    """By condition, resource and verb."""
    told = set()
    for when, resources, verbs in table("how-to/install.md", "with", "resources", "verbs"):
        names = words([resources]) - {"/scale"} or {resources}
        # Of Leases the page says which verbs go by name alone.
        each = re.findall(r"\b(?:get|list|watch|create|update|patch)\b", verbs)
        told |= {(when, name, verb) for name in names for verb in each}
    kinds = "`extraScalableKinds`"
    written = {
        (
            when,
            "the listed kinds"
            if one == "{{ .resource | quote }}"
            else "`/scale` of the listed kinds"
            if "/scale" in one and "printf" in one
            else one,
            verb,
        )
        for when, one, verb in granted()
    }
    assert len(written) > 30
    assert {one for one in written if one[0] == kinds}
    assert told == written


def test_every_knob_and_outcome_of_changes_is_told() -> None:
    """On the page of metrics, and no other; each actuator has one knob."""
    knobs = {*Knob, *(one.name for one in KNOB.parts())}
    assert words([row[0] for row in table("reference/metrics.md", "`knob`")]) == knobs
    assert len(ACTUATORS) == len(knobs)
    (line,) = re.findall(r"^`outcome` is ([^.]*)\.", read("reference/metrics.md"), re.MULTILINE)
    assert words([line]) == set(ChangeOutcome)
    shown = re.findall(r"\bknob=([\w-]+)", read("reference/reasons.md"))
    assert set(shown) <= knobs


def test_every_part_that_can_fail_is_told() -> None:
    """Of `servingslo_failures_total`."""
    counted = {
        node.args[0].value
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "count_failure"
        and isinstance(node.args[0], ast.Constant)
    }
    (row,) = re.findall(
        r"^\| `servingslo_failures_total` .*: (.*) \|$", read("reference/metrics.md"), re.MULTILINE
    )
    assert set(row.split(", ")) == counted


def test_every_source_of_limits_is_told() -> None:
    """In the page's order, which is the code's."""
    rows = table("how-to/batch-limits.md", "source")
    assert [CODE.findall(row[1])[0] for row in rows] == list(LimitSource)


def test_every_source_of_a_law_is_told() -> None:
    """On the page of stated laws, and in the API's own text."""
    rows = table("how-to/size-before-deploying.md", "the law that is planned with")
    assert words([row[1] for row in rows]) == set(LawSource)
    assert named(model_text("source"), LawSource) == set(LawSource)


def model_text(field: str) -> str:
    """What the API says of a field of `status.model`."""
    model = SCHEMA["properties"]["status"]["properties"]["model"]["properties"]
    text: str = model[field]["description"]
    return text


def named(text: str, known: Any) -> set[str]:
    """Which of these values a text names as words."""
    return {one for one in known if re.search(rf"(?<![\w-]){one}(?![\w-])", text)}


@pytest.mark.parametrize(
    ("page", "head", "known"),
    [
        pytest.param("how-to/keda.md", "`actuation`", set(Actuation), id="actuation"),
        pytest.param(
            "how-to/admission.md", "`spec.admission.mode`", set(AdmissionMode), id="admission"
        ),
        pytest.param(
            "how-to/prometheus.md",
            "`gateway.profile`",
            {NO_GATEWAY, *(one.name for one in GATEWAYS)},
            id="gateways",
        ),
    ],
)
def test_a_table_of_values_has_those_of_the_code(page: str, head: str, known: set[str]) -> None:
    """Each has its row, and there is no other."""
    assert words([row[0] for row in table(page, head)]) == known


def test_every_metric_that_is_read_of_a_gateway_is_told() -> None:
    """In the row of its profile; a name may be shortened by the one before."""
    rows = {
        row[0].strip("`").split("`")[0]: row[1]
        for row in table("how-to/prometheus.md", "`gateway.profile`")
    }
    for profile in GATEWAYS:
        names = {name for metric in profile.metrics for name in metric.names}
        told = {word for word in words([rows[profile.name]]) if "_" in word}
        # The queue and the errors of the endpoint picker are told in words.
        shown = {name for name in names if any(name.endswith(word) for word in told)}
        assert shown, profile.name
        assert all(
            any(name.endswith(word) for name in (*names, *profile.known_by)) for word in told
        )


def test_every_metric_that_is_read_of_an_engine_is_told() -> None:
    """In the engine's column of the page of needed metrics: the newest name, and no other."""
    head = ("for", "vLLM", "SGLang", "TensorRT-LLM", "Triton")
    columns = dict(zip(("vllm", "sglang", "trtllm", "triton"), range(1, 5), strict=True))
    rows = table("how-to/metrics-needed.md", *head)
    assert {profile.name for profile in CATALOGUE} == set(columns)
    for profile in CATALOGUE:
        read_names = {metric.names[0] for metric in profile.metrics}
        info = (profile.capacity, profile.adapters)
        read_names |= {one.metric for one in info if one is not None}
        assert words([row[columns[profile.name]] for row in rows]) == read_names, profile.name


VLLM_PAGE = ROOT / "tests" / "golden" / "data" / "vllm_0.32.0_metrics.txt"


@pytest.mark.parametrize(
    ("objective", "series"),
    [
        pytest.param("`ttft`", "time_to_first_token_seconds", id="ttft"),
        pytest.param("`tpot`", "request_time_per_output_token_seconds", id="tpot"),
        pytest.param("`latency`, `queueTime`", "e2e_request_latency_seconds", id="latency"),
        pytest.param("`latency`, `queueTime`", "request_queue_time_seconds", id="queue"),
    ],
)
def test_the_edges_that_a_threshold_may_take_are_those_of_a_recorded_engine(
    objective: str, series: str
) -> None:
    """Of vLLM: neighbours of its own histogram, none left out between two."""
    page = VLLM_PAGE.read_text(encoding="utf-8")
    edges = [
        float(edge)
        for edge in re.findall(rf'^vllm:{series}_bucket{{.*le="([\d.]+)"', page, re.MULTILINE)
    ]
    (told,) = (
        [float(word) for word in row[2].split(", ")]
        for row in table("how-to/thresholds.md", "engine", "objective")
        if row[:2] == ["vLLM", objective]
    )
    assert len(told) > 5
    begin = edges.index(told[0])
    assert edges[begin : begin + len(told)] == told


def test_every_knob_is_in_the_glossary() -> None:
    """By its name in log lines and metrics."""
    (row,) = re.findall(r"^\| knob \| (.*) \| `Knob` \|$", read("glossary.md"), re.MULTILINE)
    assert words([row]) == set(Knob)


def test_every_scenario_of_the_demo_is_told() -> None:
    """In the table of the rig's page, with each engine; the surge is the demo without one."""
    rows = table("how-to/test-rig.md", "`make demo`")
    told = {re.findall(r"(?:SCENARIO|ENGINE)=([\w-]+)", row[0])[0] for row in rows}
    shown = {*Scenario, *DemoEngine} - {Scenario.SURGE, DemoEngine.SIMULATED}
    assert told == {one.value for one in shown}


def test_ceilings_of_utilization_are_those_of_the_code() -> None:
    """On the page of how it decides, and in the note."""
    plain, bounded = UTILIZATION_CEILING, BOUNDED_CEILING
    (said,) = re.findall(r"`utilization.target`, by default (.*) while", read("how-it-decides.md"))
    assert said == f"{plain:.0%}, or {bounded:.0%}".replace("%", " %")
    note = read("designs/0004-planner.md")
    assert f"{plain:.2f}, or {bounded:.2f} if a bound in flight is enforced" in note


def test_every_kind_of_object_for_a_bound_is_told() -> None:
    """In the API, the chart's schema and the page."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    kinds = schema["properties"]["admission"]["properties"]["kinds"]["items"]["enum"]
    assert set(kinds) == set(LimitKind)
    page = read("how-to/admission.md")
    assert [kind for kind in LimitKind if kind not in page] == []


def test_every_field_of_an_added_runtime_is_told() -> None:
    """By its name in the values."""
    page = read("how-to/other-engines.md")
    fields = {one.alias or name for name, one in AddedRuntime.model_fields.items()}
    assert [name for name in fields if name not in page] == []


def test_every_command_is_told() -> None:
    """And no other."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    told = [CODE.findall(row[0])[0] for row in table("reference/cli.md", "command")]
    assert sorted(told) == sorted(f"servingslo {name}" for name in group.commands)


def test_every_command_that_asks_prometheus_is_told() -> None:
    """Where its credentials are, and no other."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    context = group.make_context("servingslo", ["run"], resilient_parsing=True)
    (text,) = re.findall(r"^(.*) take these flags", read("how-to/prometheus.md"), re.MULTILINE)
    asking = {
        name
        for name in group.commands
        for one in group.resolve_command(context, [name])[1].params
        if "--prometheus-bearer-token-file" in one.opts
    }
    assert {one.split()[0] for one in CODE.findall(text)} == asking


def test_every_order_of_top_is_told() -> None:
    """But for the default one, names."""
    (text,) = re.findall(r"`--sort slo` [^.]*\.", read("how-to/watch.md"))
    assert named(text, SortBy) == set(SortBy) - {SortBy.NAME}


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of the chart with its path, objects too."""
    for name, value in values.items():
        yield f"{above}{name}", value
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")


def defaults() -> list[tuple[str, str]]:
    """Values and defaults that pages tell, of one value each."""
    rows = [(row[0], row[1]) for row in table("how-to/install.md", "value", "default")]
    rows += [(row[0], row[2]) for row in table("how-to/high-availability.md", "value", "flag")]
    return [
        (CODE.findall(value)[0], default.strip("`"))
        for value, default in rows
        if len(CODE.findall(value)) == 1
        and re.fullmatch(r"`?(\[\]|\{\}|[\d.]+|true|false|Auto|text)`?", default)
    ]


@pytest.mark.parametrize(("value", "default"), defaults())
def test_a_default_in_the_pages_is_the_chart_s(value: str, default: str) -> None:
    """Of every value whose default a table tells."""
    assert dict(flat(VALUES))[value] == yaml.safe_load(default)


def test_values_that_the_installation_lists_can_be_set_as_they_are_written() -> None:
    """Each is one value, or ends in `*` for all of an object."""
    listed = words([row[0] for row in table("how-to/install.md", "value", "default")])
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    allowed = {
        f"{path}.*" if "properties" in part else path for path, part in schema_parts(schema, "")
    }
    assert len(listed) > 30
    assert listed - allowed == set()


def schema_parts(schema: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Each value of the chart by its path, with its part of the schema."""
    for name, part in schema.get("properties", {}).items():
        yield f"{above}{name}", part
        yield from schema_parts(part, f"{above}{name}.")


def fields(schema: Mapping[str, Any], above: str) -> Iterator[str]:
    """Paths of the API below a field."""
    schema = schema.get("items", schema)
    for name, part in schema.get("properties", {}).items():
        yield f"{above}{name}"
        yield from fields(part, f"{above}{name}.")


def known_paths() -> set[str]:
    """Of the API, with `spec.` and without, and of the chart."""
    spec, status = (SCHEMA["properties"][part] for part in ("spec", "status"))
    runtimes = {f"runtimes.{name}" for name in ("triton", "vllm", "my-engine")}
    return {
        *fields(spec, "spec."),
        *fields(spec, ""),
        *fields(status, "status."),
        *fields(status, ""),
        *(path for path, _ in flat(VALUES)),
        *runtimes,
    }


# Of other objects, or of files, that pages name by a path of the same form.
OF_OTHERS = re.compile(
    r"^(spec\.(scaleTargetRef|modelID|replicas|template|selector|circuitBreaker|trafficPolicy|routingType|mergeType)\b.*"
    r"|status\.(replicas|ancestors|phase|selector)\b.*|resources\.limits.*|runtimes\..*"
    r"|.*\.(md|py|yaml|json|jsonl|csv|html|txt|svc|dev|io|k8s\.io|go|lock|sum|pbtxt|tpl|crt|key)$)"
)
PATH = re.compile(r"^[a-z][A-Za-z]*(?:\.[a-z][A-Za-z]*)+$")


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if page.parent.name not in {"lab", "designs"} and page.name != "CHANGELOG.md"
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_fields_and_values_that_a_page_names_exist(page: Path) -> None:
    """Every path in backquotes that begins as the API or the chart does."""
    known = known_paths()
    first = {path.partition(".")[0] for path in known}
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    named = {word.partition(":")[0].partition("[")[0] for word in CODE.findall(text)}
    wrong = [
        word
        for word in sorted(named)
        if PATH.match(word)
        and word.partition(".")[0] in first
        and word not in known
        and not OF_OTHERS.match(word)
    ]
    assert wrong == []


def test_the_numbers_of_judgement_are_those_of_the_code() -> None:
    """Each row of the page names a module and a constant; the value is the constant's."""
    page = read("reference/numbers.md")
    row = r"^\|[^|]+\| ([\d.]+) \|[^|]+\| `([\w/]+)\.py` `(\w+)` \|$"
    rows = re.findall(row, page, re.MULTILINE)
    assert len(rows) == page.count(".py` `")
    code = {
        (module, name): float(
            getattr(import_module(f"servingslo.{module.replace('/', '.')}"), name)
        )
        for _, module, name in rows
    }
    assert {(module, name): float(value) for value, module, name in rows} == code
