"""Limits that a container takes from variables of its own: changed there, one pod first."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.canary_fleet import (
    BUSY_PER_SECOND,
    FEW,
    STEP_IN_THE_LAW,
    VARIABLE,
    Fleet,
    start_fleet,
)
from tests.integration.operator_under_test import Engines, Operator

from servingslo_lab.rig.cluster import Rig

EDITED = 12

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def fleets(
    rig: Rig, engines: Engines, operator: Operator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Fleet]]:
    """Fleets of this module, all under load at once."""
    folder = tmp_path_factory.mktemp("traces")
    found = {
        "good": start_fleet(rig, engines, folder, "env-good", from_variable=True),
        "bad": start_fleet(
            rig,
            engines,
            folder,
            "env-bad",
            from_variable=True,
            uneven=STEP_IN_THE_LAW,
            rate=BUSY_PER_SECOND,
        ),
    }
    yield found
    for fleet in found.values():
        fleet.tenant.end_traffic()
        rig.delete_namespace(fleet.tenant.namespace)


def _variables(fleet: Fleet) -> dict[str, str]:
    container = fleet.read()["spec"]["template"]["spec"]["containers"][0]
    return {one["name"]: one["value"] for one in container["env"]}


def test_the_variable_is_changed_and_its_flag_stays(
    fleets: dict[str, Fleet], operator: Operator
) -> None:
    """All pods get it after one; a variable of the same value that is no limit stays."""
    fleet = fleets["good"]
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    assert fleet.changes(operator)[-1] == "BatchingChanged"
    fleet.wait_one_template()
    args = fleet.read()["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--max-num-seqs=$({VARIABLE})" in args
    assert int(_variables(fleet)[VARIABLE]) > FEW
    assert _variables(fleet)["OTHER"] == str(FEW)


def test_the_former_value_is_put_back_to_the_letter(
    fleets: dict[str, Fleet], operator: Operator
) -> None:
    """A step in the law beyond it: the canary is worse."""
    fleet = fleets["bad"]
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    assert fleet.changes(operator)[-1] == "BatchingRolledBack"
    assert fleet.without_ours() == fleet.first
    fleet.wait_one_template()


def test_an_edit_of_the_variable_has_the_last_word(
    rig: Rig, engines: Engines, operator: Operator, tmp_path: Path
) -> None:
    """Somebody sets another value while one pod tries ours: it stands."""
    fleet = start_fleet(rig, engines, tmp_path, "env-edited", from_variable=True)
    fleet.wait_begun(operator)
    container = {"name": "vllm", "env": [{"name": VARIABLE, "value": str(EDITED)}]}
    fleet.tenant.apps.patch_namespaced_deployment(
        "chat",
        fleet.tenant.namespace,
        {"spec": {"template": {"spec": {"containers": [container]}}}},
    )
    fleet.wait_ended(operator, 60.0)
    assert fleet.changes(operator)[-1] == "BatchingLeftToUser"
    assert fleet.limit == EDITED
    fleet.tenant.end_traffic()
    rig.delete_namespace(fleet.tenant.namespace)
