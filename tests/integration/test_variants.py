"""One model on two simulated cards behind a real Envoy: one plan, and pods that are lost."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from tests.integration.bursts import wait_for_answer
from tests.integration.manifests import workload
from tests.integration.operator_under_test import (
    LENGTH_SPREAD,
    Operator,
    Tenant,
    steady_trace,
    ticks_pass,
)

from servingslo_lab.cli.demo.system import start_clients
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.envoy_front import EnvoyFront
from servingslo_lab.rig.simulated.engine_pods import KIND_ANNOTATION
from servingslo_lab.rig.simulated.http_clients import read_records
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

pytestmark = pytest.mark.slow("servingslo.features.variants", "servingslo.policy.pools")

NAME = "llama"
RATE_PER_SECOND = 10.0
SECONDS = 120.0
LOSSES = 3
TTFT_SECONDS, TPOT_SECONDS = 2.0, 0.1
PLANNED_WITHIN_SECONDS = 150.0


@dataclass(frozen=True)
class Card:
    """A pool: its Deployment, its law, and its price. cpu: of a pod, '' for none."""

    name: str
    kind: str
    price: float
    cpu: str = ""

    @property
    def target(self) -> str:
        """Name of its Deployment."""
        return f"{NAME}-{self.name}"

    def pool(self) -> dict:
        """Of the spec."""
        law = asdict(engine_kind(self.kind).law)
        return {
            "name": self.name,
            "targetRef": {"kind": "Deployment", "name": self.target},
            "replicas": {"min": 1, "max": 4},
            "coldStart": "30s",
            "cost": {"gpuHourly": self.price},
            "serviceLaw": {
                "stepFixedSeconds": law["step_fixed_seconds"],
                "stepPerSequenceSeconds": law["step_per_sequence_seconds"],
                "prefillPerTokenSeconds": law["prefill_per_token_seconds"],
                "contextPerTokenSeconds": law["context_per_token_seconds"],
            },
        }

    def deployment(self) -> dict:
        """Pods of both cards have the label of the one Service."""
        manifest = workload(self.target, replicas=1)
        labels = {"app": NAME, "card": self.name}
        template = manifest["spec"]["template"]["metadata"]
        template["labels"] |= labels
        template["annotations"][KIND_ANNOTATION] = self.kind
        if self.cpu:
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            container["resources"]["requests"] = {"cpu": self.cpu}
        manifest["spec"]["selector"] = {"matchLabels": labels}
        return manifest


CARDS = (Card("fast", "h100-8b", 4.0), Card("slow", "l4-small", 0.8))
# One card at two prices; a quota may be of the pods that request CPU alone.
PRICES = (Card("spot", "l4-small", 0.8, cpu="1m"), Card("dear", "l4-small", 4.0))
CROWD_PER_SECOND = 30.0


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """Arrivals are those of Envoy."""
    return ("--gateway-profile=envoy-gateway",)


@pytest.fixture
def cards() -> tuple[Card, ...]:
    """The pools."""
    return CARDS


@pytest.fixture
def front(rig: Rig, tenant: Tenant, cards: tuple[Card, ...]) -> Iterator[EnvoyFront]:
    """Envoy before both Deployments."""
    for card in cards:
        tenant.apps.create_namespaced_deployment(tenant.namespace, card.deployment())
    found = EnvoyFront(rig, tenant.namespace)
    found.create(NAME)
    with rig.scrape_plan_kept():
        found.start()
        wait_for_answer(found.url)
        yield found
        found.stop()


def test_a_mix_of_cards_serves_while_one_of_them_loses_pods(
    rig: Rig, tenant: Tenant, operator: Operator, front: EnvoyFront, tmp_path: Path
) -> None:
    """The cheapest mix is planned, and clients keep their objectives through three losses."""
    objectives = [
        {"metric": "ttft", "percentile": 95, "threshold": f"{TTFT_SECONDS:g}s"},
        {"metric": "tpot", "percentile": 95, "threshold": f"{1000 * TPOT_SECONDS:g}ms"},
    ]
    alone = {"targetRef": None, "replicas": None, "coldStart": None}
    tenant.create_slo(
        NAME, **alone, gateway={"name": NAME}, objectives=objectives,
        pools=[card.pool() for card in CARDS],
    )  # fmt: skip
    trace = steady_trace(
        tmp_path / "mix.csv", rate=RATE_PER_SECOND, seconds=60.0, spread=LENGTH_SPREAD
    )
    plan = {
        "url": front.url, "retries": 3, "timeout_seconds": 60.0,
        "traffic": {
            "name": NAME, "namespace": tenant.namespace, "selector": {}, "trace": str(trace),
            "duration_seconds": SECONDS,
        },
    }  # fmt: skip
    clients, path = start_clients(rig, NAME, plan)
    tenant.wait(
        lambda: all("LeastCost" in _reasons(tenant, card.name) for card in CARDS),
        what="both counts are decided together", timeout_seconds=PLANNED_WITHIN_SECONDS,
    )  # fmt: skip
    assert tenant.decision(NAME)["split"]["rule"] == "EvenByPod"
    assert [one["name"] for one in tenant.status(NAME)["pools"]] == ["fast", "slow"]
    for _ in range(LOSSES):
        (pod, *_) = _pods(tenant, "slow")
        tenant.core.delete_namespaced_pod(pod, tenant.namespace, grace_period_seconds=0)
        tenant.wait(lambda gone=pod: gone not in _pods(tenant, "slow"), what="a pod vanished")
        tenant.wait(lambda: tenant.ready_replicas(CARDS[1].target) > 0, what="it is replaced")
        ticks_pass(operator, 2)
    tenant.wait(lambda: not clients.running, what="the clients end", timeout_seconds=SECONDS)
    records = read_records(path)
    good = [one for one in records if one.meets(TTFT_SECONDS, TPOT_SECONDS)]
    assert len(records) > 0.9 * RATE_PER_SECOND * SECONDS
    assert len(good) > 0.95 * len(records)


@pytest.mark.parametrize("cards", [PRICES])
def test_what_a_quota_refuses_is_ordered_in_the_other_pool_until_it_is_gone(
    rig: Rig, tenant: Tenant, front: EnvoyFront, cards: tuple[Card, ...], tmp_path: Path
) -> None:
    """A quota of no more cheap pods, and a crowd: the dear pool serves it, with the price."""
    hard = {"hard": {"pods": "0"}, "scopes": ["NotBestEffort"]}
    quota = {"metadata": {"name": "spot"}, "spec": hard}
    tenant.core.create_namespaced_resource_quota(tenant.namespace, quota)
    alone = {"targetRef": None, "replicas": None, "coldStart": None}
    tenant.create_slo(
        NAME, **alone, gateway={"name": NAME}, pools=[card.pool() for card in cards]
    )  # fmt: skip
    trace = steady_trace(
        tmp_path / "crowd.csv", rate=CROWD_PER_SECOND, seconds=60.0, spread=LENGTH_SPREAD
    )
    plan = {
        "url": front.url, "retries": 3, "timeout_seconds": 60.0,
        "traffic": {
            "name": NAME, "namespace": tenant.namespace, "selector": {}, "trace": str(trace),
            "duration_seconds": 3.0 * PLANNED_WITHIN_SECONDS,
        },
    }  # fmt: skip
    clients, _ = start_clients(rig, NAME, plan)
    tenant.wait(
        lambda: "OtherPoolShort" in _reasons(tenant, "dear"),
        what="the dear pool serves for the cheap one", timeout_seconds=PLANNED_WITHIN_SECONDS,
    )  # fmt: skip
    assert "QuotaReached" in _reasons(tenant, "spot")
    assert tenant.decision(NAME)["split"]["lacking"]["spot"] > 0
    # None while the forecast of the crowd's rise is more than the dear pool carries.
    tenant.wait(
        lambda: tenant.decision(NAME)["split"].get("extraHourly", 0.0) > 0.0,
        what="the price of what is lacking", timeout_seconds=PLANNED_WITHIN_SECONDS,
    )  # fmt: skip
    assert len(_pods(tenant, "spot")) == 1
    tenant.wait(
        lambda: tenant.replicas(cards[0].target) == 2,
        what="one pod waits for its place", timeout_seconds=PLANNED_WITHIN_SECONDS,
    )  # fmt: skip
    tenant.wait(lambda: tenant.ready_replicas(cards[1].target) > 1, what="dear pods serve")
    tenant.core.delete_namespaced_resource_quota("spot", tenant.namespace)
    tenant.wait(
        lambda: tenant.ready_replicas(cards[0].target) > 1,
        what="the cheap pool comes back", timeout_seconds=PLANNED_WITHIN_SECONDS,
    )  # fmt: skip
    tenant.wait(
        lambda: "OtherPoolShort" not in _reasons(tenant, "dear"),
        what="nothing is lacking",
    )
    clients.stop()


def _pods(tenant: Tenant, card: str) -> list[str]:
    found = tenant.core.list_namespaced_pod(tenant.namespace, label_selector=f"card={card}").items
    return sorted(pod.metadata.name for pod in found if not pod.metadata.deletion_timestamp)


def _reasons(tenant: Tenant, pool: str) -> set[str]:
    """Of the steps of the pool's last decision."""
    decision = tenant.decision(NAME).get("pools", {}).get(pool, {})
    return {step["reason"] for step in decision.get("steps", ())}
