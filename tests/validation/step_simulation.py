"""A step-level simulation of continuous batching, written apart from the product to check it.

One loop over events: arrivals, and ends of engine steps. Each step decodes every running sequence
once and fills the rest of the token budget with prompts, first come, first served. Sequences hold
KV blocks; when none is free the youngest is preempted and computed again. numba compiles the loop.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is simulated: step law in seconds, limits, replicas, routing."""

    a: float
    b: float
    c: float
    d: float
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_capacity_tokens: int
    replica_count: int = 1
    least_loaded: bool = True
    block_tokens: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the requests of the counted window saw, in seconds, and the state over time.

    itl_mean: all gaps together. running_mean: per replica, over time. departed_per_second: of the
    whole fleet in the counted window. steps: mean step duration by running sequences is not kept.
    """

    ttft: np.ndarray
    tpot: np.ndarray
    latency: np.ndarray
    wait: np.ndarray
    itl_mean: float
    running_mean: float
    running_variance: float
    departed_per_second: float
    preemption_count: int


@njit(cache=True)
def _run(  # noqa: C901, PLR0912, PLR0915 - one loop for the compiler
    arrivals,
    prompts,
    cached,
    outputs,
    pick,
    a,
    b,
    c,
    d,
    seqs,
    budget,
    blocks,
    block,
    fleet,
    least_loaded,
    window_start,
    window_end,
):
    count = len(arrivals)
    left = prompts - cached  # prompt tokens still to prefill
    held = np.zeros(count, np.int64)  # tokens in the KV cache
    owned = np.zeros(count, np.int64)  # blocks
    made = np.zeros(count, np.int64)  # tokens generated
    first = np.full(count, np.nan)
    last = np.full(count, np.nan)
    started = np.full(count, np.nan)
    after = np.full(count, -1, np.int64)  # linked list of the waiting
    head = np.full(fleet, -1, np.int64)
    tail = np.full(fleet, -1, np.int64)
    running = np.full((fleet, seqs), -1, np.int64)
    part = np.zeros((fleet, seqs), np.int64)  # prompt tokens in the step under way
    size = np.zeros(fleet, np.int64)
    load = np.zeros(fleet, np.int64)
    free = np.full(fleet, blocks, np.int64)
    step_end = np.full(fleet, np.inf)
    area = 0.0
    square = 0.0
    clock = 0.0
    departed = 0
    preempted_count = 0
    upcoming = 0
    while True:
        engine = 0
        for r in range(1, fleet):
            if step_end[r] < step_end[engine]:
                engine = r
        arrival = arrivals[upcoming] if upcoming < count else np.inf
        now = min(arrival, step_end[engine])
        if now == np.inf or now > window_end * 1.5 + 1e6:
            break
        low = max(clock, window_start)
        high = min(now, window_end)
        if high > low:
            for r in range(fleet):
                area += size[r] * (high - low)
                square += size[r] * size[r] * (high - low)
        clock = now
        if arrival <= step_end[engine]:
            target = pick[upcoming]
            if least_loaded:
                for offset in range(fleet):
                    r = (pick[upcoming] + offset) % fleet
                    if load[r] < load[target]:
                        target = r
            load[target] += 1
            if tail[target] < 0:
                head[target] = upcoming
            else:
                after[tail[target]] = upcoming
            tail[target] = upcoming
            upcoming += 1
            if step_end[target] < np.inf:
                continue
            engine = target
        else:
            # The step ends: tokens appear, finished sequences leave.
            kept = 0
            for i in range(size[engine]):
                q = running[engine, i]
                tokens = part[engine, i]
                produced = False
                if tokens == -1:
                    made[q] += 1
                    produced = True
                elif tokens > 0:
                    left[q] -= tokens
                    if left[q] == 0:
                        made[q] += 1
                        produced = True
                        if made[q] == 1:
                            first[q] = now
                if produced and made[q] >= outputs[q]:
                    last[q] = now
                    free[engine] += owned[q]
                    load[engine] -= 1
                    if window_start <= now < window_end:
                        departed += 1
                else:
                    running[engine, kept] = q
                    kept += 1
            size[engine] = kept
        # The next step is put together.
        room = budget
        decoding = 0
        context = 0
        prefill = 0
        evicted = False
        i = 0
        while i < size[engine]:
            q = running[engine, i]
            want = 1 if left[q] == 0 else min(left[q], room)
            if want > room:
                want = 0
            need = (held[q] + want + block - 1) // block - owned[q]
            alive = True
            while need > free[engine]:
                victim = running[engine, size[engine] - 1]
                size[engine] -= 1
                evicted = True
                preempted_count += 1
                free[engine] += owned[victim]
                owned[victim] = 0
                left[victim] = prompts[victim] + made[victim]
                held[victim] = 0
                after[victim] = head[engine]
                head[engine] = victim
                if tail[engine] < 0:
                    tail[engine] = victim
                if victim == q:
                    alive = False
                    break
            if not alive:
                break
            if need > 0:
                free[engine] -= need
                owned[q] += need
            if left[q] == 0:
                part[engine, i] = -1 if want == 1 else 0
                decoding += want
                context += held[q] * want
            else:
                part[engine, i] = want
                prefill += want
            held[q] += want
            room -= want
            i += 1
        while not evicted and head[engine] >= 0 and size[engine] < seqs and room > 0:
            q = head[engine]
            want = min(left[q], room)
            base = cached[q] if made[q] == 0 else 0
            # The whole sequence must fit before its first chunk starts, as engines do by default.
            need = (base + left[q] + block - 1) // block
            if need > free[engine]:
                break
            free[engine] -= need
            owned[q] = need
            held[q] = base + want
            room -= want
            prefill += want
            if np.isnan(started[q]):
                started[q] = now
            running[engine, size[engine]] = q
            part[engine, size[engine]] = want
            size[engine] += 1
            head[engine] = after[q]
            if head[engine] < 0:
                tail[engine] = -1
        if size[engine] == 0:
            step_end[engine] = np.inf
        else:
            step_end[engine] = now + a + b * decoding + c * prefill + d * context
    return first, last, started, area, square, departed, preempted_count


def _pass(fleet, arrivals, prompts, cached, outputs, generator, window):
    """Times of the first token, the last one and the start of each request, and sums over time."""
    pick = generator.integers(0, fleet.replica_count, len(arrivals))
    return _run(
        arrivals, prompts, cached, outputs, pick, fleet.a, fleet.b, fleet.c,
        fleet.d, fleet.max_num_seqs, fleet.max_num_batched_tokens,
        fleet.kv_capacity_tokens // fleet.block_tokens, fleet.block_tokens, fleet.replica_count,
        fleet.least_loaded, *window,
    )  # fmt: skip


def simulate(
    fleet: Fleet,
    arrivals: np.ndarray,
    prompts: np.ndarray,
    outputs: np.ndarray,
    generator: np.random.Generator,
    cached_ratio: float = 0.0,
    warm_up_ratio: float = 0.15,
) -> Outcome:
    """Outcome of these arrivals (seconds, sorted) with these lengths (tokens)."""
    prompts = prompts.astype(np.int64)
    cached = np.minimum((prompts * cached_ratio).astype(np.int64), prompts - 1)
    start, end = warm_up_ratio * arrivals[-1], 0.95 * arrivals[-1]
    first, last, started, area, square, departed, preempted = _pass(
        fleet, arrivals, prompts, cached, outputs.astype(np.int64), generator, (start, end)
    )
    counted = (arrivals >= start) & (arrivals < end) & ~np.isnan(last)
    several = counted & (outputs > 1)
    span = last[several] - first[several]
    gaps = outputs[several] - 1
    time = (end - start) * fleet.replica_count
    mean = area / time
    return Outcome(
        ttft=(first - arrivals)[counted],
        tpot=span / gaps,
        latency=(last - arrivals)[counted],
        wait=(started - arrivals)[counted],
        itl_mean=float(span.sum() / gaps.sum()),
        running_mean=mean,
        running_variance=square / time - mean**2,
        departed_per_second=departed / (end - start),
        preemption_count=preempted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOutcome:
    """What clients of two pools saw, in seconds: the first token is that of decode.

    tpot: of requests with several tokens. handed: time before decode of those that pass prefill.
    """

    ttft: np.ndarray
    tpot: np.ndarray
    latency: np.ndarray
    handed: np.ndarray


def simulate_pools(
    prefill: Fleet,
    decode: Fleet,
    arrivals: np.ndarray,
    lengths: tuple[np.ndarray, np.ndarray],
    through: np.ndarray,
    transfer_seconds: np.ndarray,
    generator: np.random.Generator,
) -> PathOutcome:
    """Outcome of requests of which some pass the prefill pool, then a transfer, then decode.

    lengths: prompt and output tokens. through: which pass it; transfer_seconds: of each request.
    A prefill engine makes one token. Decode computes the last prompt token of those that pass, and
    whole prompts of the others. It never holds prefill up, so that the pools are simulated in turn.
    """
    prompts, outputs = (tokens.astype(np.int64) for tokens in lengths)
    window = 0.15 * arrivals[-1], 0.95 * arrivals[-1]
    there = arrivals.astype(float)
    one, none = np.ones(through.sum(), np.int64), np.zeros(through.sum(), np.int64)
    first, *_ = _pass(prefill, arrivals[through], prompts[through], none, one, generator, window)
    there[through] = first + transfer_seconds[through]
    order = np.argsort(there, kind="stable")
    cached = np.where(through, prompts - 1, 0)
    found = _pass(
        decode, there[order], prompts[order], cached[order], outputs[order], generator, window
    )
    first, last = np.empty(len(arrivals)), np.empty(len(arrivals))
    first[order], last[order] = found[0], found[1]
    counted = (arrivals >= window[0]) & (arrivals < window[1]) & ~np.isnan(last)
    several = counted & (outputs > 1)
    return PathOutcome(
        ttft=(first - arrivals)[counted],
        tpot=(last - first)[several] / (outputs[several] - 1),
        latency=(last - arrivals)[counted],
        handed=(there - arrivals)[counted & through],
    )


def poisson_arrivals(rate: float, count: int, generator: np.random.Generator) -> np.ndarray:
    """Arrival times of a Poisson process, seconds."""
    return np.cumsum(generator.exponential(1.0 / rate, count))


def bursty_arrivals(
    rate: float, count: int, swing: float, dwell_seconds: float, generator: np.random.Generator
) -> np.ndarray:
    """Arrival times of a Poisson process whose rate alternates between rate·(1 ± swing), seconds.

    dwell_seconds: mean of the exponential time in each state.
    """
    horizon = count / rate
    switches = np.cumsum(generator.exponential(dwell_seconds, int(2.5 * horizon / dwell_seconds)))
    operational = poisson_arrivals(1.0, count, generator)
    edges = np.concatenate(([0.0], switches))
    factors = np.where(np.arange(len(switches)) % 2 == 0, 1.0 + swing, 1.0 - swing) * rate
    passed = np.concatenate(([0.0], np.cumsum(np.diff(edges) * factors)))
    return np.interp(operational[operational < passed[-1]], passed, edges)


def dispersion_index(arrivals: np.ndarray, window_seconds: float) -> float:
    """Variance over mean of the counts in windows of this length."""
    counts = np.bincount((arrivals / window_seconds).astype(np.int64))[:-1]
    return float(counts.var() / counts.mean())
