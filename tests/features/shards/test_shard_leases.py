"""Processes that compete for the Leases of shards: one holder each, evenly, and never two."""

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest
from tests.unit.test_election import Server, Time

from servingslo.adapters.kubernetes.api.fence import DeadMansSwitch, under_lease
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.controller.lease.election import Election, Terms
from servingslo.controller.lease.leadership import NamespaceFence, ReleaseFence
from servingslo.errors import NotLeaderError
from servingslo.features.shards.leadership import ShardLeadership
from servingslo.features.shards.leases import ANNOTATION, ShardLeases

TERMS = Terms()
STEP_SECONDS = 0.5


@dataclass
class StatedServer(Server):
    """A Lease that has the number of shards that its holder knows of."""

    stated: int = 1

    def stating(self, shards: int) -> "Stating":
        """As one process writes it."""
        return Stating(self, shards)


@dataclass
class Stating:
    """The Lease of a process that knows of so many shards."""

    server: StatedServer
    shards: int

    async def read(self):
        """As it is now."""
        return await self.server.read()

    async def create(self, holder, duration_seconds):
        """With the number."""
        return self._state(await self.server.create(holder, duration_seconds))

    async def write(self, known, holder, duration_seconds):
        """With the number."""
        return self._state(await self.server.write(known, holder, duration_seconds))

    def _state(self, record):
        self.server.record = replace(record, annotations={ANNOTATION: str(self.shards)})
        return self.server.record


@dataclass
class Cluster:
    """A release's Leases, and its processes on one clock."""

    time: Time = field(default_factory=Time)
    leases: dict[str, StatedServer] = field(default_factory=dict)
    live: dict[str, ShardLeadership] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)

    def start(self, name: str, shards: int) -> ShardLeadership:
        """One more process."""

        def election(lease: str) -> Election:
            store = self.leases.setdefault(lease, StatedServer()).stating(shards)
            return Election(store=store, identity=name, terms=TERMS, clock=self.time)

        async def report(_election: Election, _namespace: str) -> None:
            raise AssertionError("there is one release")

        self.live[name] = ShardLeadership(
            leases=ShardLeases(
                count=shards, election_of=lambda shard: election(str(shard)), line=election("next")
            ),
            identity="system/slo",
            election_in=lambda namespace: Election(
                store=self.leases.setdefault(namespace, StatedServer()),
                identity="system/slo",
                terms=TERMS,
                clock=self.time,
            ),
            on_turn=lambda: None,
            report=report,
        )
        return self.live[name]

    async def step(self) -> None:
        """Half a second: each process attempts what it would, and its loop has a round."""
        self.time.now += STEP_SECONDS
        for name, one in self.live.items():
            if name in self.frozen:
                continue
            for shard in one.elections():
                await one.attempt(shard)
            await one.leases.stand_in_line()
            surplus = one.surplus()
            if surplus is not None:
                await one.give_back(surplus)
            assert self.holders() is not None

    async def run(self, seconds: float) -> None:
        """So many seconds."""
        for _ in range(round(seconds / STEP_SECONDS)):
            await self.step()

    def holders(self) -> dict[int, str]:
        """Who may write for each shard now; never two."""
        found: dict[int, str] = {}
        for name, one in self.live.items():
            for shard in one.held():
                assert shard not in found, (shard, name, found)
                found[shard] = name
        return found

    def counts(self) -> list[int]:
        """Shards of each live process."""
        return sorted(len(one.held()) for one in self.live.values())


async def test_one_process_holds_all_shards_and_gives_back_to_those_that_come():
    """One at a time, until all have as many; a spare one has none."""
    cluster = Cluster()
    cluster.start("a", 3)
    await cluster.run(4.0)
    assert cluster.counts() == [3]
    for name, counts in (("b", [1, 2]), ("c", [1, 1, 1]), ("d", [0, 1, 1, 1])):
        cluster.start(name, 3)
        await cluster.run(20.0)
        assert cluster.counts() == counts
    assert "standby as d" in cluster.live["d"].detail()
    assert cluster.live["a"].detail().startswith("holds shards 0 of 3 as a; others: 1 of")


async def test_a_rollout_to_more_shards_moves_nothing_before_all_know_of_them():
    """And one to fewer empties what is gone, by who holds it, before its Lease is left."""
    cluster = Cluster()
    cluster.start("old", 1)
    await cluster.run(4.0)
    assert cluster.live["old"].shards() is None
    cluster.start("new", 2)
    await cluster.run(20.0)
    assert cluster.holders() == {0: "old", 1: "new"}
    assert cluster.live["new"].shards() is None
    await cluster.live.pop("old").stop()
    await cluster.run(4.0)
    assert cluster.holders() == {0: "new", 1: "new"}
    assert cluster.live["new"].shards() == 2
    await cluster.live.pop("new").stop()

    last = cluster.start("last", 1)
    await last.claim({"a"}, {0, 1})
    await cluster.run(4.0)
    assert cluster.holders() == {0: "last", 1: "last"}
    assert last.shards() == 1
    await last.claim({"a"}, {0, 1})
    assert last.term("a", 1) is not None
    await last.claim({"a"}, {0})
    assert cluster.holders() == {0: "last"}
    assert cluster.leases["1"].record.holder == ""
    await last.stop()


async def test_a_process_exports_which_shards_it_holds():
    """At each scrape, as it is then."""
    cluster, metrics = Cluster(), OperatorMetrics()
    one = cluster.start("a", 2)
    one.export(metrics)
    await cluster.run(4.0)
    value = metrics.registry.get_sample_value
    assert value("servingslo_shard_held", {"shard": "1"}) == 1.0
    await one.give_back(1)
    held = [value("servingslo_shard_held", {"shard": shard}) for shard in "01"]
    assert held == [1.0, 0.0]


async def test_a_write_needs_the_lease_of_its_shard():
    """Of another one, of none, or while it is given back, it is refused."""
    cluster = Cluster()
    first, second = cluster.start("a", 2), cluster.start("b", 2)
    await cluster.run(20.0)
    shard = next(iter(first.held()))
    fence = NamespaceFence(leadership=first)
    with under_lease(shard):
        assert fence.write_seconds("inference") > 0.0
    with under_lease(1 - shard), pytest.raises(NotLeaderError, match="b holds it"):
        fence.write_seconds("inference")
    with under_lease(7), pytest.raises(NotLeaderError):
        fence.write_seconds("inference")
    assert ReleaseFence(leadership=first).write_seconds("inference") > 0.0
    assert ReleaseFence(leadership=second).write_seconds("inference") > 0.0


async def test_a_shard_is_given_back_when_its_last_write_has_ended():
    """No write begins meanwhile, and nobody else has it."""
    cluster = Cluster()
    one = cluster.start("a", 2)
    await cluster.run(4.0)
    switch = DeadMansSwitch(lambda _seconds: None)
    one.leases.busy = switch.busy
    with under_lease(1), switch.armed(5.0):
        giving = asyncio.create_task(one.give_back(1))
        await asyncio.sleep(0.2)
        assert not giving.done()
        assert set(one.held()) == {0}
        assert cluster.leases["1"].record.holder == "a"
        with pytest.raises(NotLeaderError):
            NamespaceFence(leadership=one).write_seconds("inference")
    await giving
    assert cluster.leases["1"].record.holder == ""


def test_the_switch_ends_the_process_at_the_first_lease_that_a_write_needs():
    """Of several shards the one that ends first; a later write of one shard has a later end."""
    now, armed = 0.0, []
    switch = DeadMansSwitch(armed.append, clock=lambda: now)
    with under_lease(0), switch.armed(5.0):
        with under_lease(1), switch.armed(3.0):
            now = 1.0
            with under_lease(1), switch.armed(6.0):
                pass
        now = 2.0
    assert armed == [5.0, 3.0, 4.0, 4.0, 0.0]


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_no_shard_has_two_holders_and_all_end_held(seed: int):
    """Processes killed, frozen, woken and started, while a rollout changes the number of shards."""
    chance = random.Random(seed)  # noqa: S311  a world that can be had again
    cluster, shards = Cluster(), 2
    for number in range(40):
        act = chance.choice(["start", "kill", "freeze", "wake", "rest"])
        shards = chance.choice([2, 3]) if number % 10 == 0 else shards
        live = sorted(cluster.live.keys() - cluster.frozen)
        if act == "start" or not live:
            cluster.start(f"p{number}", shards)
        elif act == "kill":
            del cluster.live[chance.choice(live)]
        elif act == "freeze":
            cluster.frozen.add(chance.choice(live))
        elif act == "wake":
            cluster.frozen.clear()
        await cluster.run(chance.uniform(1.0, 12.0))
    cluster.frozen.clear()
    cluster.start("last", 3)
    await cluster.run(60.0)
    assert cluster.holders().keys() == {0, 1, 2}
    counts = cluster.counts()
    assert max(counts) <= 2 or len(counts) == 1


async def test_with_one_shard_it_is_leader_or_standby():
    """As without this feature: who leads is in `/readyz`, where the runbook looks for it."""
    cluster = Cluster()
    cluster.start("a", 1)
    await cluster.run(4.0)
    cluster.start("b", 1)
    await cluster.run(4.0)
    assert [cluster.live[name].detail() for name in "ab"] == ["leader a", "standby of a"]
