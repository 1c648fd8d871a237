"""Elections on a clock of their own: who may write, and that nobody writes after the next one.

1. No two candidates lead at once.
2. No write that a candidate began lands after the first of the one after it.
3. A Lease that is not renewed is taken within its duration and one attempt.
Both hold whatever is stopped, lost, late, or refused; clocks are of the processes and never meet.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from servingslo.adapters.kubernetes.leases import LeaseRecord
from servingslo.controller.lease.election import Election, Terms, check_object_name, check_terms
from servingslo.errors import (
    ClusterUnavailableError,
    InvalidInputError,
    WriteConflictError,
)

TERMS = Terms()


@dataclass
class Server:
    """The API server's Lease: each write has a version, and a precondition on the one before."""

    record: LeaseRecord | None = None
    away: bool = False
    writes: int = 0

    async def read(self) -> LeaseRecord | None:
        """As it is now."""
        self._answer()
        return self.record

    async def create(self, holder: str, duration_seconds: int) -> LeaseRecord:
        """The first one wins."""
        self._answer()
        if self.record is not None:
            raise WriteConflictError("it exists")
        return self._put(holder, duration_seconds, 0)

    async def write(self, known: LeaseRecord, holder: str, duration_seconds: int) -> LeaseRecord:
        """Only what is as it was read."""
        self._answer()
        if self.record is None or known.version != self.record.version:
            raise WriteConflictError("it has changed")
        moved = bool(holder) and holder != known.holder
        return self._put(holder, duration_seconds, known.transitions + moved)

    def _answer(self) -> None:
        if self.away:
            raise ClusterUnavailableError("no answer")

    def _put(self, holder: str, duration_seconds: int, transitions: int) -> LeaseRecord:
        self.writes += 1
        self.record = LeaseRecord(
            uid="lease",
            version=str(self.writes),
            holder=holder,
            duration_seconds=float(duration_seconds),
            transitions=transitions,
        )
        return self.record


@dataclass
class Time:
    """One clock, moved by hand."""

    now: float = 100.0

    def __call__(self) -> float:
        """Its reading."""
        return self.now


@dataclass
class Candidates:
    """Two candidates for one Lease, each with its own reading of the clock."""

    server: Server = field(default_factory=Server)
    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        self.first = self._candidate("first", lambda: self.time.now)
        # Booted a year earlier: nobody may compare the readings of two clocks.
        self.second = self._candidate("second", lambda: self.time.now + 3e7)

    def _candidate(self, name: str, clock: Callable[[], float]) -> Election:
        return Election(store=self.server, identity=name, terms=TERMS, clock=clock)

    def attempt(self, election: Election) -> bool:
        """One attempt; whether the candidate leads after it."""
        asyncio.run(election.attempt())
        return election.leads


def test_the_first_to_ask_leads_and_the_other_waits() -> None:
    """A Lease that is not there is made; while it is renewed nobody else has it."""
    both = Candidates()
    assert both.attempt(both.first)
    for _ in range(20):
        assert not both.attempt(both.second)
        both.time.now += 2.0
        assert both.attempt(both.first)
    assert both.second.holder == "first"


def test_a_lease_that_is_given_back_is_taken_at_once() -> None:
    """An orderly end costs nobody a duration, and the one that ended writes nothing after it."""
    both = Candidates()
    both.attempt(both.first)
    both.attempt(both.second)
    asyncio.run(both.first.release())
    assert not both.first.leads
    assert both.attempt(both.second)
    assert both.second.term == "lease/1"


def test_a_renewal_that_was_cancelled_keeps_no_lease() -> None:
    """Its answer never came, so the holder knows an older version when it gives the Lease back."""
    both = Candidates()
    both.attempt(both.first)
    known = both.first.known
    assert known is not None
    asyncio.run(both.first.store.write(known, known.holder, TERMS.lease_seconds))
    asyncio.run(both.first.release())
    assert both.attempt(both.second)


def test_a_lapse_that_nobody_used_is_the_same_term_and_another_s_is_a_new_one() -> None:
    """By the term a leader knows whether what it remembers is still what was decided last."""
    both = Candidates()
    both.attempt(both.first)
    term = both.first.term
    both.time.now += 60.0
    assert both.first.term is None
    both.attempt(both.first)
    assert both.first.term == term
    both.attempt(both.second)
    both.time.now += 10.0
    both.attempt(both.second)
    both.attempt(both.first)
    both.time.now += 10.0
    both.attempt(both.first)
    assert both.first.term not in {None, term}


def test_a_lease_deleted_or_taken_by_hand_is_noticed_with_the_next_renewal() -> None:
    """A holder leads no more from the moment it learns that it holds nothing."""
    both = Candidates()
    both.attempt(both.first)
    asyncio.run(both.server.write(both.server.record, "somebody", 10))
    both.time.now += 2.0
    assert not both.attempt(both.first)
    both.server.record = None
    both.time.now += 2.0
    assert both.attempt(both.first)


@pytest.mark.parametrize(
    ("terms", "field_named", "allowed"),
    [
        pytest.param(Terms(lease_seconds=4), "--lease-seconds", "5 to 120", id="short"),
        pytest.param(Terms(lease_seconds=500), "--lease-seconds", "5 to 120", id="long"),
        pytest.param(Terms(renew_seconds=9.0), "--lease-renew-seconds", "at most 8", id="late"),
        pytest.param(
            Terms(renew_seconds=float("nan")), "--lease-renew-seconds", "at most 8", id="nan"
        ),
        pytest.param(Terms(retry_seconds=3.5), "--lease-retry-seconds", "0.5 to 3", id="rare"),
        pytest.param(Terms(retry_seconds=0.0), "--lease-retry-seconds", "0.5 to 3", id="busy"),
    ],
)
def test_terms_that_leave_no_time_are_refused(terms: Terms, field_named: str, allowed: str) -> None:
    """The error names the flag, its value and what is allowed."""
    with pytest.raises(InvalidInputError, match=allowed) as refused:
        check_terms(terms)
    assert refused.value.field == field_named


@pytest.mark.parametrize("name", ["", "Not_A", "a/b", "-a", "a.", "a" * 254])
def test_a_name_that_the_server_would_refuse_is_refused_before(name: str) -> None:
    """The error names the flag; nothing that is no name gets into a path."""
    with pytest.raises(InvalidInputError, match="--lease-name"):
        check_object_name("--lease-name", name)
    assert check_object_name("--lease-name", "servingslo-operator.v2") == "servingslo-operator.v2"
