"""What must hold of a storm on the rig. Knows nothing of the operator's code.

It reads what the API server's audit log has of the operator, beside what people asked for and what
was broken when, and how all stood in the end. Times are the wall clock of one machine.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# What one engine of the storm serves at most, in requests per second: 64 sequences in steps of
# 39 ms (15 + 64 × (0.15 + 576 tokens × 0.0004) ms) for 128 tokens, and 41 ms of prefill for each:
# 1 / (128 × 0.039 / 64 + 0.041).
MOST_PER_ENGINE = 8.4
# As for stories in virtual time: two thirds of that within the objectives, twice for a crowd.
ORDER_FACTOR = 3.0
ORDER_SLACK = 2
DRAIN_SECONDS = 60.0
# Requests that waited within this time may still be in the mind of whoever orders.
WAITED_SECONDS = 60.0
# Between the last look and the write: on a machine that runs a whole cluster beside.
LOOK_SECONDS = 2.0
# A look that took longer is void, also of a process that was stopped meanwhile.
LONGEST_LOOK_SECONDS = 10.0
# A reading that began before Prometheus went away ends within this time.
LAST_READING_SECONDS = 8.0
LOG_LINES_PER_TICK = 3.0
MOST_MEBIBYTES = 400.0
STOPPING = frozenset({"operator-frozen", "api-frozen", "api-killed", "etcd-killed"})
BLINDING = frozenset({"prometheus-killed", "prometheus-frozen"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody asked of a workload: its spec from then on, None for none.

    answered: when the API server had taken it.
    """

    name: str
    spec: Mapping[str, Any] | None
    asked: float
    answered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """A fault from its beginning to its end, of a workload or of the whole (name '')."""

    kind: str
    began: float
    ended: float
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A count that the API server took from the operator."""

    received: float
    answered: float
    name: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a workload stood after the calm, and its status."""

    count: int
    status: Mapping[str, Any]


@dataclass
class Journal:
    """What happened. rates: true requests per second by workload. waiting: by time and workload.

    per_engine: what one engine serves at most, of workloads where that is another rate.
    deeds: what people did to counts, likewise. ticks: of the operator, about. kills: of the
    operator and of the API server.
    """

    rates: Mapping[str, float]
    per_engine: Mapping[str, float] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    spells: list[Spell] = field(default_factory=list)
    waiting: list[tuple[float, str, int]] = field(default_factory=list)
    deeds: list[tuple[float, str, str]] = field(default_factory=list)
    ends: dict[str, End] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    ticks: int = 0
    kills: int = 0
    mebibytes: float = 0.0


def orders_of(audit: Iterable[str], namespace: str, account: str) -> Iterator[Order]:
    """The counts that an account set in a namespace."""
    for line in audit:
        entry = json.loads(line)
        reference = entry.get("objectRef", {})
        if (
            not entry["user"]["username"].endswith(f":{account}")
            or entry["stage"] != "ResponseComplete"
            or entry["responseStatus"]["code"] >= 300
            or (reference.get("namespace"), reference.get("subresource")) != (namespace, "scale")
        ):
            continue
        patch = {(change["op"], change["path"]): change for change in entry["requestObject"]}
        before = patch.get(("test", "/spec/replicas"), {"value": 0})["value"]
        yield Order(
            received=_seconds(entry["requestReceivedTimestamp"]),
            answered=_seconds(entry["stageTimestamp"]),
            name=reference["name"],
            before=before,
            after=patch["add", "/spec/replicas"]["value"],
        )


def violations(journal: Journal, orders: Sequence[Order]) -> list[str]:
    """What did not hold, one line each; none where all did."""
    found = [
        f"{order.name} {order.before}->{order.after} at {order.received:.1f}: {wrong}"
        for order in orders
        for wrong in _of_order(journal, order)
    ]
    return [*found, *_of_end(journal), *_of_log(journal)]


def need(rate: float, per_engine: float = MOST_PER_ENGINE) -> int:
    """Replicas without which a rate cannot be served, whatever the objectives."""
    return max(math.ceil(rate / per_engine), 1)


def most(
    rate: float, waiting: float = 0.0, sick: int = 0, per_engine: float = MOST_PER_ENGINE
) -> int:
    """Replicas that nothing true can ask more than."""
    load = rate + waiting / DRAIN_SECONDS
    return math.ceil(ORDER_FACTOR * load / per_engine) + ORDER_SLACK + sick


def _of_order(journal: Journal, order: Order) -> Iterator[str]:
    specs = list(_in_force(journal, order))
    allowed = [spec for spec in specs if spec is not None and _allows(spec, order.after)]
    if not allowed:
        yield f"allowed by none of what was in force: {_all(specs)}"
        return
    if owner := _owner(journal, order):
        yield f"the count is of {owner}"
    stated = max(spec["replicas"]["min"] for spec in allowed)
    highest = max(spec["replicas"]["max"] for spec in specs if spec is not None)
    if order.after < order.before <= highest and (blind := _blind(journal, order)):
        yield f"fewer without sight: {blind}"
    least = need(journal.rates[order.name], _per_engine(journal, order.name))
    enough = min(least, *(spec["replicas"]["max"] for spec in allowed))
    if order.after < order.before and order.after < enough:
        yield f"fewer than {enough} for {journal.rates[order.name]:.1f}/s, {_all(allowed)}"
    if order.after > order.before and order.after > max(stated, _top(journal, order)):
        yield f"more than {_top(journal, order)} for {journal.rates[order.name]:.1f}/s"


def _in_force(journal: Journal, order: Order) -> Iterator[Mapping[str, Any] | None]:
    """Every spec that the operator may have seen when it looked last before it wrote."""
    forgiven = order.received - _forgiven(journal, order)
    changes = [change for change in journal.asked if change.name == order.name]
    for change, later in zip(changes, [*changes[1:], None], strict=True):
        replaced = math.inf if later is None else later.answered
        if change.asked <= order.answered and replaced >= forgiven:
            yield change.spec


def _forgiven(journal: Journal, order: Order) -> float:
    """How old the last look before a write may be: longer where something stood still in it."""
    stood = any(
        spell.kind in STOPPING and spell.ended >= order.received - LONGEST_LOOK_SECONDS
        for spell in journal.spells
        if spell.began <= order.answered
    )
    return LOOK_SECONDS + (LONGEST_LOOK_SECONDS if stood else 0.0)


def _allows(spec: Mapping[str, Any], count: int) -> bool:
    bounds = spec["replicas"]
    return spec.get("mode", "Auto") == "Auto" and bounds["min"] <= count <= bounds["max"]


def _owner(journal: Journal, order: Order) -> str:
    """Another autoscaler that had the count for longer than a look lasts."""
    since = order.received - _forgiven(journal, order)
    return next(
        (
            spell.kind
            for spell in journal.spells
            if (spell.kind, spell.name) == ("other-scaler", order.name)
            and spell.began <= since
            and order.answered <= spell.ended
        ),
        "",
    )


def _blind(journal: Journal, order: Order) -> str:
    return next(
        (
            spell.kind
            for spell in journal.spells
            if spell.kind in BLINDING
            and spell.began + LAST_READING_SECONDS <= order.received
            and order.answered <= spell.ended
        ),
        "",
    )


def _top(journal: Journal, order: Order) -> int:
    since = order.received - WAITED_SECONDS
    waited = [
        waiting
        for at, name, waiting in journal.waiting
        if name == order.name and since <= at <= order.answered
    ]
    sick = sum(
        spell.kind == "pod-slow" and spell.name == order.name
        for spell in journal.spells
        if spell.began <= order.answered and spell.ended >= since
    )
    queue = max(waited, default=0)
    top = most(journal.rates[order.name], queue, sick, _per_engine(journal, order.name))
    # Without a law a fleet that is seen full is doubled: nothing else can be known.
    return max(top, 2 * order.before) if queue else top


def _per_engine(journal: Journal, name: str) -> float:
    return journal.per_engine.get(name, MOST_PER_ENGINE)


def _of_end(journal: Journal) -> Iterator[str]:
    for name, end in journal.ends.items():
        changes = [change for change in journal.asked if change.name == name]
        spec = changes[-1].spec
        if spec is None or spec.get("mode", "Auto") != "Auto":
            continue
        bounds, rate, each = spec["replicas"], journal.rates[name], _per_engine(journal, name)
        low = min(max(need(rate, each), bounds["min"]), bounds["max"])
        high = min(max(most(rate, per_engine=each), bounds["min"]), bounds["max"])
        if not low <= end.count <= high:
            yield f"{name}: {end.count} replicas in the end, not {low} to {high}"
        conditions = {entry["type"]: entry for entry in end.status.get("conditions") or ()}
        for type_ in ("Ready", "MetricsFresh"):
            entry = conditions.get(type_)
            if entry is None or entry["status"] != "True":
                yield f"{name}: {type_} in the end {entry and (entry['status'], entry['reason'])}"
        told = (end.status.get("replicas") or {}).get("desired")
        if told != end.count:
            yield f"{name}: status tells {told} replicas in the end, there are {end.count}"


def _of_log(journal: Journal) -> Iterator[str]:
    for line in journal.log:
        if " failed namespace=" in line or line.startswith("Traceback"):
            yield f"a fault of the operator: {line[:300]}"
    lines = len(journal.log) / max(journal.ticks, 1) / max(len(journal.rates), 1)
    if lines > LOG_LINES_PER_TICK:
        yield f"{lines:.1f} log lines for each tick and workload"
    if journal.mebibytes > MOST_MEBIBYTES:
        yield f"{journal.mebibytes:.0f} MiB of memory"


def _all(specs: Sequence[Mapping[str, Any] | None]) -> str:
    return ", ".join(map(told_spec, specs))


def told_spec(spec: Mapping[str, Any] | None) -> str:
    """Mode and bounds, for people."""
    if spec is None:
        return "none"
    return f"{spec.get('mode', 'Auto')} {spec['replicas']['min']}..{spec['replicas']['max']}"


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
