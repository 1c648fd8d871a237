"""How a gateway picks an engine, and how a trace is served between two events.

Written for the compiler, like `kernel`.
"""

from servingslo_lab.sim.replicas.intake import submit
from servingslo_lab.sim.replicas.kernel import advance
from servingslo_lab.sim.replicas.layout import (
    FAILED,
    NEXT_CHANGE,
    NONE,
    RUNNING,
    UNBOUNDED,
    WAITING_BOUND,
    WAITING_COUNT,
    EngineRow,
    Requests,
)  # fmt: skip

LEAST_LOADED, ROUND_ROBIN, RANDOM, PREFIX_AFFINE, LEAST_OF_TWO = 0, 1, 2, 3, 4

# A gateway's own integers.
NEXT_ARRIVAL, CURSOR, RANDOM_STATE, RULE, REQUESTS = 0, 1, 2, 3, 4
GATEWAY_INTS = 5

# Source: Numerical Recipes, 3rd edition, section 7.1, "quick and dirty" generator. Only its upper
# bits are used; the lower ones repeat too soon.
_MULTIPLIER, _INCREMENT, RANDOM_BITS = 1664525, 1013904223, 32
_MODULUS = 1 << RANDOM_BITS
# Load value of an engine with a full queue: more than any engine with room.
_FULL = UNBOUNDED >> 1


def new_gateway(rule: int, random_state: int) -> list[int]:
    """The state of a gateway that has routed nothing yet."""
    gateway = [0] * GATEWAY_INTS
    gateway[RULE] = rule
    gateway[RANDOM_STATE] = random_state % _MODULUS
    return gateway


def random_bits(gateway: list[int]) -> int:
    """The next random number, of RANDOM_BITS bits."""
    gateway[RANDOM_STATE] = (gateway[RANDOM_STATE] * _MULTIPLIER + _INCREMENT) % _MODULUS
    return gateway[RANDOM_STATE]


def _load(q: Requests, row: EngineRow, now: float) -> int:
    """Requests running and waiting at this moment."""
    if row.floats[NEXT_CHANGE] <= now:
        advance(q, row, now)
    return row.ints[RUNNING] + row.ints[WAITING_COUNT]


def pick(
    q: Requests, rows: list[EngineRow], serving: list[int], gateway: list[int], now: float
) -> int:
    """The engine that gets the next request, an index into rows; NONE while none serves.

    Least loaded: the engine with the fewest running and waiting requests now, among those whose
    bounded queue is not full; ties are broken round-robin. It also applies to requests without a
    session if sessions decide. Least of two: the less loaded of two random engines, possibly the
    same one twice, even with full queues.
    Source: envoyproxy/envoy, source/extensions/load_balancing_policies/least_request,
    unweightedHostPickNChoices; two is the default, which Envoy Gateway does not change.
    """
    count = len(serving)
    if count == 0:
        return NONE
    gateway[CURSOR] += 1
    first = gateway[CURSOR] % count
    if gateway[RULE] == ROUND_ROBIN:
        return serving[first]
    if gateway[RULE] == RANDOM:
        return serving[(random_bits(gateway) * count) >> RANDOM_BITS]
    if gateway[RULE] == LEAST_OF_TWO:
        one = serving[(random_bits(gateway) * count) >> RANDOM_BITS]
        other = serving[(random_bits(gateway) * count) >> RANDOM_BITS]
        return other if _load(q, rows[other], now) < _load(q, rows[one], now) else one
    best = NONE
    least = UNBOUNDED
    for i in range(count):
        place = first + i
        if place >= count:
            place -= count
        row = rows[serving[place]]
        load = _load(q, row, now)
        if row.ints[WAITING_COUNT] >= row.ints[WAITING_BOUND]:
            load += _FULL
        if load < least:
            best = serving[place]
            least = load
    return best


def serve(
    q: Requests, rows: list[EngineRow], serving: list[int], gateway: list[int], until: float
) -> None:
    """Route all requests that arrive by `until`; without an engine they fail."""
    r = gateway[NEXT_ARRIVAL]
    count = gateway[REQUESTS]
    while r < count and q.arrival[r] <= until:
        now = q.arrival[r]
        engine = pick(q, rows, serving, gateway, now)
        if engine == NONE:
            q.status[r] = FAILED
            q.finish[r] = now
        else:
            row = rows[engine]
            q.engine[r] = engine
            advance(q, row, now)
            submit(q, row, r, now)
        r += 1
    gateway[NEXT_ARRIVAL] = r
