"""`servingslo top` and `servingslo history` on what they are given, and what they refuse."""

from dataclasses import replace

import pytest
from cli_calls import CLI

from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo_lab.cli.top import SortBy, lines, ordered, row_of


def _record(name: str, **status: object) -> ResourceRecord:
    return ResourceRecord(
        ref=ResourceRef(namespace="inference", name=name, uid=name),
        generation=1,
        created_seconds=0.0,
        deleting=False,
        spec={"targetRef": {"kind": "StatefulSet", "name": name}, "mode": "Recommend"},
        status=status,
    )


def _condition(type_: str, status: str, reason: str) -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason}


BUSY = _record(
    "busy",
    reason="ObjectivesMissed",
    replicas={"current": 3, "ready": 2, "desired": 5},
    observed={"arrivalsPerSecond": 12.34},
    predicted={"utilization": 0.81},
    bindingConstraint="ttft",
    cost={"perHour": 12.5, "currency": "USD"},
    conditions=[
        _condition("Ready", "True", "Ready"),
        _condition("SLOMet", "False", "ObjectivesMissed"),
        _condition("ScalingLimited", "True", "MaxReplicasReached"),
    ],
)
BLIND = _record(
    "blind", reason="MetricsMissing", conditions=[_condition("Ready", "False", "MetricsMissing")]
)


def test_a_row_tells_what_the_status_tells() -> None:
    """Counts, demand, objectives, what binds and what limits; what is unknown is a dash."""
    table = lines([row_of(BUSY), row_of(BLIND)])
    words = "inference busy StatefulSet/busy Recommend 3 5 12.3 0.81 False True ObjectivesMissed"
    assert " ".join(table[1].split()) == f"{words} ttft 12.5 USD"
    assert table[2].split()[4:] == ["-", "-", "-", "-", "-", "False", "MetricsMissing", "-", "-"]


def test_leases_are_shown_if_there_are_several() -> None:
    """Of one there is no column."""
    divided = replace(row_of(BUSY), name="divided", lease=2)
    table = lines([row_of(BUSY), divided])
    assert [line.split()[-1] for line in table] == ["LEASE", "0", "2"]


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        pytest.param(SortBy.NAME, ["blind", "busy", "calm"], id="name"),
        pytest.param(SortBy.RATE, ["busy", "calm", "blind"], id="rate"),
        pytest.param(SortBy.REPLICAS, ["busy", "calm", "blind"], id="replicas"),
        pytest.param(SortBy.SLO, ["busy", "blind", "calm"], id="slo"),
    ],
)
def test_what_matters_comes_first(sort: SortBy, names: list[str]) -> None:
    """The greatest, or the missed, before the others; the unknown is never in the way."""
    calm = _record(
        "calm",
        replicas={"desired": 1},
        observed={"arrivalsPerSecond": 0.0},
        conditions=[_condition("SLOMet", "True", "WithinObjectives")],
    )
    rows = ordered([row_of(record) for record in (calm, BUSY, BLIND)], sort)
    assert [row.name for row in rows] == names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("top", "-A", "-n", "x"), ("--all-namespaces",), id="both-scopes"),
        pytest.param(("top", "--every", "0s"), ("--every", "500ms to 1h"), id="every"),
        pytest.param(("top", "--sort", "age"), ("--sort", "age"), id="sort"),
        pytest.param(("history", "chat", "--prometheus-url=http://x"), ("NAMESPACE/NAME",), id="n"),
        pytest.param(
            ("history", 'a"}/b', "--prometheus-url=http://x"), ("NAMESPACE", "lower"), id="quote"
        ),
        pytest.param(
            ("history", "a/b", "--prometheus-url=x"), ("--prometheus-url", "http"), id="url"
        ),
        pytest.param(
            ("history", "a/b", "--prometheus-url=http://x", "--since=91d"),
            ("--since", "91d", "90d"),
            id="since",
        ),
        pytest.param(
            ("history", "a/b", "--prometheus-url=http://x", "--every=2d"),
            ("--every", "2d", "--since"),
            id="longer-than-all",
        ),
    ],
)
def test_bad_input_is_refused_by_name(
    cli: CLI, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """The flag, its value and what is allowed, before anything is asked."""
    called = cli(*arguments)
    assert called.refuses(*words), called
