"""Answers read as text give what the same answers give as JSON, whatever tenants call things."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.adapters.prometheus.vectors import Known, Vector, groups_of, vector_document

_WORDS = st.sampled_from(
    ["", "0", "chat-0", 'a"b', "back\\slash", '"le":"', '},"value":[', '{"metric":{', "é", "\ud7ff"]
)
_LABELS = st.dictionaries(st.sampled_from(["engine", "le", "namespace", "pod", "zone"]), _WORDS)
_NAMES = st.sampled_from(["", "vllm:e2e_bucket", "vllm:e2e_sum", 'odd"name,'])
_VALUES = st.sampled_from(["0", "1.5", "NaN", "+Inf", "1e+06"])


def _body(result: list[dict[str, Any]], **more: Any) -> bytes:
    document = {
        "status": "success",
        "data": {"resultType": "vector", "result": result},
        **more,
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _series(name: str, labels: dict[str, str], value: str) -> dict[str, Any]:
    named = {"__name__": name, **labels} if name else labels
    return {"metric": dict(sorted(named.items())), "value": [1700000000.125, value]}


def _read(series: Any) -> dict[Any, str]:
    """Values by name, labels and edge; as text, since NaN equals nothing."""
    found: dict[Any, str] = {}
    for name, labels, values in groups_of(series, Known()):
        for edge, value in values.items():
            found.setdefault((name, frozenset(labels.by_name.items()), edge), repr(value))
    return found


@given(st.lists(st.builds(_series, _NAMES, _LABELS, _VALUES), min_size=1, max_size=12))
def test_an_answer_is_read_alike_as_text_and_as_json(result: list[dict[str, Any]]) -> None:
    """Quotes, braces and what looks like the next series may stand in every label."""
    document = vector_document(_body(result))
    assert document is not None
    vector = document["data"]["result"]
    assert isinstance(vector, Vector)
    assert list(vector) == result
    assert _read(vector) == _read(result)


def test_buckets_that_follow_each_other_are_one_group() -> None:
    """Also where a repeated one stands between them, and the next histogram begins."""
    result = [
        _series("h_bucket", {"le": edge, "pod": pod, "zone": "z"}, value)
        for pod in ("a", "b")
        for edge, value in (("0.5", "1"), ("0.5", "9"), ("+Inf", "4"))
    ]
    document = vector_document(_body(result))
    assert document is not None
    groups = list(groups_of(document["data"]["result"], Known()))
    assert [group.values for group in groups] == 2 * [{"0.5": 1.0, "+Inf": 4.0}]
    assert [group.labels.by_name["pod"] for group in groups] == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(json.dumps({"data": {"result": []}}).encode(), id="empty"),
        pytest.param(_body([{"metric": {"pod": "a"}, "histogram": [1, {}]}]), id="native"),
        pytest.param(
            _body([{"metric": {}, "value": [1, "2"]}]).replace(b'"vector"', b'"matrix"'), id="range"
        ),
        pytest.param(_body([_series("up", {}, "1")]).replace(b":", b": "), id="spaces"),
        pytest.param(_body([_series("up", {}, "1")])[:-4], id="cut short"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"<html>", id="another page"),
    ],
)
def test_any_other_answer_is_left_to_json(body: bytes) -> None:
    """It is read as before, or refused with the words for it."""
    assert vector_document(body) is None


def test_warnings_stay_with_an_answer() -> None:
    """Else a part of the data would be missing without a word."""
    document = vector_document(_body([_series("up", {"pod": "a"}, "1")], warnings=["a store"]))
    assert document is not None
    assert document["warnings"] == ["a store"]


@given(
    st.lists(
        st.lists(st.builds(_series, _NAMES, _LABELS, _VALUES), min_size=1, max_size=8),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_labels_of_earlier_readings_change_no_answer(
    readings: list[list[dict[str, Any]]], again: bool
) -> None:
    """Also when they are dropped meanwhile; equal labels of one reading are one object."""
    known = Known()
    for result in readings:
        known.begin()
        document = vector_document(_body(result))
        assert document is not None
        groups = list(groups_of(document["data"]["result"], known, again=again))
        fresh = list(groups_of(document["data"]["result"], Known()))
        assert [(one.name, one.labels.by_name, repr(one.values)) for one in groups] == [
            (one.name, one.labels.by_name, repr(one.values)) for one in fresh
        ]


def test_labels_are_parsed_once_and_dropped_when_they_are_gone() -> None:
    """A pod's labels are one object over readings; those of a pod that is gone cost no memory."""
    known = Known()

    def read(pod: str) -> Any:
        known.begin()
        document = vector_document(_body([_series("running", {"pod": pod}, "1")]))
        assert document is not None
        (group,) = groups_of(document["data"]["result"], known, again=True)
        return group.labels

    first = read("gone")
    assert all(read("gone") is first for _ in range(20))
    for _ in range(20):
        read("here")
    kept = [known.by_text, known._labels_before, known.heads, known._heads_before]
    assert not any("gone" in str(one) for one in kept)
    assert all(len(one) <= 1 for one in kept)
