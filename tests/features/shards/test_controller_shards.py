"""Two processes of a release with two shards: each resource is decided by one, and moves whole."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import pytest
from tests.unit.controller_fakes import NAME, NAMESPACE, UID, FakeResources, Operator, record_of

from servingslo.adapters.kubernetes.api.fence import lease_of_context
from servingslo.controller.grants import Grants
from servingslo.controller.lease.lead import Lead
from servingslo.controller.place import Place, place_of
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.errors import ClusterUnavailableError, PermissionDeniedError
from servingslo.features.shards.moving import Moving
from servingslo.features.shards.placement import shard_of
from servingslo.policy.pools.stored import learned_fleet

SHARDS = 2
HOME = shard_of(UID, SHARDS)
# A uid whose shard is 0, and one whose shard is 1.
UIDS = {shard_of(f"uid-{number}", SHARDS): f"uid-{number}" for number in range(20)}
KEY = NAMESPACE, NAME


@dataclass
class Shards(Lead):
    """A lead over shards that the test gives and takes. count: None while nothing may move."""

    mine: set[int]
    count: int | None = SHARDS
    unwanted: int | None = None
    claimed: set[str] = field(default_factory=set)
    moving: Moving = field(default_factory=Moving)

    def process_term(self) -> str | None:
        """Of all its shards."""
        return " ".join(map(str, sorted(self.mine))) or None

    def held(self) -> Collection[int]:
        """As told."""
        return self.mine

    def term(self, namespace: str, lease: int = 0) -> str | None:
        """Of a shard, in a claimed namespace."""
        return f"term of {lease}" if lease in self.mine and namespace in self.claimed else None

    async def claim(self, namespaces: Iterable[str], _leases: Iterable[int] = ()) -> None:
        """All are given."""
        self.claimed = set(namespaces)

    def holds_all(self) -> bool:
        """Of two there may be one."""
        return self.count is None or len(self.mine) == self.count

    def is_placed(self, resource) -> bool:
        """As the leader of some shards."""
        return not self.moving.is_unknown(resource)

    async def arrange(self, holdings, acts, *, listed):
        """As the leader of some shards."""
        return await self.moving.arrange(self, holdings, acts, listed=listed)

    def shards(self) -> int | None:
        """As told."""
        return self.count

    def surplus(self) -> int | None:
        """As told."""
        return self.unwanted

    async def give_back(self, shard: int) -> None:
        """Gone at once."""
        self.mine.discard(shard)
        self.unwanted = None


class Joined(Grants):
    """All resources share something, if it is known."""

    known = True

    def joined(self, resources, /):
        """The same for each."""
        return {one.record.ref.uid: ("shared",) for one in resources} if self.known else None


class Unread(Joined):
    """It is not known what they share."""

    known = False


def process(resources: FakeResources, lead: Shards, grants: type[Grants] = Grants) -> Operator:
    """One process on these resources."""
    operator = Operator(resources=resources, make_grants=grants)
    operator.controller.lead = lead
    return operator


def sees(operator: Operator, name: str = NAME) -> None:
    """Its watch shows it the resource as it is."""
    operator.registry.upsert(operator.resources.records[name])


async def test_a_resource_is_moved_before_anything_is_decided_and_then_decided_by_the_other():
    """Of its first process there is neither a status nor a gauge."""
    resources = FakeResources()
    first, second = process(resources, Shards({0})), process(resources, Shards({1}))
    first.apply(record_of(uid=UIDS[1]))
    await first.tick()
    assert dict(resources.status()) == {"shard": {"index": 1, "moves": 1}}
    assert first.fleet.readings == 0
    sees(second)
    assert KEY in second.registry.take_woken()
    await second.tick()
    assert "lastDecision" in resources.status()
    assert place_of(resources.status()) == Place(lease=1, moves=1)
    patches = len(resources.patches)
    await first.ticks(3)
    assert len(resources.patches) == patches


@pytest.mark.parametrize(
    ("grants", "shard"), [(Joined, shard_of("shared", SHARDS)), (Unread, None)]
)
async def test_resources_that_share_something_are_on_one_shard(grants, shard):
    """Whatever their own would be; while it is not known nothing moves."""
    resources = FakeResources()
    held = 1 - shard_of("shared", SHARDS)
    operator = process(resources, Shards({held}), grants)
    status = {"shard": {"index": held, "moves": 1}}
    for uid in UIDS.values():
        target = {"kind": "Deployment", "name": uid}
        operator.apply(replace(record_of(name=uid, uid=uid, targetRef=target), status=status))
    await operator.tick()
    places = {place_of(resources.status(uid)).lease for uid in UIDS.values()}
    assert places == {held if shard is None else shard}


async def test_what_was_learnt_moves_with_the_resource():
    """In the same write, as it is at that moment; the other process begins with it."""
    resources = FakeResources()
    lead = Shards({0}, count=None)
    first, second = process(resources, lead), process(resources, Shards({1}))
    first.apply(record_of(uid=UIDS[1]))
    await first.ticks(4)
    memory = first.reconciler._memories[UIDS[1]]
    own = memory.state.of("")
    behavior = replace(own.behavior, recommendations=((60.0, 7),))
    memory.state = memory.state.with_pool("", replace(own, behavior=behavior))
    lead.count = SHARDS
    await first.tick()
    expected = learned_fleet(memory.state, memory.targets, first.fleet.now)
    assert resources.patches[-1].keys() >= {"shard", "learned"}
    assert UIDS[1] not in first.reconciler._memories
    assert learned_of(resources.status()) == json.loads(json.dumps(expected))
    sees(second)
    second.fleet.world = first.fleet.world
    await second.tick()
    restored = second.reconciler._memories[UIDS[1]].state.of("").behavior.recommendations
    assert (60.0, 7) in [tuple(seen) for seen in restored]


@pytest.mark.parametrize("count", [None, 1])
async def test_nothing_moves_while_pods_disagree_and_all_goes_back_to_one_shard(count):
    """A resource of shard 1 stays there during a rollout, and is moved by who holds it after."""
    resources = FakeResources()
    operator = process(resources, Shards({0, 1}, count=count))
    record = record_of()
    place = Place(lease=1, moves=3)
    operator.apply(replace(record, status={"shard": {"index": 1, "moves": 3}}))
    await operator.ticks(2)
    expected = place if count is None else Place(lease=0, moves=4)
    assert place_of(resources.status()) == expected
    assert "lastDecision" in resources.status()


async def test_a_write_for_a_resource_that_is_on_another_shard_by_now_is_not_made():
    """The last look reads it again; the plan is void and the resource is left alone."""
    resources = FakeResources()
    operator = process(resources, Shards({0}, count=None))
    operator.apply(record_of())
    await operator.ticks(3)
    operator.apply(record_of(generation=2, replicas={"min": 5, "max": 12}))
    known = resources.records[NAME]
    moved = {**known.status, "shard": {"index": 1, "moves": 1}}
    resources.records[NAME] = replace(known, status=moved)
    operator.fleet.tick()
    await operator.look()
    assert operator.fleet.scaled == []
    assert operator.registry.resources[KEY].place == Place(lease=1, moves=1)


async def test_a_watch_that_is_behind_brings_no_resource_back():
    """Only a list that says so twice does: then the cluster was restored."""
    operator = process(FakeResources(), Shards({0}))
    before = operator.apply(record_of(uid=UIDS[1])).record
    await operator.tick()
    moved = Place(lease=1, moves=1)
    operator.registry.upsert(before)
    assert operator.registry.resources[KEY].place == moved
    operator.registry.replace_all([before])
    assert operator.registry.resources[KEY].place == moved
    operator.registry.replace_all([before])
    assert operator.registry.resources[KEY].place == Place()


async def test_after_a_move_without_an_answer_nothing_is_decided_until_it_is_known():
    """It was carried out, and only the answer is missing: the other process decides by then."""
    resources = FakeResources()
    operator = process(resources, Shards({0}))
    operator.apply(record_of(uid=UIDS[1]))
    hand_over = resources.hand_over

    async def unanswered(*arguments: object) -> None:
        await hand_over(*arguments)
        raise ClusterUnavailableError("no answer")

    resources.hand_over = unanswered
    await operator.ticks(3)
    assert place_of(resources.status()).lease == 1
    assert "lastDecision" not in resources.status()
    assert operator.fleet.readings == 0


async def test_a_move_that_fails_leaves_the_resource_where_it_is_decided(caplog):
    """It is said once, and tried again."""
    resources = FakeResources()
    operator = process(resources, Shards({0}))
    operator.apply(record_of(uid=UIDS[1]))
    hand_over = resources.hand_over

    async def refused(*_: object) -> None:
        raise PermissionDeniedError("no right")

    resources.hand_over = refused
    await operator.ticks(2)
    assert "lastDecision" in resources.status()
    assert caplog.text.count("not moved namespace=") == 1
    resources.hand_over = hand_over
    await operator.tick()
    assert place_of(resources.status()).lease == 1


async def test_a_shard_is_given_back_with_what_its_resources_learnt():
    """Written before the Lease is released; its gauges are gone at once."""
    resources = FakeResources()
    lead = Shards({0, 1}, count=None)
    operator = process(resources, lead)
    operator.apply(replace(record_of(), status={"shard": {"index": 1, "moves": 1}}))
    await operator.ticks(3)
    labels = {"namespace": NAMESPACE, "name": NAME}
    value = operator.exporter.registry.get_sample_value
    assert value("servingslo_desired_replicas", labels) is not None
    lead.unwanted = 1
    patches = len(resources.patches)
    await operator.tick()
    assert [set(patch) for patch in resources.patches[patches:]] == [{"learned"}]
    assert lead.mine == {0}
    assert value("servingslo_desired_replicas", labels) is None


async def test_what_was_written_for_another_shard_is_not_put_back():
    """Of a deleted resource its last shard's holder does it, and shard 0's after a while."""
    operator = process(FakeResources(), Shards({0}))
    ref = operator.apply(
        replace(record_of(), status={"shard": {"index": 1, "moves": 1}})
    ).record.ref
    wanted = operator.controller.undoing.wanted
    assert wanted(ref, 0) is None
    assert wanted(ref, 1)
    operator.delete()
    assert wanted(ref, 0) is None
    assert wanted(ref, 1) == ()
    await operator.controller.undoing.when_due(0.0)
    await operator.controller.undoing.when_due(600.0)
    assert wanted(ref, 0) == ()


async def test_every_status_is_written_under_the_lease_of_its_shard():
    """As the fence sees it."""
    resources = FakeResources()
    operator = process(resources, Shards({0, 1}, count=None))
    operator.apply(replace(record_of(), status={"shard": {"index": 1, "moves": 1}}))
    seen = []
    patch = resources.patch_status

    async def noted(*arguments):
        seen.append(lease_of_context())
        await patch(*arguments)

    resources.patch_status = noted
    await operator.ticks(2)
    assert set(seen) == {1}


async def test_the_engines_of_a_workload_that_has_just_moved_here_are_read_at_once():
    """Its pods are not known before its first turn, and others after a change of its spec."""
    resources = FakeResources()
    operator = process(resources, Shards({HOME}))
    operator.apply(replace(record_of(), status={"shard": {"index": HOME, "moves": 1}}))
    await operator.ticks(2)
    assert operator.fleet.asked_pods is not None
    operator.reconciler.forget(UID)
    await operator.tick()
    assert operator.fleet.asked_pods is None
    await operator.tick()
    assert operator.fleet.asked_pods is not None
    operator.apply(replace(record_of(generation=2), status={"shard": {"index": HOME, "moves": 1}}))
    await operator.tick()
    assert operator.fleet.asked_pods is None
