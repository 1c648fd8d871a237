"""The loop with a Lease: a standby decides nothing, a new leader begins with what was learnt."""

import asyncio
import copy
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import pytest
from tests.unit.controller_fakes import NAMESPACE, UID, Operator, record_of
from tests.unit.test_election import Server, Time

from servingslo.controller.lease.election import Election
from servingslo.controller.lease.lead import Lead
from servingslo.controller.lease.leadership import (
    NAMESPACE_TERMS,
    Leadership,
    NamespaceFence,
    ReleaseFence,
)
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.errors import NotLeaderError
from servingslo.packing import packed
from servingslo.reasons import Reason

GAUGES = {"namespace": NAMESPACE, "name": "llama-chat"}


@dataclass(kw_only=True)
class Turn(Lead):
    """A lead that is given and taken by the test."""

    now: str | None = "1"
    claimed: set[str] = field(default_factory=set)

    def process_term(self) -> str | None:
        """As told."""
        return self.now

    def held(self) -> Collection[int]:
        """The only Lease."""
        return {0} if self.now is not None else set()

    def term(self, namespace: str, _lease: int = 0) -> str | None:
        """Of every namespace that was asked for."""
        return self.now if namespace in self.claimed else None

    async def claim(self, namespaces: Iterable[str], _leases: Iterable[int] = ()) -> None:
        """All are given."""
        self.claimed = set(namespaces)


def operator_with(turn: Turn) -> Operator:
    """An operator with one resource."""
    operator = Operator()
    operator.controller.lead = turn
    operator.apply(record_of())
    return operator


def desired(operator: Operator) -> float | None:
    """The gauge."""
    return operator.exporter.registry.get_sample_value("servingslo_desired_replicas", GAUGES)


async def test_a_standby_reads_no_metrics_and_tells_nothing():
    """Neither status, event nor gauge, until it leads; then all of them in its first round."""
    turn = Turn(now=None)
    operator = operator_with(turn)
    operator.exporter.follow(lambda: turn.now is not None, lambda: 0)
    await operator.ticks(3)
    assert operator.fleet.readings == 0
    assert operator.resources.status() == {}
    assert desired(operator) is None
    assert operator.counted("servingslo_leader") == 0
    turn.now = "1"
    await operator.tick()
    assert operator.resources.status()["lastDecision"]
    assert desired(operator) is not None
    assert operator.counted("servingslo_leader") == 1


async def test_gauges_of_a_leader_end_with_its_lease():
    """At the very scrape, not with the next round."""
    turn = Turn()
    operator = operator_with(turn)
    operator.exporter.follow(lambda: turn.now is not None, lambda: 0)
    await operator.tick()
    assert desired(operator) is not None
    turn.now = None
    assert desired(operator) is None


async def test_a_lapse_that_nobody_used_keeps_the_memory_and_another_s_lead_voids_it():
    """The same term goes on from memory; another one begins with what is in the status."""
    turn = Turn()
    operator = operator_with(turn)
    await operator.tick()
    memory = operator.reconciler._memories[UID]
    turn.now = None
    await operator.look()
    turn.now = "1"
    await operator.look()
    assert operator.reconciler._memories[UID] is memory
    learnt = memory.state.of("")
    later = copy.deepcopy(operator.resources.status()["learned"])
    state = learned_of({"learned": later})
    state["behavior"]["recommendations"] = [[15.0, 7]]  # as another leader had seen
    later["data"] = packed(state)
    renewed = operator.registry.upsert(replace(record_of(), status={"learned": later}))
    assert renewed.record.status["learned"] == later
    turn.now = "2"
    await operator.tick()
    assert operator.reconciler._memories[UID] is not memory
    restored = operator.reconciler._memories[UID].state.of("")
    assert restored.started_seconds > learnt.started_seconds
    assert (15.0, 7) in [tuple(seen) for seen in restored.behavior.recommendations]


@pytest.mark.virtual_time
async def test_a_new_leader_looks_at_once():
    """The pause between two rounds ends when the lead comes, and resources are listed anew."""
    turn = Turn(now=None)
    operator = operator_with(turn)
    operator.controller.tick_seconds = 60.0
    task = asyncio.create_task(operator.controller.run())
    await asyncio.sleep(1.0)
    operator.fleet.tick()
    turn.now = "1"
    operator.registry.wake_loop()
    await asyncio.sleep(1.0)
    task.cancel()
    assert "lastDecision" in operator.resources.status()


async def test_a_write_refused_by_the_fence_is_told_as_such(caplog):
    """The change that was ordered ends as refused with LeaseLost; nothing else is tried."""
    caplog.set_level(logging.INFO)
    operator = operator_with(Turn())
    await operator.ticks(3)

    async def refused(*_: object) -> None:
        raise NotLeaderError("no valid lease: other_1234 holds it")

    operator.fleet.scale = refused
    operator.apply(record_of(generation=2, replicas={"min": 5, "max": 12}))
    operator.fleet.tick()
    await operator.look()
    assert f"refusal={Reason.LEASE_LOST}" in caplog.text
    assert operator.fleet.scaled == []


@dataclass
class Cluster:
    """Leases by name; releases are leaderships on one cluster."""

    time: Time = field(default_factory=Time)
    leases: dict[str, Server] = field(default_factory=dict)
    reported: list[tuple[str, str]] = field(default_factory=list)
    turns: int = 0

    def lease(self, name: str) -> Server:
        """The one of that name."""
        return self.leases.setdefault(name, Server())

    def _election(self, store: Server, identity: str) -> Election:
        return Election(store=store, identity=identity, terms=NAMESPACE_TERMS, clock=self.time)

    def leadership(self, release: str, process: str | None = None) -> Leadership:
        """Of one process of a release."""

        def election_in(namespace: str) -> Election:
            store = self.lease(namespace)
            return Election(
                store=store, identity=release, terms=NAMESPACE_TERMS, clock=self.time.__call__
            )

        def turned() -> None:
            self.turns += 1

        async def report(election: Election, namespace: str) -> None:
            self.reported.append((namespace, election.holder))

        own = None
        if process is not None:
            own = self._election(self.lease(f"release {release}"), process)
        return Leadership(
            release=own,
            identity=release,
            election_in=election_in,
            on_turn=turned,
            report=report,
        )


async def test_the_younger_release_stands_aside_where_they_overlap_and_says_so_once(caplog):
    """It names both, once; where it is alone it acts; and it takes over what is not renewed."""
    caplog.set_level(logging.INFO)
    cluster = Cluster()
    older, younger = cluster.leadership("old/slo"), cluster.leadership("new/slo")
    await older.claim({"a"})
    for _ in range(3):
        await younger.claim({"a", "b"})
        await younger._attempt_all(["a", "b"])
    assert older.term("a") is not None
    assert younger.term("a") is None
    assert younger.term("b") is not None
    assert younger.aside() == {"a": "old/slo"}
    assert "stands aside in a (old/slo)" in younger.detail()
    assert cluster.reported == [("a", "old/slo")]
    assert caplog.text.count("standing aside namespace=a") == 1
    assert "operator=new/slo other=old/slo" in caplog.text
    fence = NamespaceFence(leadership=younger)
    assert fence.write_seconds("b") > 0.0
    with pytest.raises(NotLeaderError, match="old/slo holds it"):
        fence.write_seconds("a")
    cluster.time.now += 40.0
    await younger._attempt_all(["a"])
    assert younger.term("a") is not None
    assert younger.aside() == {}
    await older._attempt_all(["a"])
    assert older.aside() == {"a": "new/slo"}


async def test_a_namespace_without_resources_is_given_back():
    """The other release has it with its next attempt."""
    cluster = Cluster()
    first, second = cluster.leadership("old/slo"), cluster.leadership("new/slo")
    await first.claim({"a"})
    await second.claim({"a"})
    await first.claim(set())
    await second._attempt_all(["a"])
    assert second.term("a") is not None


async def test_a_process_alone_releases_its_namespaces_at_its_end():
    """Another release has them with its next attempt, and the first may write there no more."""
    cluster = Cluster()
    first, second = cluster.leadership("old/slo"), cluster.leadership("new/slo")
    await first.start()
    await first.claim({"a"})
    await second.claim({"a"})
    assert second.aside() == {"a": "old/slo"}
    await first.stop()
    assert first.term("a") is None
    with pytest.raises(NotLeaderError):
        NamespaceFence(leadership=first).write_seconds("a")
    await second._attempt_all(["a"])
    assert second.term("a") is not None


async def test_only_the_leader_of_a_release_asks_for_namespaces():
    """A standby has none; the pod that follows has its release's at once."""
    cluster = Cluster()
    first, second = cluster.leadership("one/slo", "p1"), cluster.leadership("one/slo", "p2")
    await first.start()
    await second.start()
    await first.claim({"a"})
    await second.claim({"a"})
    assert first.term("a") is not None
    assert second.term("a") is None
    assert "standby of p1" in second.detail()
    with pytest.raises(NotLeaderError, match="p1 holds it"):
        ReleaseFence(leadership=second).write_seconds("a")
    await first.stop()
    assert first.term("a") is None
    await second.attempt(0)
    await second.claim({"a"})
    assert second.term("a") is not None
    await second.stop()
