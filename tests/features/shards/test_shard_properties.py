"""Shards: where resources are, and who holds what.

1. Each resource is on exactly one shard that exists.
2. One more shard takes about 1/N of the resources, and no other resource moves.
3. Resources that are joined by budgets are on one shard.
4. Processes that follow the rule end with all shards held, as evenly as can be, and then rest.
5. A dead process's shards are taken by those with the fewest.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from servingslo.controller.place import Place, place_of
from servingslo.features.shards.holding import Holding, Leases
from servingslo.features.shards.place import moved
from servingslo.features.shards.placement import MOST_SHARDS, placement, shard_of

SHARDS = st.integers(1, MOST_SHARDS)
UIDS = st.uuids().map(str)
SELECTED = st.dictionaries(UIDS, st.lists(st.sampled_from("abcdef"), max_size=3), max_size=40)
MANY = 4000


@given(SELECTED, SHARDS)
def test_each_resource_is_on_one_shard_that_exists(selected, shards):
    """Whatever its budgets."""
    placed = placement(selected, shards)
    assert placed.keys() == selected.keys()
    assert all(0 <= shard < shards for shard in placed.values())
    assert placement(selected, shards) == placed


@given(SELECTED, SHARDS)
def test_resources_of_a_budget_are_together(selected, shards):
    """Also where two budgets share a resource."""
    placed = placement(selected, shards)
    for budget in {name for names in selected.values() for name in names}:
        assert len({placed[uid] for uid, names in selected.items() if budget in names}) == 1


@given(SELECTED, st.integers(1, MOST_SHARDS - 1))
def test_what_moves_goes_to_the_new_shard(selected, shards):
    """And when it goes again everything is as before."""
    before, after = placement(selected, shards), placement(selected, shards + 1)
    moved = {uid for uid in selected if before[uid] != after[uid]}
    assert all(after[uid] == shards for uid in moved)


def test_a_new_shard_takes_its_part():
    """About 1/N, and every shard has about as many: within four standard deviations."""
    uids = [f"uid-{number}" for number in range(MANY)]
    for shards in range(2, MOST_SHARDS + 1):
        counts = Counter(shard_of(uid, shards) for uid in uids)
        mean, deviation = MANY / shards, (MANY * (shards - 1)) ** 0.5 / shards
        assert all(abs(count - mean) < 4.0 * deviation for count in counts.values()), counts
        moved = sum(shard_of(uid, shards) != shard_of(uid, shards - 1) for uid in uids)
        assert moved == counts[shards - 1]


@given(st.integers(0, MOST_SHARDS - 1), st.integers(0, 10**6))
def test_a_place_is_read_as_it_was_written(shard, moves):
    """And a move is counted."""
    place = Place(lease=shard, moves=moves + 1)
    assert place_of(moved(Place(lease=0, moves=moves), shard)) == place


@given(
    st.one_of(
        st.none(),
        st.text(),
        st.integers(),
        st.dictionaries(st.text(), st.integers()),
        st.fixed_dictionaries({"index": st.one_of(st.integers(), st.floats(), st.text())}),
    )
)
def test_whatever_a_status_says_the_shard_can_exist(field):
    """A tenant may write it."""
    assert 0 <= place_of({"shard": field}).lease < MOST_SHARDS


def leases(me: str, held: dict[int, str], in_line: str) -> Leases:
    """As a process sees them."""
    seen = {shard: Holding(holder=holder, shards=len(held)) for shard, holder in held.items()}
    return Leases(me=me, held=seen, in_line=in_line)


def in_line_after(held: dict[int, str], live: list[str], in_line: str) -> str:
    """Who stands in line: whoever did while it wants more, or the first of the others."""
    wanting = [me for me in live if leases(me, held, in_line).wants_more()]
    return in_line if in_line in wanting else next(iter(wanting), "")


def settle(held: dict[int, str], live: list[str]) -> int:
    """Let live processes follow the rule until nothing changes; return the number of moves."""
    in_line, moves = "", 0
    for _ in range(20 * (len(held) + len(live))):
        before = dict(held), in_line
        in_line = in_line_after(held, live, in_line)
        for me in live:
            surplus = leases(me, held, in_line).surplus()
            if surplus is not None:
                held[surplus] = ""
                moves += 1
        for shard in [shard for shard, holder in held.items() if not holder]:
            takers = (me for me in live if leases(me, held, in_line).is_next())
            held[shard] = next(takers, "")
        if (dict(held), in_line) == before:
            return moves
    raise AssertionError(held)


@given(st.data(), SHARDS, st.integers(1, 10))
def test_shards_end_evenly_held(data, shards, processes):
    """From any state; then nothing is given back any more."""
    live = [f"p{number}" for number in range(processes)]
    holders = st.sampled_from(["", *live])
    held = {shard: data.draw(holders) for shard in range(shards)}
    settle(held, live)
    counts = [list(held.values()).count(me) for me in live]
    assert sum(counts) == shards
    assert max(counts) - min(counts) <= 1
    assert settle(held, live) == 0


@given(st.data(), SHARDS, st.integers(2, 6))
def test_the_shards_of_a_dead_process_are_taken(data, shards, processes):
    """All of them, whoever dies."""
    live = [f"p{number}" for number in range(processes)]
    held = dict.fromkeys(range(shards), "")
    settle(held, live)
    dead = data.draw(st.sampled_from(live))
    live.remove(dead)
    held = {shard: "" if holder == dead else holder for shard, holder in held.items()}
    settle(held, live)
    assert set(held.values()) <= set(live)


@given(SHARDS, st.data())
def test_shards_are_agreed_on_only_if_all_know_the_same(shards, data):
    """One that is free, or whose holder knows another number, is enough to wait."""
    held = {shard: Holding(holder="p", shards=shards) for shard in range(shards)}
    assert Leases(me="p", held=held).agreed(shards)
    odd = data.draw(st.sampled_from([Holding(holder="q", shards=shards + 1), Holding()]))
    held[data.draw(st.integers(0, shards - 1))] = odd
    assert not Leases(me="p", held=held).agreed(shards)
