"""The production planner as an autoscaler of the simulator: `plan()` and nothing else."""

from dataclasses import dataclass, replace

from servingslo.models.engine.service_time import EngineLimits
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    BatchingTargets,
    Limits,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    Targets,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stages import STAGES
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.pods import WORKLOAD_NAME

_TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name=WORKLOAD_NAME)


def benchmark_targets(
    *,
    ttft_seconds: float = 1.0,
    tpot_seconds: float = 0.05,
    percentile: float = 99.0,
    max_replicas: int | None = None,
) -> Targets:
    """The benchmark's resource: two objectives at one percentile, defaults otherwise."""
    return Targets(
        target=_TARGET,
        objectives=(
            Objective(
                metric=LatencyMetric.TTFT, percentile=percentile, threshold_seconds=ttft_seconds
            ),
            Objective(
                metric=LatencyMetric.TPOT, percentile=percentile, threshold_seconds=tpot_seconds
            ),
        ),
        replicas=ReplicaTargets(maximum=max_replicas),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The planner's decisions that are carried out in addition to replicas."""

    batching: bool = False
    admission: bool = False


class Production:
    """The planner with its state; its decisions are carried out as in the controller.

    decisions: all of them, for reports. stages: those that a tick runs; by default all.
    The admission limit in flight is set on each engine.
    """

    def __init__(self, targets: Targets, knobs: Knobs | None = None) -> None:
        self.stages = STAGES
        self._knobs = knobs or Knobs()
        batching = BatchingMode.AUTO if self._knobs.batching else BatchingMode.OFF
        admission = AdmissionMode.RECOMMEND if self._knobs.admission else AdmissionMode.OFF
        if targets.classes and targets.admission_mode is AdmissionMode.AUTO:
            admission = AdmissionMode.AUTO
        self._targets = replace(
            targets,
            batching=replace(targets.batching, mode=batching)
            if targets.batching
            else BatchingTargets(mode=batching),
            admission_mode=admission,
            admission_enforced=self._knobs.admission,
        )
        self._limits = Limits(batching_apply_enabled=self._knobs.batching)
        self._state = PlannerState()
        self.decisions: list[Decision] = []

    def decide(self, observation: Observation) -> Wanted:
        """The planner's decision, limited to the enabled knobs."""
        decision, self._state = plan(
            observation,
            self._targets,
            self._limits,
            self._state,
            observation.time_seconds,
            stages=self.stages,
        )
        self.decisions.append(decision)
        return Wanted(
            replicas=decision.replicas_after if decision.apply_replicas else None,
            limits=limits_wanted(observation, decision) if decision.batching.apply else None,
            max_queued=decision.admission.in_flight_limit if self._knobs.admission else None,
            max_waiting=decision.admission.queue_limit if self._knobs.admission else None,
            lanes={name: b for one in decision.knobs.values() for name, b in one.bounds.items()},
        )


def limits_wanted(observation: Observation, decision: Decision) -> EngineLimits | None:
    """The limits that a decision sets; None if not all of them are known."""
    engines = [engine for pod in observation.pods for engine in pod.engines]
    capacity = next((e.kv_capacity_tokens for e in engines if e.kv_capacity_tokens), None)
    seqs = decision.batching.recommended_max_num_seqs
    tokens = decision.batching.recommended_max_num_batched_tokens
    if capacity is None or seqs is None or tokens is None:
        return None
    return EngineLimits(
        max_num_seqs=seqs, max_num_batched_tokens=tokens, kv_capacity_tokens=capacity
    )
