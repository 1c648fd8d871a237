"""The checker of storms on the rig: each thing that must not be is found, and nothing else."""

import json

import pytest
from tests.chaos.live_checker import Asked, End, Journal, Order, Spell, most, orders_of, violations

RATE = 9.0
AUTO = {"mode": "Auto", "replicas": {"min": 1, "max": 20}}
NARROW = {"mode": "Auto", "replicas": {"min": 2, "max": 3}}


def journal(*asked: Asked, spells: tuple[Spell, ...] = ()) -> Journal:
    """One workload; what was asked is in force from time 0 where nothing else is said."""
    first = Asked(name="chat", spec=AUTO, asked=0.0, answered=0.1)
    return Journal(rates={"chat": RATE}, asked=[first, *asked], spells=list(spells), ticks=100)


def order(before: int, after: int, at: float = 100.0) -> Order:
    """A count set at a time."""
    return Order(received=at, answered=at + 0.05, name="chat", before=before, after=after)


def asked(spec: dict | None, at: float) -> Asked:
    """Something else asked for at a time."""
    return Asked(name="chat", spec=spec, asked=at, answered=at + 0.1)


def spell(kind: str, began: float, ended: float, name: str = "") -> Spell:
    """Something broken."""
    return Spell(kind=kind, began=began, ended=ended, name=name)


@pytest.mark.parametrize(
    ("lived", "ordered", "wrong"),
    [
        pytest.param(journal(), order(2, 3), "", id="well"),
        pytest.param(journal(asked(NARROW, 90.0)), order(2, 4), "allowed by none", id="above-max"),
        pytest.param(journal(asked(NARROW, 99.0)), order(2, 4), "", id="a-moment-after"),
        pytest.param(journal(asked(None, 90.0)), order(2, 3), "allowed by none", id="deleted"),
        pytest.param(
            journal(asked({**AUTO, "mode": "Paused"}, 90.0)),
            order(2, 3),
            "allowed by none",
            id="paused",
        ),
        pytest.param(
            journal(asked(NARROW, 90.0), spells=(spell("operator-frozen", 88.0, 99.0),)),
            order(2, 4),
            "",
            id="frozen-after-its-look",
        ),
        pytest.param(
            journal(asked(NARROW, 80.0), spells=(spell("operator-frozen", 78.0, 99.0),)),
            order(2, 4),
            "allowed by none",
            id="frozen-for-longer-than-a-look",
        ),
        pytest.param(
            journal(spells=(spell("prometheus-frozen", 80.0, 110.0),)),
            order(4, 3),
            "without sight",
            id="down-while-blind",
        ),
        pytest.param(
            journal(spells=(spell("prometheus-frozen", 95.0, 110.0),)),
            order(4, 3),
            "",
            id="by-a-reading-from-before",
        ),
        pytest.param(
            journal(asked(NARROW, 90.0), spells=(spell("prometheus-killed", 80.0, 110.0),)),
            order(5, 3),
            "",
            id="down-to-the-new-maximum",
        ),
        pytest.param(journal(), order(3, 1), "fewer than 2", id="too-few-for-the-rate"),
        pytest.param(
            journal(asked({**AUTO, "replicas": {"min": 1, "max": 1}}, 90.0)),
            order(3, 1),
            "",
            id="as-few-as-are-allowed",
        ),
        pytest.param(journal(), order(2, most(RATE) + 1), "more than", id="too-many"),
        pytest.param(
            journal(asked({**AUTO, "replicas": {"min": 9, "max": 20}}, 99.0)),
            order(2, 9),
            "",
            id="up-to-a-minimum-of-a-moment-ago",
        ),
        pytest.param(
            journal(spells=(spell("other-scaler", 90.0, 110.0, "chat"),)),
            order(2, 3),
            "the count is of",
            id="of-another",
        ),
        pytest.param(
            journal(spells=(spell("other-scaler", 99.0, 110.0, "chat"),)),
            order(2, 3),
            "",
            id="another-came-a-moment-ago",
        ),
    ],
)
def test_an_order_is_judged_by_what_was_in_force(
    lived: Journal, ordered: Order, wrong: str
) -> None:
    """One that is allowed is found by nothing; one that is not, for its reason alone."""
    found = violations(lived, [ordered])
    assert len(found) == bool(wrong), found
    assert not wrong or wrong in found[0]


def test_who_waits_may_be_served_and_not_for_ever() -> None:
    """A queue seen in the last minute doubles what is ordered without a law."""
    lived = journal()
    lived.waiting = [(70.0, "chat", 40)]
    assert not violations(lived, [order(8, 16)])
    lived.waiting = [(30.0, "chat", 40)]
    assert violations(lived, [order(8, 16)])


def _status(**conditions: str) -> dict:
    entries = [{"type": t, "status": s, "reason": "Any"} for t, s in conditions.items()]
    return {"conditions": entries, "replicas": {"desired": 2}}


@pytest.mark.parametrize(
    ("end", "wrong"),
    [
        pytest.param(End(count=2, status=_status(Ready="True", MetricsFresh="True")), 0, id="well"),
        pytest.param(End(count=9, status=_status(Ready="True", MetricsFresh="True")), 2, id="many"),
        pytest.param(
            End(count=2, status=_status(Ready="False", MetricsFresh="True")), 1, id="ready"
        ),
        pytest.param(End(count=2, status={}), 3, id="no-status"),
    ],
)
def test_in_the_end_all_is_well_again(end: End, wrong: int) -> None:
    """Count, conditions and what the status tells."""
    lived = journal()
    lived.ends["chat"] = end
    assert len(violations(lived, [])) == wrong


def test_a_fault_of_the_operator_and_a_flood_of_lines_are_found() -> None:
    """Both stand in the log."""
    lived = journal()
    lived.log = ["2026 ERROR failed namespace=a name=chat", *["2026 INFO decided"] * 400]
    assert len(violations(lived, [])) == 2


def test_orders_are_read_from_the_audit_log() -> None:
    """Those of the account alone, that were taken, in the namespace."""

    def line(**changes: object) -> str:
        entry = {
            "user": {"username": "system:serviceaccount:system:operator"},
            "stage": "ResponseComplete",
            "responseStatus": {"code": 200},
            "objectRef": {"namespace": "storm", "name": "chat", "subresource": "scale"},
            "requestObject": [
                {"op": "test", "path": "/spec/replicas", "value": 2},
                {"op": "add", "path": "/spec/replicas", "value": 3},
            ],
            "requestReceivedTimestamp": "2026-11-25T00:00:01.000000Z",
            "stageTimestamp": "2026-11-25T00:00:01.250000Z",
        }
        return json.dumps({**entry, **changes})

    lines = [
        line(),
        line(user={"username": "admin"}),
        line(responseStatus={"code": 409}),
        line(objectRef={"namespace": "other", "name": "chat", "subresource": "scale"}),
    ]
    (found,) = orders_of(lines, "storm", "operator")
    assert (found.before, found.after) == (2, 3)
    assert found.answered - found.received == pytest.approx(0.25)
