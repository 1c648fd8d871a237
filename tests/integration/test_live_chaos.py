"""A short storm of faults on a rig of its own; `make acceptance` has a longer one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.chaos.live import blown

from servingslo_lab.rig.cluster import Rig, RigOptions

SEED = 56
FAULTS = 15
NODES = 8


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """Whose parts are killed with nobody else on them."""
    with Rig.start(RigOptions()) as running:
        running.add_nodes(NODES)
        yield running


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_a_storm_of_faults_leads_to_no_forbidden_write_and_ends_well_on_the_rig(
    rig: Rig, namespace: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """By the API server's audit log, beside what was asked for and what was broken when."""
    outcome = blown(rig, namespace, seed=SEED, faults=FAULTS, folder=tmp_path)
    record_property("kinds", dict(outcome.kinds))
    record_property("orders", outcome.orders)
    record_property("seconds", outcome.seconds)
    assert outcome.orders > 0
    assert not outcome.wrong, f"make chaos LIVE={FAULTS} SEED={SEED}: {outcome.wrong}"
