"""Two classes behind a real Envoy: what chat leaves goes to a job, and nothing of chat is lost."""

from pathlib import Path

import pytest
from tests.dashboards.servingslo import queries
from tests.integration.gateway_manifests import LAW, MANAGED
from tests.integration.operator_under_test import Operator, Tenant, steady_trace
from tests.integration.promql import series_of

from servingslo_lab.cli.demo.system import start_clients
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.gateways.envoy_front import EnvoyFront, policy_manifest
from servingslo_lab.rig.simulated.http_clients import Ending, read_records

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow(
        "servingslo.policy.rules.needs",
        "servingslo.policy.knobs.lanes",
        "servingslo.controller.actuators",
    ),
]
KIND = "BackendTrafficPolicy"
HEADER = ("x-class", "job")
CLASSES = (
    {"name": "chat", "priority": 10, "route": "chat"},
    {"name": "job", "priority": -10, "route": "job"},
)
REFUSED = "upstream_rq_active_overflow"
ROUTES = ("chat", "job")
CHAT_PER_SECOND, CHAT_SECONDS = 3.0, 90.0
JOB_REQUESTS, WORKERS = 240, 96


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator lists the kind."""
    return (f"admission.kinds[0]={KIND}", "gateway.profile=envoy-gateway")


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart would start it."""
    return (f"--admission-kind={KIND}", "--gateway-profile=envoy-gateway")


@pytest.fixture
def front(rig: Rig, tenant: Tenant) -> EnvoyFront:
    """A route and a labelled policy for each class, before two engines of few slots."""
    tenant.create_deployment(replicas=2, args=("--max-num-seqs=16",))
    found = EnvoyFront(rig, tenant.namespace)
    found.create("chat")
    found.create_route("job", "chat", HEADER)
    for route in ROUTES:
        found.put_policy(policy_manifest(route, route=route, labels=MANAGED))
    return found


def lane(front: EnvoyFront, route: str) -> int:
    """The bound of a class's policy; 0 while it has none."""
    breaker = front.policy(route)["spec"].get("circuitBreaker") or {}
    return int(breaker.get("maxParallelRequests") or 0)


def in_force(tenant: Tenant, front: EnvoyFront) -> bool:
    """Whether the job's lane is what chat leaves, and Envoy has it.

    Envoy has a written lane only once it is translated, seconds later on a busy machine.
    """
    found = {one["name"]: one for one in tenant.status().get("classes") or ()}
    left = lane(front, "job")
    return (
        found.get("chat", {}).get("inFlight", 0.0) > 0.0
        and 0 < left < lane(front, "chat")
        and front.bound("job") == left
    )


def class_panels(namespace: str) -> set[str]:
    """The dashboard's queries about classes, of every ServingSLO of a namespace."""
    chosen = {"$namespace": namespace, "$name": ".*", "$pool": ".*"}
    found = set()
    for _, query in queries():
        if "servingslo_class_" in query:
            for name, value in chosen.items():
                query = query.replace(name, value)  # noqa: PLW2901 - one variable after another
            found.add(query)
    return found


def classes_in(rig: Rig, query: str) -> set[str]:
    """The classes that a query has data of."""
    return {one["metric"]["class"] for one in series_of(rig.prometheus_url, query)}


def test_a_job_fills_what_chat_leaves(
    rig: Rig, tenant: Tenant, operator: Operator, front: EnvoyFront, tmp_path: Path
) -> None:
    """Chat is all served in time; the job is refused beyond its lane, and is done all the same.

    Each panel about classes has both; no lane is reported that does not hold.
    """
    with rig.scrape_plan_kept():
        front.start()
        rig.configure_prometheus(static_targets={"servingslo": [operator.metrics_address]})
        tenant.create_slo(
            replicas={"min": 2, "max": 2}, serviceLaw=LAW, admission={"mode": "Auto"},
            classes=CLASSES,
        )  # fmt: skip
        trace = steady_trace(tmp_path / "chat.csv", rate=CHAT_PER_SECOND, seconds=CHAT_SECONDS)
        traffic = {
            "name": "chat", "namespace": tenant.namespace, "selector": {}, "trace": str(trace),
            "duration_seconds": CHAT_SECONDS,
        }  # fmt: skip
        chat, chat_records = start_clients(
            rig, f"{tenant.namespace}-chat", {"url": front.url, "traffic": traffic}
        )
        tenant.wait(lambda: in_force(tenant, front), what="Envoy has the job's lane beside chat")
        plan = {
            "url": front.url, "requests": [(256, 64)] * JOB_REQUESTS, "workers": WORKERS,
            "headers": dict((HEADER,)),
        }  # fmt: skip
        job, job_records = start_clients(rig, f"{tenant.namespace}-job", plan, "job_clients")
        panels = class_panels(tenant.namespace)
        assert panels
        tenant.wait(
            lambda: all(classes_in(rig, query) == set(ROUTES) for query in panels),
            what="both classes in every panel",
        )
        tenant.wait(lambda: not job.running, what="the job is done", timeout_seconds=240.0)
        tenant.wait(lambda: not chat.running, what="chat has ended", timeout_seconds=120.0)
        refused = {route: front.counter(REFUSED, route) for route in ROUTES}
        front.stop()
    served = read_records(chat_records)
    assert {one.ending for one in served} == {Ending.FINISHED}
    in_time = sum((one.ttft_seconds or 99.0) <= 2.0 for one in served)
    assert in_time >= 0.95 * len(served)
    done = read_records(job_records)
    assert len(done) == JOB_REQUESTS
    assert refused == {"chat": 0.0, "job": float(sum(one.refusals for one in done))}
    assert refused["job"] > 0.0
    assert tenant.replicas() == 2
    assert not operator.log_lines("LimitNotHeld")
    assert not operator.log_lines("state=Unbound")
