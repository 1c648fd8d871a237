"""Three models under 8 GPUs, two surges that overlap and a node that is lost, by the audit log.

With BUDGET_TABLE=path it writes the run as docs/lab/budget-node-lost.csv has it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.integration.audit import timed_writes
from tests.integration.operator_under_test import Operator, Tenant, steady_trace
from tests.integration.test_serving_budget import budget_of, status_of

from servingslo.adapters.clock import SystemClock
from servingslo_lab.rig.cluster import Rig

GPUS, NODE_GPUS = 8, 4
# Most important first.
PRIORITIES = {"chat": 20, "search": 10, "batch": 0}
# One replica of these engines serves about six such requests per second.
RATES_PER_SECOND = {"chat": 16.0, "search": 12.0, "batch": 34.0}
NODES = {"rig.servingslo.dev/of": "three-models"}
PATIENCE_SECONDS = 300.0

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """Budgets are enforced."""
    return ("budgets.enabled=true",)


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """Tenants may state priorities up to 20."""
    return ("--max-priority=20",)


@dataclass
class Story:
    """What happened when, and what the audit log has of it."""

    tenant: Tenant
    rig: Rig
    began_seconds: float = field(default_factory=SystemClock.now_seconds)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def mark(self, what: str) -> None:
        """Something that the test did now."""
        self.marks.append((SystemClock.now_seconds(), what))

    def wait(self, least: Mapping[str, int], most: Mapping[str, int], what: str) -> None:
        """Until specs have at least and at most so many replicas."""

        def reached() -> bool:
            return all(
                self.tenant.replicas(name) >= count for name, count in least.items()
            ) and all(self.tenant.replicas(name) <= count for name, count in most.items())

        self.tenant.wait(reached, what=what, timeout_seconds=PATIENCE_SECONDS)

    def rows(self) -> Iterator[tuple[float, str, dict[str, int]]]:
        """Seconds since the begin, the mark or '' for a write, and the counts of all specs."""
        counts = dict.fromkeys(PRIORITIES, 1)
        lines = self.rig.audit_log.read_text(encoding="utf-8").splitlines()
        writes = [
            (seconds, write.target.partition("/")[2], dict(write.values)["replicas"])
            for seconds, write in timed_writes(lines)
            if write.namespace == self.tenant.namespace and write.knob == "replicas"
        ]
        found = [(seconds, what, "", 0) for seconds, what in self.marks]
        found += [(seconds, "", name, count) for seconds, name, count in writes]
        for seconds, what, name, count in sorted(found):
            if name:
                counts[name] = count
            yield seconds - self.began_seconds, what, dict(counts)

    def table(self) -> str:
        """The rows as CSV."""
        head = ["second", "event", *PRIORITIES, "gpus_in_specs"]
        lines = [
            [f"{seconds:.0f}", what, *map(str, counts.values()), str(sum(counts.values()))]
            for seconds, what, counts in self.rows()
        ]
        return "\n".join(",".join(line) for line in [head, *lines]) + "\n"


def send(tenant: Tenant, name: str, folder: Path) -> None:
    """The traffic of a model, until it is ended."""
    trace = steady_trace(folder / f"{name}.csv", rate=RATES_PER_SECOND[name], seconds=30)
    tenant.begin_traffic(trace, name=name, duration_seconds=1700)


def test_three_models_share_eight_gpus_through_surges_and_a_lost_node(
    rig: Rig, tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """GPUs in specs are never above 8, and no model is below its minimum."""
    nodes = rig.add_nodes(GPUS // NODE_GPUS, gpus_per_node=NODE_GPUS, labels=NODES)
    with budget_of(rig, tenant, GPUS) as budget:
        for name, priority in PRIORITIES.items():
            tenant.create_deployment(name, pod={"nodeSelector": NODES})
            tenant.create_slo(name, priority=priority, replicas={"min": 1, "max": 8})
        for name in PRIORITIES:
            tenant.wait_condition("MetricsFresh", "True", name=name)
        tenant.wait(lambda: status_of(tenant, budget).get("granted"), what="a status")
        story = Story(tenant, rig)
        story.mark("batch begins")
        send(tenant, "batch", tmp_path)
        story.wait({"batch": 6}, {}, "batch has the rest")

        story.mark("surge of search")
        send(tenant, "search", tmp_path)
        story.wait({"search": 2}, {"batch": 5}, "search has GPUs of batch")
        story.mark("surge of chat")
        send(tenant, "chat", tmp_path)
        story.wait({"chat": 3, "search": 2}, {"batch": 3}, "chat has GPUs too")
        status = status_of(tenant, budget)
        assert status["granted"] <= GPUS
        assert {one["name"]: one["priority"] for one in status["claimants"]} == PRIORITIES

        story.mark("a node of 4 GPUs is lost")
        rig.remove_nodes(nodes[:1])
        tenant.wait(
            lambda: any(
                tenant.condition("ScalingLimited", name)[1] == "UnschedulablePods"
                for name in PRIORITIES
            ),
            what="pods without a place",
            timeout_seconds=PATIENCE_SECONDS,
        )
        story.mark("another node comes")
        rig.add_nodes(1, gpus_per_node=NODE_GPUS, labels=NODES)
        tenant.wait(
            lambda: all(tenant.ready_replicas(n) == tenant.replicas(n) for n in PRIORITIES),
            what="every pod serves",
            timeout_seconds=PATIENCE_SECONDS,
        )

        story.mark("both surges end")
        tenant.end_traffic("chat", "search")
        story.wait({"batch": 5}, {}, "batch has GPUs back")
        story.mark("end")

    if path := os.environ.get("BUDGET_TABLE"):
        Path(path).write_text(story.table(), encoding="utf-8")
    counts = [counts for _, _, counts in story.rows()]
    assert max(sum(one.values()) for one in counts) <= GPUS
    assert min(min(one.values()) for one in counts) >= 1
