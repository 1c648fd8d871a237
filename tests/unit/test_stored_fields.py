"""A table of fields dumps and loads a class, and reads nothing that was not written so."""

from dataclasses import dataclass, field

import pytest

from servingslo.estimation.stored_fields import (
    COUNT,
    NAME,
    TEXT,
    Items,
    Keys,
    Many,
    Number,
    Numbers,
    One,
    Record,
    decimal,
)


@dataclass(frozen=True)
class Inner:
    """What a dotted field lies in."""

    speed: float = 0.0


@dataclass(frozen=True)
class Leg:
    """A record of two numbers, the second of which may be unknown."""

    start: float
    end: float | None = None


@dataclass(frozen=True)
class Trip:
    """One of each kind of field."""

    name: str
    stops: int = 0
    distance: float = 0.0
    heights: tuple[float, ...] = ()
    note: str | None = None
    legs: tuple[Leg, ...] = ()
    inner: Inner = field(default_factory=Inner)


LEG = Record(
    Leg,
    Numbers(Number("start", decimals=0), Number("end", decimals=0, zero_for_none=True)),
    finish=lambda leg: None if leg.end is not None and leg.end < leg.start else leg,
)
TRIP = Record(
    Trip,
    Keys(
        {
            "of": Items(One("name", NAME), One("note", TEXT), needed=False, optional=1),
            "stops": One("stops", COUNT),
            "far": One("distance", decimal(1, least=0.0)),
            "heights": Numbers(
                Number("inner.speed", digits=3, bounds=(0.0, 9.0)),
                Number("heights", rest=True, least=0.0),
            ),
            "legs": Many("legs", LEG, most=2, newest_last=True),
        },
        needed=("of", "stops"),
        sparse=("far",),
    ),
    nested={"inner": Inner},
    blank=lambda trip: not trip.name,
)
FULL = Trip(
    name="north",
    stops=3,
    distance=12.34,
    heights=(1.0, 2.5),
    note="slow",
    legs=(Leg(1.0), Leg(2.0, 3.0), Leg(4.0)),
    inner=Inner(speed=1.23456),
)
STORED = {
    "of": ["north", "slow"],
    "stops": 3,
    "far": 12.3,
    "heights": [1.23, 1.0, 2.5],
    "legs": [[2, 3], [4, 0]],
}


def test_what_is_dumped_is_loaded_again():
    """Rounded as the table says, and only as many records as it keeps."""
    assert TRIP.dump(FULL) == STORED
    loaded = TRIP.load(STORED)
    assert loaded == Trip(
        name="north",
        stops=3,
        distance=12.3,
        heights=(1.0, 2.5),
        note="slow",
        legs=(Leg(2.0, 3.0), Leg(4.0)),
        inner=Inner(speed=1.23),
    )
    assert TRIP.dump(loaded) == STORED


def test_nothing_is_stored_of_a_blank_object():
    """Nor of None."""
    assert TRIP.dump(Trip(name="")) is None
    assert TRIP.dump(None) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"far": "x"}, {"distance": 0.0}),
        ({"far": -1}, {"distance": 0.0}),
        ({"far": True}, {"distance": 0.0}),
        ({"heights": [12.0]}, {"inner": Inner(speed=9.0), "heights": ()}),
        ({"heights": [1.0, -2.0]}, {"inner": Inner(), "heights": ()}),
        ({"heights": [float("nan")]}, {"inner": Inner(), "heights": ()}),
        ({"legs": [[5, 4], [1, 2], "x", [7]]}, {"legs": (Leg(1.0, 2.0),)}),
        ({"of": ["north"]}, {"note": None}),
        ({"of": ["north", 7]}, {"note": None}),
    ],
)
def test_a_malformed_field_keeps_its_default(change, expected):
    """The others are read."""
    loaded = TRIP.load({**STORED, **change})
    assert loaded is not None
    assert {name: getattr(loaded, name) for name in expected} == expected
    assert loaded.stops == 3


@pytest.mark.parametrize(
    "stored",
    [None, [], "x", {}, {**STORED, "stops": 1.5}, {**STORED, "stops": None}, {**STORED, "of": []}],
)
def test_without_a_needed_field_nothing_is_read(stored):
    """Whatever else is there."""
    assert TRIP.load(stored) is None
