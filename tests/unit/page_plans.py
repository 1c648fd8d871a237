"""Decisions from pages of pods: through a store, the reader and the planner, tick after tick."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.unit.engine_pages import NAMESPACE, Targets, readings
from tests.unit.policy_world import TARGETS

from servingslo.estimation.sample import PodSample
from servingslo.explain.conditions.derived import conditions as conditions_of
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState

LATENCY = (Objective(metric=LatencyMetric.LATENCY, percentile=95.0, threshold_seconds=5.0),)
TTFT = (Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),)


def of_pods(*pages: Any) -> Targets:
    """Targets chat-0, chat-1, …, each with what its function of the time makes; None: no page."""

    def targets(seconds: float) -> Any:
        for place, page in enumerate(pages):
            if page is not None:
                labels = {"pod": f"chat-{place}", "instance": f"10.0.0.{place}:8000", "job": "e"}
                yield labels, page(seconds)

    return targets


def decisions(
    targets: Targets,
    pods: int,
    objectives: Sequence[Objective] = TTFT,
    *,
    ticks: int = 30,
    of_pod: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Decision]:
    """What is decided about so many pods, which stay as they are whatever is wanted.

    of_pod: further fields of a pod's sample, by its name.
    """
    names = [f"chat-{place}" for place in range(pods)]
    stated = replace(TARGETS, objectives=tuple(objectives))
    state, found = PlannerState(), []
    for now, metrics in readings(targets, ticks):
        assert metrics.problem is None, metrics.problem
        read_as = metrics.recognize(NAMESPACE, None)(names)
        samples = tuple(
            PodSample(
                name=name, ready=True, age_seconds=9e3, ready_for_seconds=9e3,
                engines=metrics.pods[NAMESPACE, name].engines
                if (NAMESPACE, name) in metrics.pods else (),
                **(of_pod or {}).get(name, {}),
            )
            for name in names
        )  # fmt: skip
        observation = Observation(
            time_seconds=now, namespace=NAMESPACE, name="chat", desired_replicas=pods,
            current_replicas=pods, runtime=read_as.runtime, pods=samples,
        )  # fmt: skip
        decision, state = plan(observation, stated, Limits(), state, now)
        found.append(decision)
    return found


def conditions(decision: Decision) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition."""
    told = conditions_of(decision, generation=1, now_seconds=decision.time_seconds)
    return {one.type: (one.status.value, one.reason.value, one.message) for one in told}
