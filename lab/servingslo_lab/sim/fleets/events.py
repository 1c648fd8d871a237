"""What engines and a front end report of every step and every request, not only when scraped.

Some planners subscribe to such events. The simulator keeps the last step of each engine: the one
that it computes at that moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from servingslo_lab.sim.fleets.pods import PodPhase, SimulatedPod
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.layout import EngineRow, Requests
from servingslo_lab.sim.replicas.runs import step_end
from servingslo_lab.sim.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """One step of an engine, and its queue; counts are of requests.

    duration_seconds: 0 while idle. prefill_tokens: computed in the step; prefilled_tokens: of the
    same prompts, computed or cached before it. context_tokens: that its decoding requests hold.
    waiting_tokens: prompts of requests that have not begun. preempted: requests that wait for
    their second beginning, with preempted_tokens computed before.
    """

    duration_seconds: float = 0.0
    prefilling: int = 0
    prefill_tokens: int = 0
    prefilled_tokens: int = 0
    decoding: int = 0
    context_tokens: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    preempted: int = 0
    preempted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Requests that have arrived so far, and the current step of each ready engine by pod."""

    arrived: int
    steps: dict[str, EngineStep]


@runtime_checkable
class Subscriber(Protocol):
    """An autoscaler that receives events before each of its decisions."""

    def receive(self, events: Events) -> None:
        """Take the newest events."""


def publish(
    autoscaler: object,
    pods: Sequence[SimulatedPod],
    rows: Sequence[EngineRow],
    q: Requests,
    trace: Trace,
    now: float,
) -> None:
    """Give the newest events to an autoscaler that subscribes to them."""
    if not isinstance(autoscaler, Subscriber):
        return
    ready = [pod for pod in pods if pod.phase is PodPhase.READY]
    autoscaler.receive(
        Events(
            arrived=int(np.searchsorted(trace.arrival_seconds, now, side="right")),
            steps={pod.name: current_step(q, rows[pod.row]) for pod in ready},
        )
    )


def current_step(q: Requests, row: EngineRow) -> EngineStep:
    """The step that an engine of continuous batching computes now, and its queue."""
    ints = row.ints
    waiting = waiting_tokens = preempted = preempted_tokens = 0
    r = int(ints[layout.WAIT_HEAD])
    while r != layout.NONE:
        if q.generated[r] > 0:
            preempted += 1
            preempted_tokens += int(q.prompt[r]) + int(q.generated[r])
        else:
            waiting += 1
            waiting_tokens += int(q.prompt[r])
        r = int(q.next[r])
    if not ints[layout.IN_STEP]:
        return EngineStep(
            waiting=waiting, waiting_tokens=waiting_tokens,
            preempted=preempted, preempted_tokens=preempted_tokens,
        )  # fmt: skip
    prefill = int(ints[layout.STEP_PREFILL])
    prefilling = done = 0
    r = int(ints[layout.PREFILL_HEAD]) if prefill else layout.NONE
    while r != layout.NONE:
        prefilling += 1
        done += int(q.done_tokens[r])
        r = int(q.next[r])
    number, decoding = int(ints[layout.STEPS_DONE]) + 1, int(ints[layout.DECODING_COUNT])
    return EngineStep(
        duration_seconds=float(step_end(row, number) - step_end(row, number - 1)),
        prefilling=prefilling,
        prefill_tokens=prefill,
        prefilled_tokens=done - prefill,
        decoding=decoding,
        context_tokens=int(ints[layout.CONTEXT]) + decoding * number,
        waiting=waiting,
        waiting_tokens=waiting_tokens,
        preempted=preempted,
        preempted_tokens=preempted_tokens,
    )
