"""The pydantic models refuse what the API server refuses, and say path, value and allowed range."""

import re
from collections import Counter

import pytest
from tests.unit import api_cases
from tests.unit.api_cases import BadSpec, GoodSpec

from servingslo.api.convert import parse_spec
from servingslo.api.crd import custom_resource_definition
from servingslo.errors import InvalidInputError, InvalidSpecError

# A string of one of these forms is refused in these words whatever its type: no number is one.
FORMS = ("a duration", "Measured, or a duration", "a quantity")
REFUSED = [
    *api_cases.bad_values(),
    *(
        one
        for one in api_cases.mistyped_values()
        if not api_cases.TABLE["fields"][one.path].get("allowed", "").startswith(FORMS)
    ),
    *api_cases.missing_fields(),
    *api_cases.broken_rules(),
]


def spec_schema():
    """The schema of spec in the generated CRD."""
    version = custom_resource_definition()["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def field_paths(schema, path=""):
    """All field paths of a schema, with [] for list items."""
    for name, part in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below
        yield from field_paths(part, below)
    if "items" in schema:
        if schema["items"].get("type") == "object":
            yield f"{path}[]"
        yield from field_paths(schema["items"], f"{path}[]")


def cross_field_rules(schema, path=""):
    """(path that the rule blames) of every rule that looks at more than one field."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if schema["type"] in {"object", "array"}:
            yield f"{path}{rule.get('fieldPath', '')}".removeprefix(".")
    for name, part in schema.get("properties", {}).items():
        yield from cross_field_rules(part, f"{path}.{name}")
    if "items" in schema:
        yield from cross_field_rules(schema["items"], f"{path}[]")


@pytest.mark.parametrize("good", [pytest.param(c, id=c.id) for c in api_cases.good_specs()])
def test_a_good_value_is_accepted(good: GoodSpec) -> None:
    """Each good twin passes the models."""
    parse_spec(good.spec)


@pytest.mark.parametrize("bad", [pytest.param(c, id=c.id) for c in REFUSED])
def test_a_bad_value_is_refused_with_path_value_and_range(bad: BadSpec) -> None:
    """Each bad value is refused with its path, itself and what is allowed in the message."""
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec(bad.spec)
    message = str(refusal.value)
    # Of a list, CEL names the item in its message alone.
    assert refusal.value.field.removeprefix(f"spec.{bad.path}")[:1] in {"", "["}
    assert [word for word in (f"spec.{bad.path}", *bad.words) if word not in message] == []


def test_every_field_has_two_bad_values_and_a_good_one() -> None:
    """No field of the schema is left out of the table."""
    table = {re.sub(r"\[\d\]", "[]", path): f for path, f in api_cases.TABLE["fields"].items()}
    assert set(field_paths(spec_schema())) == set(table)
    for path, field in table.items():
        if field.get("type") in {"object", "array"}:
            assert len([*field.get("bad", ()), *field["mistyped"]]) >= 2, path
        else:
            # Not mistyped ones: of those the API server tells the type instead of the value.
            assert len(field["bad"]) >= 2, path
            assert field["good"], path


def test_every_cross_field_rule_has_a_bad_case() -> None:
    """No rule of the schema is left out of the table."""
    rules = Counter(cross_field_rules(spec_schema()))
    table = Counter(re.sub(r"\[\d\]", "[]", rule["path"]) for rule in api_cases.TABLE["rules"])
    assert rules <= table
    assert set(table) == set(rules)


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param(("Prefill", "Decode", "Decode"), id="two-decodes"),
        pytest.param(("Prefill", "Decode", "Combined"), id="combined-beside-them"),
        pytest.param(("Combined", "Decode"), id="decode-without-prefill"),
    ],
)
def test_roles_are_all_combined_or_one_pair(roles: tuple[str, ...]) -> None:
    """Nothing else is planned."""
    (pool,) = api_cases.TABLE["pooled"]["pools"][1:]
    pools = [
        pool | {"name": f"p{n}", "role": role, "targetRef": {"kind": "Deployment", "name": f"p{n}"}}
        for n, role in enumerate(roles)
    ]
    with pytest.raises(InvalidSpecError, match="one Prefill and one Decode"):
        parse_spec(api_cases.changed({"pools": pools}))


def test_all_problems_are_told_at_once() -> None:
    """A spec with three mistakes is answered once, not three times."""
    spec = api_cases.changed({"mode": "auto", "replicas.min": -1, "objectives[1].threshold": "5"})
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec(spec)
    assert [problem.field for problem in refusal.value.problems] == [
        "spec.mode",
        "spec.objectives[1].threshold",
        "spec.replicas.min",
    ]
    assert all(str(problem) in str(refusal.value) for problem in refusal.value.problems)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param("objectives[1].threshold", "a duration from 1ms to 1h", id="duration"),
        pytest.param("coldStart", "Measured, or a duration from 1s", id="duration-or-word"),
        pytest.param("kvCache.model.weights", "a quantity from 1 to", id="quantity"),
    ],
)
def test_a_number_without_its_unit_is_answered_with_the_form(path: str, words: str) -> None:
    """Not with `a string`, which `1` in quotes would be."""
    with pytest.raises(InvalidSpecError, match=f"1 is not allowed; allowed: {words}"):
        parse_spec(api_cases.changed({path: 1}))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param("behavior.scaleUp.tolerance", "0.1", id="tolerance-not-honoured-yet"),
        pytest.param("role", "prefill", id="field-of-a-later-version"),
        pytest.param("kvCache.kv_heads", 8, id="python-name"),
    ],
)
def test_unknown_fields_are_refused(path: str, name: object) -> None:
    """A field that is not honoured is refused by its path."""
    with pytest.raises(InvalidSpecError, match="no such field in this version") as refusal:
        parse_spec(api_cases.changed({path: name}))
    assert refusal.value.field == f"spec.{path}"


@pytest.mark.parametrize(
    "value", [pytest.param(v, id=type(v).__name__) for v in (None, [], "x", 3)]
)
def test_a_spec_that_is_no_object_is_refused(value: object) -> None:
    """A resource without a usable spec gets an error, not a crash."""
    with pytest.raises(InvalidInputError, match=r"spec.* allowed: an object"):
        parse_spec(value)


def test_a_long_value_is_cut_in_the_message() -> None:
    """A message that goes into a condition stays readable."""
    spec = api_cases.changed({"targetRef.name": "X" * 5000})
    with pytest.raises(InvalidSpecError) as refusal:
        parse_spec(spec)
    assert len(str(refusal.value)) < 500
