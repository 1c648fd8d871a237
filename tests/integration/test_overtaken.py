"""A user's change while a tick is under way: nothing is written by the spec of before.

SERVINGSLO_RACES says how many races are run: 10 by default, 100 for acceptance.
"""

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.operator_under_test import Operator, Tenant
from tests.integration.slow_prometheus import SlowPrometheus

from servingslo_lab.rig.cluster import Rig

RACES = int(os.environ.get("SERVINGSLO_RACES", "10"))
SIDE_BY_SIDE = 5
# Each of a reading's eighteen queries waits so long: a tick is under way for more than a second.
DELAY_SECONDS = 0.06
LONGEST_HESITATION_SECONDS = 6.0
# A write whose last look came before the change may still be under way to the API server.
UNDER_WAY_SECONDS = 0.25
TICKS_SECONDS = 4.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def slow_prometheus(rig: Rig) -> Iterator[SlowPrometheus]:
    """The rig's Prometheus, late with every answer."""
    proxy = SlowPrometheus(rig.prometheus_url, DELAY_SECONDS)
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def operator_settings(slow_prometheus: SlowPrometheus) -> tuple[str, ...]:
    """The operator asks the slow one."""
    return (f"--prometheus-url={slow_prometheus.url}",)


def _race(tenant: Tenant, name: str, mode: str, hesitation_seconds: float) -> str:
    """Ask for two replicas, change one's mind, and see; why it was lost, '' where it was not."""
    tenant.patch_slo({"mode": "Auto", "replicas": {"min": 2, "max": 4}}, name)
    time.sleep(hesitation_seconds)
    tenant.patch_slo({"mode": mode}, name)
    time.sleep(UNDER_WAY_SECONDS)
    at_once = tenant.replicas(name)
    time.sleep(TICKS_SECONDS)
    later = tenant.replicas(name)
    tenant.scale(1, name)
    return "" if later == at_once else f"{name} {mode}: {at_once} became {later}"


def test_a_mode_that_was_accepted_is_the_last_word(tenant: Tenant, operator: Operator) -> None:
    """Paused or Recommend, whenever it comes within a tick: no count changes after it."""
    names = [f"chat{index}" for index in range(SIDE_BY_SIDE)]
    for name in names:
        tenant.create_deployment(name, replicas=1)
        tenant.create_slo(name, mode="Paused")
    chance = random.Random(28)  # noqa: S311  hesitations that can be had again
    lost: list[str] = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for _ in range(-(-RACES // SIDE_BY_SIDE)):
            races = [
                pool.submit(
                    _race,
                    tenant,
                    name,
                    chance.choice(["Paused", "Recommend"]),
                    chance.uniform(0.0, LONGEST_HESITATION_SECONDS),
                )
                for name in names
            ]
            lost += [told for race in races if (told := race.result())]
    assert not lost
    written = operator.log_lines("decided", tenant.namespace, "action=scale-up")
    assert written, "no race was won by the operator either: nothing was tested"


def test_a_resource_made_anew_is_scaled_by_its_own_bounds(tenant: Tenant) -> None:
    """Deleted and made again within a tick: what the old one asked for is not written."""
    tenant.create_deployment(replicas=1)
    for minimum in (2, 3):
        tenant.create_slo(replicas={"min": minimum, "max": 4}, mode="Auto")
        time.sleep(0.6)
        tenant.delete_slo()
        time.sleep(UNDER_WAY_SECONDS)
        at_once = tenant.replicas()
        tenant.create_slo(mode="Recommend", replicas={"min": 1, "max": 4})
        time.sleep(TICKS_SECONDS)
        assert tenant.replicas() == at_once
        tenant.delete_slo()
        tenant.scale(1)
