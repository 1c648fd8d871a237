"""What must hold of every story, whatever went wrong in it. Knows nothing of the operator's code.

It reads the writes that the API server took, with what was in force there at that moment, the log
lines, and how the cluster stood at the end. Physics is that of the engines as they truly are.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tests.chaos.cluster import TARGET, Write
from tests.chaos.story import CALM_TICKS, PREFILL, TICK_SECONDS, Told

# What one engine of the stories can serve at most, in requests per second: 64 sequences in steps
# of 51 ms (15 + 64 × (0.15 + 1040 tokens × 0.0004) ms) for 760 tokens on average, and 53 ms of
# prefill for each: 1 / (760 × 0.051 / 64 + 0.053).
MOST_PER_ENGINE = 1.5
# A prefill pool's engine: 1 / 0.053 s. Decode alone is faster by at most the prefill that is gone:
# 1 / (760 × 0.051 / 64).
MOST_OF_PREFILL, MOST_OF_DECODE = 19.0, 1.65
# Below this rate prefill engines are idle 99 % of the time. From so little a law may not be learnt
# in the calm, and without one nothing is taken away.
LEAST_RATE_OF_A_LAW = 0.5
# Objectives are met up to some two thirds of that; demand is planned for at a high quantile and
# for a crowd that may be (a second factor of two), over what comes within a cold start.
ORDER_FACTOR = 3.0
ORDER_SLACK = 2
# Requests that wait are to be gone within a minute.
DRAIN_SECONDS = 60.0
# What a scrape counts of a Poisson stream is off by up to so many of its standard deviations.
DEVIATIONS = 3.0
SCRAPE_SECONDS = 15.0
LINES_PER_TICK = 1.5
WARNINGS_PER_TICK = 0.25
LEARNED_BYTES = 8_000
EVENTS_PER_TICK = 1.0
STATUS_PER_TICK = 1.0

_CHANGED = re.compile(r"changed .*knob=replicas.* replicas=(\d+)->(\d+).* outcome=(\S+)")


def violations(told: Told) -> list[str]:
    """What did not hold, one line each; none where all did."""
    return [*_of_writes(told), *_of_log(told), *_of_end(told)]


def per_engine(target: str) -> float:
    """What one engine of a target can serve at most, in requests per second."""
    if target == TARGET:
        return MOST_PER_ENGINE
    return MOST_OF_PREFILL if target == PREFILL else MOST_OF_DECODE


def need(rate: float, target: str = TARGET) -> int:
    """Replicas without which a rate cannot be served, whatever the objectives."""
    return max(math.ceil(rate / per_engine(target)), 1)


def bounds_of(spec: Mapping[str, Any], target: str) -> Mapping[str, int]:
    """The bounds of a target's replicas."""
    if target == TARGET:
        return spec["replicas"]
    return next(pool["replicas"] for pool in spec["pools"] if pool["targetRef"]["name"] == target)


def gpus_of(spec: Mapping[str, Any]) -> float:
    """The bound on GPUs over all pools."""
    return spec.get("gpus") or math.inf


def serve_together(spec: Mapping[str, Any]) -> bool:
    """Whether each of several targets serves whole requests, so that one may serve for another."""
    return "pools" in spec and all("role" not in pool for pool in spec["pools"])


def counted(rate: float) -> float:
    """The greatest rate that a scrape may count where this is the true one."""
    return rate + DEVIATIONS * math.sqrt(rate / SCRAPE_SECONDS)


def most(rate: float, backlog: float, sick: int, target: str = TARGET) -> int:
    """Replicas that nothing true can ask more than. backlog: requests to be served beside."""
    load = counted(rate) + backlog / DRAIN_SECONDS
    return math.ceil(ORDER_FACTOR * load / per_engine(target)) + ORDER_SLACK + sick


def _of_writes(told: Told) -> Iterator[str]:
    readings: set[tuple[str, int]] = set()
    for write in told.writes:
        what = f"t={write.at:.0f} {write.target} {write.before}->{write.after}"
        if (write.target, write.reading) in readings:
            yield f"{what}: a second write for one plan"
        readings.add((write.target, write.reading))
        for wrong in _of_write(write):
            yield f"{what}: {wrong}"


def _of_write(write: Write) -> Iterator[str]:
    if write.spec is None:
        yield "no resource asks for anything"
        return
    mode = write.spec.get("mode", "Auto")
    if mode != "Auto":
        yield f"the mode in force is {mode}"
    if write.others:
        yield f"the count is of {', '.join(write.others)}"
    bounds, ordered = bounds_of(write.spec, write.target), sum(write.ordered.values())
    # Whoever edits another pool between the look and the write is seen with the next look.
    if write.after > write.before and ordered > gpus_of(write.spec) and not write.edited:
        yield f"{ordered} GPUs ordered of at most {gpus_of(write.spec)}"
    if write.after == 0 and any(write.ordered.values()):
        yield f"zero alone: {dict(write.ordered)}"
    if not bounds["min"] <= write.after <= bounds["max"]:
        yield f"outside of {bounds['min']} to {bounds['max']}"
    if write.after < write.before:
        # What the user allows at most is obeyed without sight, and whatever the load.
        if write.after != bounds["max"]:
            yield from _of_step_down(write)
    elif write.after > (top := _top(write)):
        yield f"{write.rate:.2f}/s, {write.waiting:.0f} waiting: more than {top}"


def _of_step_down(write: Write) -> Iterator[str]:
    if write.failed:
        yield f"fewer without sight: {write.failed}"
    if write.unseen:
        yield f"fewer while pods are unseen: {', '.join(write.unseen)}"
    if write.gross:
        yield f"fewer on numbers that cannot be: {', '.join(write.gross)}"
    least, ordered = need(write.lasting, write.target), sum(write.ordered.values())
    left = ordered if serve_together(write.spec or {}) else write.after
    # At the bound on GPUs a pool gives some to the one that is shorter.
    if left < least and ordered < gpus_of(write.spec or {}) - 1:
        yield f"fewer than {least} for {write.lasting:.2f}/s"


def _top(write: Write) -> int:
    spec = write.spec or {}
    floor = (spec.get("fallback") or {}).get("replicas", 0)
    # What will wait when new pods serve: what waits now, and what is not served until then, by the
    # rate that was counted: nobody knows a better one, and a full engine queues by chance as well.
    served = per_engine(write.target) * write.ready
    growing = max(counted(write.rate) - served, 0.0) * write.cold_start
    top = most(write.rate, write.waiting + growing, write.sick, write.target)
    if write.waiting > 0:
        # Without a law a fleet that is seen full is doubled: nothing else can be known.
        top = max(top, 2 * write.before)
    return max(bounds_of(spec, write.target)["min"], floor, top)


def _of_log(told: Told) -> Iterator[str]:
    for at, _, line in told.log:
        if line.startswith("failed namespace") or "Traceback" in line:
            yield f"t={at:.0f} a fault of the operator: {line[:300]}"
    said = Counter()
    perhaps = Counter()
    for _, _, line in told.log:
        if found := _CHANGED.search(line):
            change = int(found[1]), int(found[2])
            if found[3] in {"written", "rolled-back"}:
                said[change] += 1
            elif found[3] == "unanswered":
                perhaps[change] += 1
    done = Counter((write.before, write.after) for write in told.writes)
    deaths = sum(point == "written" for _, point in told.deaths)
    silent = done - said - perhaps
    if silent.total() > deaths:
        yield f"written and not told: {dict(silent)}"
    if invented := said - done:
        yield f"told and not written: {dict(invented)}"
    lines = len(told.log) / told.ticks
    # A decision that cannot be made, or whose pods fail, is a warning, and one of those lines.
    warnings = (
        sum(
            level in {"WARNING", "ERROR"} and not line.startswith("decided ")
            for _, level, line in told.log
        )
        / told.ticks
    )
    parts = _parts(told)
    if lines > parts * LINES_PER_TICK or warnings > parts * WARNINGS_PER_TICK:
        yield f"{lines:.1f} log lines and {warnings:.1f} warnings each tick"
    if told.events / told.ticks > parts * EVENTS_PER_TICK:
        yield f"{told.events / told.ticks:.1f} events each tick"
    if told.status_writes / told.ticks > STATUS_PER_TICK:
        yield f"{told.status_writes / told.ticks:.1f} writes of status each tick"


def _parts(told: Told) -> int:
    """Targets, classes, a fallback, a buffer of nodes: each speaks for itself."""
    if told.ending is None:
        return 1
    spec = told.ending.spec
    return (
        len(told.ending.counts)
        + len(spec.get("classes") or ())
        + sum(one in spec for one in ("degradation", "nodes"))
    )


def _of_end(told: Told) -> Iterator[str]:
    end = told.ending
    assert end is not None
    calm = f"{CALM_TICKS} ticks after the storm"
    floor = (end.spec.get("fallback") or {}).get("replicas", 0)
    ordered, gpus = sum(end.counts.values()), gpus_of(end.spec)
    if ordered > gpus:
        yield f"{calm} {ordered} GPUs of at most {gpus}"
    for target, count in end.counts.items():
        bounds = bounds_of(end.spec, target)
        # Pools have no reserve.
        load = end.rate if "pools" in end.spec else end.peak
        top = max(most(load, 0.0, 0, target), floor)
        low = min(max(need(end.rate, target), bounds["min"]), bounds["max"])
        if target == PREFILL and end.rate < LEAST_RATE_OF_A_LAW:
            top = bounds["max"]
        there = ordered if serve_together(end.spec) else count
        short = there < low and ordered < gpus
        if short or count > min(top, bounds["max"]):
            yield f"{calm} {target} has {count} for {end.rate:.2f}/s, not {low} to {top}"
    found = {entry["type"]: entry for entry in end.status.get("conditions") or ()}
    for name in ("Ready", "MetricsFresh"):
        entry = found.get(name)
        if entry is None or entry["status"] != "True":
            yield f"{calm} {name} is {entry and (entry['status'], entry['reason'])}"
    told_count = (end.status.get("replicas") or {}).get("desired")
    last = max((write.at for write in told.writes), default=0.0)
    settled = told.ticks * TICK_SECONDS + told.stood_still - last > 2 * TICK_SECONDS
    if settled and told_count != ordered:
        yield f"{calm} status tells {told_count} replicas, there are {ordered}"
    if end.learned_bytes > len(end.counts) * LEARNED_BYTES:
        yield f"what is learnt takes {end.learned_bytes} bytes"
