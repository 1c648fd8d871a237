"""Records: frozen for the type checker alone, with the equality and the hash of frozen ones."""

from dataclasses import dataclass, fields

from servingslo.records import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A frozen dataclass."""

    pod: str
    seconds: float = 15.0


@record(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The same as a record."""

    pod: str
    seconds: float = 15.0


def test_records_equal_and_hash_by_their_fields():
    """As those of a frozen dataclass do."""
    assert Recorded(pod="a") == Recorded(pod="a", seconds=15.0)
    assert Recorded(pod="a") != Recorded(pod="b")
    assert hash(Recorded(pod="a")) == hash(Frozen(pod="a"))


def test_records_have_the_fields_and_slots_of_a_dataclass():
    """So that they can be copied with changes and stored."""
    assert [one.name for one in fields(Recorded)] == [one.name for one in fields(Frozen)]
    assert not hasattr(Recorded(pod="a"), "__dict__")
