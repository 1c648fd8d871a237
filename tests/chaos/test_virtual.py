"""A sample of stories in virtual time: whatever goes wrong, no write that the checker forbids."""

import pytest
from tests.chaos.faults import FAMILIES, KINDS
from tests.chaos.run import again, lived
from tests.chaos.story import DECODE, FAULTS, PREFILL, Story

# Fixed seeds, so that a change is what turns a test red; `make acceptance` lives many more.
SEEDS = (
    5002,
    5003,
    *(
        pytest.param(seed, marks=pytest.mark.acceptance)
        for seed in (5000, 5001, *range(5004, 5008))
    ),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_faults_leads_to_no_forbidden_write_and_ends_well(seed: int) -> None:
    """All kinds of faults at once, forty ticks long."""
    told, result = lived(seed)
    assert len(told.faults) == FAULTS
    assert not result.wrong, f"{again(seed, FAULTS, ())}: {result.wrong}"


@pytest.mark.parametrize(
    "seed", [7000, 7001, *(pytest.param(n, marks=pytest.mark.acceptance) for n in (7002, 7003))]
)
def test_a_storm_over_pools_leads_to_no_forbidden_write_and_ends_well(seed: int) -> None:
    """Prefill and decode: the same invariants for each, and GPUs and zero over both."""
    told, result = lived(seed, pools=True)
    assert {write.target for write in told.writes} <= {PREFILL, DECODE}
    assert not result.wrong, f"{again(seed, FAULTS, (), pools=True)}: {result.wrong}"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_family_of_faults_by_itself_does_no_harm(family: str) -> None:
    """What one kind of trouble leads to is not hidden by another."""
    seed = 6000 + len(family)
    told, result = lived(seed, 24, (family,))
    assert {fault.kind for fault in told.faults} <= set(FAMILIES[family])
    assert not result.wrong, f"{again(seed, 24, (family,))}: {result.wrong}"


def test_the_same_seed_lives_the_same_story() -> None:
    """What fails once can be looked at again."""
    first, second = (lived(5000, 8)[0] for _ in range(2))
    assert first.writes == second.writes
    assert first.log == second.log


def test_stories_have_every_kind_of_fault() -> None:
    """None of them is forgotten in the drawing."""
    drawn = {fault.kind for fault in Story(5000, 1000).told.faults}
    assert drawn == set(KINDS)
