"""A simulated vLLM engine for any clock: submit, advance, read its metrics.

The same engine runs on a wall clock in the rig and on a virtual clock in a backtest. Callers pass
the time, in seconds of one clock that never goes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.replicas import intake, kernel, layout
from servingslo_lab.sim.replicas.runs import step_end


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    REJECTED = "rejected"
    ABORTED = "aborted"
    FAILED = "failed"
    INVALID = "invalid"


_OUTCOMES = {
    layout.FINISHED: Outcome.FINISHED,
    layout.REJECTED: Outcome.REJECTED,
    layout.ABORTED: Outcome.ABORTED,
    layout.FAILED: Outcome.FAILED,
    layout.INVALID: Outcome.INVALID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """The result of one request; times in seconds on the simulation's clock.

    first_token_seconds: None if no token was emitted. finish_seconds: its end, for any outcome.
    """

    outcome: Outcome
    arrival_seconds: float
    first_token_seconds: float | None
    finish_seconds: float
    prompt_tokens: int
    output_tokens: int
    preemption_count: int = 0

    @property
    def ttft_seconds(self) -> float | None:
        """Time to the first token, None if there was none."""
        if self.first_token_seconds is None:
            return None
        return self.first_token_seconds - self.arrival_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time of an output token after the first; None unless finished, 0 for one token."""
        if self.outcome is not Outcome.FINISHED or self.first_token_seconds is None:
            return None
        if self.output_tokens == 1:
            return 0.0
        return (self.finish_seconds - self.first_token_seconds) / (self.output_tokens - 1)

    def meets(self, ttft_seconds: float, tpot_seconds: float) -> bool:
        """Whether the request finished within both objectives."""
        ttft, tpot = self.ttft_seconds, self.tpot_seconds
        return (
            ttft is not None and tpot is not None and ttft <= ttft_seconds and tpot <= tpot_seconds
        )


class Scheduling(StrEnum):
    """How an engine orders its queue; the names of vLLM's --scheduling-policy."""

    FCFS = "fcfs"
    PRIORITY = "priority"


POLICIES: Mapping[Scheduling, int] = MappingProxyType(
    {Scheduling.FCFS: layout.FCFS, Scheduling.PRIORITY: layout.PRIORITY}
)


class RequestTable:
    """The requests of a fleet; entries of ended requests are reused."""

    def __init__(self) -> None:
        self.columns = layout.new_requests()
        self._free: list[int] = []

    def add(
        self, *, arrival: float, prompt_tokens: int, output_tokens: int,
        cached_ratio: float = 0.0, priority: int = 0,
    ) -> int:  # fmt: skip
        """The index of a new request; arrival in seconds, at least one token each way.

        cached_ratio: share of the prompt in the prefix cache, in whole blocks; at least one token
        is always computed. priority: lower values go first, if the engine uses priorities.
        """
        prompt, output = max(prompt_tokens, 1), max(output_tokens, 1)
        whole_blocks = int(min(cached_ratio * prompt, prompt - 1)) // layout.PHASES
        if self._free:
            index = self._free.pop()
            layout.reset_request(self.columns, index, arrival, prompt, output)
        else:
            index = layout.add_request(self.columns, arrival, prompt, output)
        self.columns.cached[index] = whole_blocks * layout.PHASES
        self.columns.priority[index] = priority
        return index

    def take(self, index: int) -> RequestRecord:
        """The record of an ended request; its entry is free afterwards."""
        q = self.columns
        first_token = q.first_token[index]
        record = RequestRecord(
            outcome=_OUTCOMES[q.status[index]],
            arrival_seconds=q.arrival[index],
            first_token_seconds=first_token if first_token >= 0 else None,
            finish_seconds=q.finish[index],
            prompt_tokens=q.prompt[index],
            output_tokens=q.output[index],
            preemption_count=q.preemptions[index],
        )
        q.status[index] = layout.PENDING
        self._free.append(index)
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Cumulative bucket counts (the last one is of the infinite bucket), and the sum of values."""

    upper_bounds: tuple[float, ...]
    cumulative_counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of observations."""
        return self.cumulative_counts[-1]


class Engine:
    """One simulated engine; see `kernel` for what it models.

    requests: the table of its requests, shared by the engines of a fleet.
    max_queued: bound on running + waiting, None for none. max_model_len: longest sequence, which
    sets the buckets of length histograms.
    """

    def __init__(
        self,
        *,
        law: ServiceLaw,
        limits: EngineLimits,
        requests: RequestTable | None = None,
        max_queued: int | None = None,
        max_model_len: int = 131072,
        slowness: float = 1.0,
        scheduling: Scheduling = Scheduling.FCFS,
    ) -> None:
        self.law = law
        self.limits = limits
        self.max_model_len = max_model_len
        self.requests = requests or RequestTable()
        self.row = layout.new_engine(
            law, limits, max_queued=max_queued, max_model_len=max_model_len,
            policy=POLICIES[scheduling],
        )  # fmt: skip
        self.row.floats[layout.SLOWNESS] = slowness

    def submit(self, request: int, now: float) -> bool:
        """Submit a request of the table; False if it was refused (503 or 400)."""
        kernel.advance(self.requests.columns, self.row, now)
        return intake.submit(self.requests.columns, self.row, request, now)

    def advance(self, until: float) -> list[int]:
        """Simulate until this time; returns the requests that ended since the last call."""
        kernel.advance(self.requests.columns, self.row, until)
        return self.collect()

    def collect(self) -> list[int]:
        """Requests that ended since the last call, in order of their end."""
        over = []
        index = self.row.ints[layout.DONE_HEAD]
        self.row.ints[layout.DONE_HEAD] = layout.NONE
        while index != layout.NONE:
            over.append(index)
            index = self.requests.columns.next[index]
        over.reverse()
        return over

    def abort(self, request: int, now: float) -> None:
        """Abort a request whose client left; it leaves at the end of the current step at latest."""
        kernel.advance(self.requests.columns, self.row, now)
        intake.abort(self.requests.columns, self.row, request, now)

    def fail_all(self, now: float) -> list[int]:
        """The engine fails: returns all ended and lost requests. It must not be used again."""
        over = self.advance(now)
        q = self.requests.columns
        for head in (layout.RUN_HEAD, layout.WAIT_HEAD):
            index = self.row.ints[head]
            while index != layout.NONE:
                over.append(index)
                index = q.next[index]
        intake.lose(q, self.row, now)
        return over

    @property
    def in_system(self) -> int:
        """Requests running and waiting."""
        return self.row.ints[layout.RUNNING] + self.row.ints[layout.WAITING_COUNT]

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return self.row.ints[layout.RUNNING]

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self.row.ints[layout.WAITING_COUNT]

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the usable KV blocks that is in use."""
        ints = self.row.ints
        return 1.0 - ints[layout.FREE_BLOCKS] / ints[layout.BLOCKS]

    @property
    def kv_block_count(self) -> int:
        """Blocks as vLLM reports them, the null block included."""
        return self.row.ints[layout.BLOCKS] + 1

    @property
    def busy_seconds(self) -> float:
        """Time spent in completed steps."""
        floats, ints = self.row.floats, self.row.ints
        if not ints[layout.IN_STEP]:
            return floats[layout.BUSY_SECONDS]
        ended = step_end(self.row, ints[layout.STEPS_DONE])
        return floats[layout.BUSY_SECONDS] + ended - floats[layout.RUN_START]

    def counter(self, place: int) -> int:
        """A cumulative count, by its index in `layout`."""
        return self.row.ints[place]

    def histogram(self, number: int) -> Histogram:
        """A histogram, by its number in `layout`."""
        row = self.row
        low, high = row.offsets[number], row.offsets[number + 1]
        total = 0
        cumulative = []
        for count in row.counts[low + number : high + number + 1]:
            total += int(count)
            cumulative.append(total)
        return Histogram(
            upper_bounds=tuple(row.edges[low:high]),
            cumulative_counts=tuple(cumulative),
            sum=float(row.sums[number]),
        )
