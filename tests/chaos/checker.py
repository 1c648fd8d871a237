"""What must hold of every story, whatever went wrong in it. Knows nothing of the operator's code.

It reads the writes that the API server took, with what was in force there at that moment, the log
lines, and how the cluster stood at the end. Physics is that of the engines as they truly are.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator

from tests.chaos.cluster import Write
from tests.chaos.story import CALM_TICKS, TICK_SECONDS, Told

# What one engine of the stories can serve at most, in requests per second: 64 sequences in steps
# of 51 ms (15 + 64 × (0.15 + 1040 tokens × 0.0004) ms) for 760 tokens on average, and 53 ms of
# prefill for each: 1 / (760 × 0.051 / 64 + 0.053).
MOST_PER_ENGINE = 1.5
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


def need(rate: float) -> int:
    """Replicas without which a rate cannot be served, whatever the objectives."""
    return max(math.ceil(rate / MOST_PER_ENGINE), 1)


def counted(rate: float) -> float:
    """The greatest rate that a scrape may count where this is the true one."""
    return rate + DEVIATIONS * math.sqrt(rate / SCRAPE_SECONDS)


def most(rate: float, backlog: float, sick: int) -> int:
    """Replicas that nothing true can ask more than. backlog: requests to be served beside."""
    load = counted(rate) + backlog / DRAIN_SECONDS
    return math.ceil(ORDER_FACTOR * load / MOST_PER_ENGINE) + ORDER_SLACK + sick


def _of_writes(told: Told) -> Iterator[str]:
    readings: set[int] = set()
    for write in told.writes:
        what = f"t={write.at:.0f} {write.before}->{write.after}"
        if write.reading in readings:
            yield f"{what}: a second write for one plan"
        readings.add(write.reading)
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
    bounds = write.spec["replicas"]
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
    if write.after < need(write.lasting):
        yield f"fewer than {need(write.lasting)} for {write.lasting:.2f}/s"


def _top(write: Write) -> int:
    spec = write.spec or {}
    floor = (spec.get("fallback") or {}).get("replicas", 0)
    # What will wait when new pods serve: what waits now, and what is not served until then, by the
    # rate that was counted: nobody knows a better one, and a full engine queues by chance as well.
    growing = max(counted(write.rate) - MOST_PER_ENGINE * write.ready, 0.0) * write.cold_start
    top = most(write.rate, write.waiting + growing, write.sick)
    if write.waiting > 0:
        # Without a law a fleet that is seen full is doubled: nothing else can be known.
        top = max(top, 2 * write.before)
    return max(spec["replicas"]["min"], floor, top)


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
    if lines > LINES_PER_TICK or warnings > WARNINGS_PER_TICK:
        yield f"{lines:.1f} log lines and {warnings:.1f} warnings each tick"
    if told.events / told.ticks > EVENTS_PER_TICK:
        yield f"{told.events / told.ticks:.1f} events each tick"
    if told.status_writes / told.ticks > STATUS_PER_TICK:
        yield f"{told.status_writes / told.ticks:.1f} writes of status each tick"


def _of_end(told: Told) -> Iterator[str]:
    end = told.ending
    assert end is not None
    bounds = end.spec["replicas"]
    calm = f"{CALM_TICKS} ticks after the storm"
    floor = (end.spec.get("fallback") or {}).get("replicas", 0)
    top = max(most(end.rate, 0.0, 0), floor)
    low = min(max(need(end.rate), bounds["min"]), bounds["max"])
    if not low <= end.count <= min(top, bounds["max"]):
        yield f"{calm} {end.count} replicas for {end.rate:.2f}/s, not {low} to {top}"
    found = {entry["type"]: entry for entry in end.status.get("conditions") or ()}
    for name in ("Ready", "MetricsFresh"):
        entry = found.get(name)
        if entry is None or entry["status"] != "True":
            yield f"{calm} {name} is {entry and (entry['status'], entry['reason'])}"
    told_count = (end.status.get("replicas") or {}).get("desired")
    last = max((write.at for write in told.writes), default=0.0)
    settled = told.ticks * TICK_SECONDS + told.stood_still - last > 2 * TICK_SECONDS
    if settled and told_count != end.count:
        yield f"{calm} status tells {told_count} replicas, there are {end.count}"
    if end.learned_bytes > LEARNED_BYTES:
        yield f"what is learnt takes {end.learned_bytes} bytes"
