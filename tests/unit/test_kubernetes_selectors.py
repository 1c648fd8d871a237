"""Label selectors in both of the forms that Kubernetes writes them in."""

import time

import pytest

from servingslo.adapters.kubernetes.api.selectors import (
    matches,
    parse_selector,
    selector_from_spec,
)
from servingslo.errors import InvalidObjectError

LABELS = {"app": "chat", "tier": "b", "empty": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("app=chat", True, id="equal"),
        pytest.param("app==chat", True, id="double-equal"),
        pytest.param("app=other", False, id="not-equal"),
        pytest.param("app=chat,tier=b", True, id="both"),
        pytest.param("app=chat,tier=c", False, id="one-fails"),
        pytest.param("tier in (a,b)", True, id="in"),
        pytest.param("app=chat,tier in (a, c)", False, id="in-fails"),
        pytest.param("tier notin (a,c)", True, id="notin"),
        pytest.param("absent notin (a)", True, id="notin-absent"),
        pytest.param("tier!=a", True, id="unequal"),
        pytest.param("app", True, id="exists"),
        pytest.param("absent", False, id="exists-fails"),
        pytest.param("!absent", True, id="does-not-exist"),
        pytest.param("!app", False, id="does-not-exist-fails"),
        pytest.param("empty=", True, id="empty-value"),
        pytest.param("app.kubernetes.io/name=x", False, id="prefixed-key"),
        pytest.param("", False, id="empty-matches-nothing"),
    ],
)
def test_string_form(text: str, expected: bool) -> None:
    """The form of /scale is understood as upstream; an empty one selects nothing here."""
    assert matches(parse_selector(text), LABELS) is expected


@pytest.mark.parametrize("text", ["a in b", "=x", "a b"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    """A selector that cannot be read must not select the wrong pods."""
    with pytest.raises(InvalidObjectError):
        parse_selector(text)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"matchLabels": {"app": "chat"}}, True, id="labels"),
        pytest.param({"matchLabels": {"app": "other"}}, False, id="labels-fail"),
        pytest.param(
            {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["b"]}]},
            True,
            id="in",
        ),
        pytest.param(
            {
                "matchLabels": {"app": "chat"},
                "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}],
            },
            False,
            id="both-kinds",
        ),
        pytest.param({}, False, id="empty"),
        pytest.param(None, False, id="absent"),
    ],
)
def test_object_form(spec: dict | None, expected: bool) -> None:
    """The form of a workload's spec is understood."""
    assert matches(selector_from_spec(spec), LABELS) is expected


@pytest.mark.parametrize(
    "text", ["k in (" + ",".join(["a"] * 200_000) + ")", "," * 400_000, "(" * 400_000, "a in (b,"]
)
def test_a_selector_takes_no_longer_than_it_is_long(text: str) -> None:
    """A tenant's object may hold one of a megabyte, which is read on the loop of everybody."""
    began = time.process_time()
    try:
        parse_selector(text)
    except InvalidObjectError as error:
        assert len(str(error)) < 200  # noqa: PT017 - one that is read is good as well
    assert time.process_time() - began < 2.0


def test_commas_in_brackets_part_nothing() -> None:
    """Values of one requirement stay together, whatever stands around them."""
    first, second, third = parse_selector("a, tier in (b,c) ,!d")
    assert (first.key, second.values, third.operator) == ("a", ("b", "c"), "DoesNotExist")
