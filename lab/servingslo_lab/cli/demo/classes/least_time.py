"""The least time of a job in hindsight: under the largest constant lane that chat bears.

The same requests on the simulator, at the replicas that were there: a policy that knew the traffic
would do no better with a constant lane.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import Observation
from servingslo.policy.knobs.in_flight.gateway import LIMIT
from servingslo.policy.routes import LANES
from servingslo_lab.rig.simulated.engine_pods import DEFAULT_KIND
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.fleets.fleet import ClassSpec, FleetSpec
from servingslo_lab.sim.fleets.result import RunResult
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.traces.trace import Trace, chosen_requests

CHAT, JOB = "chat", "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTraffic:
    """Chat's arrivals, and a job: prompt and output tokens of its requests, its workers.

    begin_seconds: of the job. pause_seconds: before a worker sends a refused request again.
    """

    chat: Trace
    job: Sequence[tuple[int, int]]
    workers: int
    begin_seconds: float
    pause_seconds: float

    def trace(self) -> Trace:
        """Both, with their classes; all of the job is due when it begins."""
        chat, count = self.chat, len(self.job)
        prompts, outputs = np.array(self.job, dtype=float).T
        both = replace(
            chat,
            arrival_seconds=np.concatenate(
                [chat.arrival_seconds, np.full(count, self.begin_seconds)]
            ),
            prompt_tokens=np.concatenate([chat.prompt_tokens, prompts]),
            output_tokens=np.concatenate([chat.output_tokens, outputs]),
            class_names=(*(CHAT,) * len(chat), *(JOB,) * count),
        )
        return chosen_requests(both, np.argsort(both.arrival_seconds, kind="stable"))


@dataclass(frozen=True, slots=True)
class _ConstantLane:
    """So many replicas, and a constant lane of the job."""

    replicas: int
    lane: int | None

    def decide(self, observation: Observation) -> Wanted:
        """The same at every tick; the lane is set once."""
        if self.lane is None:
            return Wanted(replicas=self.replicas)
        standing = observation.in_force[LANES].values.get(f"{JOB}.{LIMIT}")
        lanes = {} if standing == self.lane else {JOB: self.lane}
        return Wanted(replicas=self.replicas, lanes=lanes)


def pace_ratio(chat: Trace, tpot_seconds: Sequence[float], replicas: int, seed: int) -> float:
    """How much longer the engines' steps took than they should; 1 or more.

    Simulated engines sleep through their steps, and a busy machine wakes them late. tpot_seconds:
    of the requests of the fleet that served chat alone, by its clients.
    """
    fleet = FleetSpec(engine=DEFAULT_KIND, initial_replicas=replicas, max_replicas=replicas)
    result = simulate(fleet, chat, _ConstantLane(replicas, None), seed=seed)
    finite = [one for one in tpot_seconds if math.isfinite(one)]
    if not finite:
        return 1.0
    return max(float(np.median(finite) / np.nanmedian(result.tpot_seconds)), 1.0)


def least_seconds(
    traffic: JobTraffic,
    replicas: int,
    objectives: Sequence[Objective],
    seed: int,
    pace: float = 1.0,
) -> float:
    """Seconds from the job's begin to its end; inf if chat misses its objectives in any lane.

    pace: of the engines, as `pace_ratio` found it.
    """
    trace, best = traffic.trace(), math.inf
    law = engine_kind(DEFAULT_KIND).law
    fleet = FleetSpec(
        engine=DEFAULT_KIND,
        law=replace(law, **{name: pace * value for name, value in asdict(law).items()}),
        initial_replicas=replicas,
        max_replicas=replicas,
        classes=(
            ClassSpec(name=CHAT),
            ClassSpec(name=JOB, workers=traffic.workers, backoff_seconds=traffic.pause_seconds),
        ),
    )
    low, high = 1, traffic.workers
    while low <= high:
        lane = (low + high) // 2
        result = simulate(fleet, trace, _ConstantLane(replicas, lane), seed=seed)
        taken = _job_seconds(traffic, trace, result, objectives)
        if taken is not None:
            best, low = min(best, taken), lane + 1
        else:
            high = lane - 1
    return best


def _job_seconds(
    traffic: JobTraffic, trace: Trace, result: RunResult, objectives: Sequence[Objective]
) -> float | None:
    """The time of the job; None if chat missed an objective meanwhile, or it did not end."""
    job = np.array(trace.class_names) == JOB
    if not (result.status[job] == layout.FINISHED).all():
        return None
    ends = float((result.arrival_seconds + result.latency_seconds)[job].max())
    during = ~job & (result.arrival_seconds >= traffic.begin_seconds)
    during &= result.arrival_seconds <= ends
    for objective in objectives:
        measured = {
            LatencyMetric.TTFT: result.ttft_seconds,
            LatencyMetric.TPOT: result.tpot_seconds,
        }[objective.metric]
        within = float((measured[during] <= objective.threshold_seconds).mean())
        if within < objective.percentile / 100.0:
            return None
    return ends - traffic.begin_seconds
