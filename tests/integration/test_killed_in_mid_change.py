"""The operator killed at random moments of changes: canaries of batch limits, a gateway's bound.

SERVINGSLO_KILLS says how many times at any moment, 9 by default; each canary's verdict, and the
end, add one.
"""

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.audit import differences, killed_at_seconds, timed_writes
from tests.integration.canary_fleet import (
    BUSY_PER_SECOND,
    FEW,
    STEP_IN_THE_LAW,
    Fleet,
    start_fleet,
)
from tests.integration.gateway_manifests import Gateway, begin
from tests.integration.operator_under_test import Engines, Operator, Tenant

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

KILLS = int(os.environ.get("SERVINGSLO_KILLS", "9"))
SEED = 29
FORMER_BOUND = 500
BEGUN_SECONDS, VERDICT_SECONDS = 300.0, 900.0
# The longest time to the next kill, between a write and the kill, and until the next start.
PAUSE_SECONDS, AFTER_WRITE_SECONDS, AWAY_SECONDS = 30.0, 0.03, 3.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator allows both."""
    return ("batching.apply.enabled=true", "admission.kinds[0]=BackendTrafficPolicy")


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart passes it on."""
    return ("--batching-apply=true", "--admission-kind=BackendTrafficPolicy")


@dataclass
class Killer:
    """Kills the operator, at any moment or just after a write that the API server has answered."""

    rig: Rig
    operator: Operator
    chance: random.Random

    def kill(self) -> None:
        """Now; and start it again after a while."""
        self.operator.kill()
        time.sleep(self.chance.uniform(0.0, AWAY_SECONDS))
        self.operator.start()

    def some_time(self) -> None:
        """At a moment that nothing tells."""
        time.sleep(self.chance.uniform(1.0, PAUSE_SECONDS))
        self.kill()

    def after_a_write(self, namespaces: set[str], timeout_seconds: float) -> None:
        """Some milliseconds after the next write in one of these namespaces."""
        with self.rig.audit_log.open(encoding="utf-8") as log:
            log.seek(0, os.SEEK_END)

            def written() -> bool:
                lines = [line for line in log.readlines() if line.endswith("\n")]
                return any(write.namespace in namespaces for _, write in timed_writes(lines))

            wait_until(
                written,
                what=f"a write in {namespaces}",
                timeout_seconds=timeout_seconds,
                interval_seconds=0.005,
            )
        time.sleep(self.chance.uniform(0.0, AFTER_WRITE_SECONDS))
        self.kill()


@pytest.fixture
def fleets(rig: Rig, engines: Engines, operator: Operator, tmp_path: Path) -> Iterator[list[Fleet]]:
    """A canary each: good ones of both kinds, and one that is taken back."""
    found = [
        start_fleet(rig, engines, tmp_path, "kills-good"),
        start_fleet(rig, engines, tmp_path, "kills-set", kind="StatefulSet"),
        start_fleet(
            rig, engines, tmp_path, "kills-bad", uneven=STEP_IN_THE_LAW, rate=BUSY_PER_SECOND
        ),
    ]
    yield found
    for fleet in found:
        fleet.tenant.end_traffic()
        rig.delete_namespace(fleet.tenant.namespace)


def test_whatever_was_begun_is_finished_or_put_back(
    rig: Rig,
    gateway_crds: None,
    fleets: list[Fleet],
    tenant: Tenant,
    operator: Operator,
    tmp_path: Path,
) -> None:
    """No object is left in between, and the logs tell what the audit log has."""
    chance = random.Random(SEED)  # noqa: S311  moments that can be had again
    killer, gateway = Killer(rig, operator, chance), Gateway(tenant)
    gateway.create_all(circuitBreaker={"maxParallelRequests": FORMER_BOUND})
    policy = gateway.policy()["spec"]
    begin(tenant, tmp_path)
    wait_until(
        lambda: any(fleet.canary for fleet in fleets),
        what="a canary begins",
        timeout_seconds=BEGUN_SECONDS,
    )
    for number in range(KILLS):
        tenant.patch_slo({"replicas": {"min": 3 - number % 2}})
        if number % 2:
            killer.some_time()
        else:
            killer.after_a_write({tenant.namespace}, BEGUN_SECONDS)
    waiting = [fleet for fleet in fleets if fleet.canary or fleet.limit == FEW]
    for _ in waiting:
        killer.after_a_write({fleet.tenant.namespace for fleet in waiting}, VERDICT_SECONDS)
    operator.kill()
    tenant.delete_slo()
    operator.start()
    tenant.wait(lambda: gateway.bound() == FORMER_BOUND, what="the former bound again")
    assert gateway.policy()["spec"] == policy
    for fleet in fleets:
        wait_until(
            lambda fleet=fleet: not fleet.canary and len(fleet.pods()) == 1,
            what=f"{fleet.tenant.namespace} is done",
            timeout_seconds=VERDICT_SECONDS,
        )
        _whole(fleet)
    operator.stop()
    assert operator.process is not None
    log = operator.process.log_path.read_text(encoding="utf-8").splitlines()
    audit = rig.audit_log.read_text(encoding="utf-8").splitlines()
    assert differences(audit, log) == []
    assert len(killed_at_seconds(log)) >= KILLS + 1


def _whole(fleet: Fleet) -> None:
    """All is as it was, or all but the limits is."""
    found = fleet.without_ours()
    if fleet.limit == FEW:
        assert found == fleet.first
        return
    assert fleet.tenant.namespace != "canary-kills-bad"
    names = found.keys() - {"template"}
    assert {name: found[name] for name in names} == {name: fleet.first[name] for name in names}
