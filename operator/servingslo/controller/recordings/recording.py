"""Recordings: what the operator observed, as JSON lines, and a replay of the same decisions.

A line is a header, an observation, or the outcome of a write. A header has spec, limits and the
state learnt before. It is written when a resource is first reconciled and whenever its spec
changes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import IO, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from servingslo import __version__
from servingslo.api.convert import fleet_from_spec
from servingslo.api.refusals import first_refusal
from servingslo.controller.recordings.lines import check_recording, decoded_line
from servingslo.controller.recordings.validation import (
    check_kinds,
    check_limits,
    check_observation,
    check_replicas,
    check_time,
    check_version,
)
from servingslo.errors import InvalidInputError
from servingslo.explain.changes import Knob
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation
from servingslo.policy.pools.decision import FleetDecision
from servingslo.policy.pools.inputs import FleetTargets
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.policy.pools.stored import carried_on, restore_fleet
from servingslo.policy.ports import READER
from servingslo.policy.replicas.sizing import Sized
from servingslo.policy.replicas.state import record_scale, record_write_failed

HEADER = "header"
OUTCOME = "outcome"
# Versions that supported one runtime did not record it in observations.
RUNTIME_BEFORE = "vllm"
# Fields of earlier recordings that decide nothing any more.
_RETIRED = frozenset({"last_rollout_seconds"})
# The same of the spec, as (field, field in it), also of a pool.
_RETIRED_OF_SPEC = (("batching", "rollout"),)
# Versions with compiled latency laws decided from percentiles that differ in the last digits.
NUMPY_LAWS = "numpy"
_ALLOWED_LAWS = "numpy; decisions by compiled laws are replayed by the version that made them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The inputs of decisions other than observations.

    learned: the planner's memory at the start. carry_on: the memory of the observations before is
    kept, because only the spec changed. laws: the library that evaluated the latency laws; numpy.
    """

    uid: str
    namespace: str
    name: str
    generation: int
    spec: Mapping[str, Any]
    limits: Limits
    learned: Mapping[str, Any] | None = None
    carry_on: bool = False
    time_seconds: float
    laws: str = NUMPY_LAWS
    version: str = __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether an order was written.

    before, after: the first setting of the change: the replica count, or the `max_num_seqs` of
    batch limits; 0 if it is not set. knob: of the actuator that was to make it.
    """

    uid: str
    time_seconds: float
    before: int
    after: int
    written: bool
    knob: str = Knob.REPLICAS
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One observation, the decision made from it, and the case for which its counts were sized.

    fleet: the decision on the whole resource; it follows the observation of its last pool.
    """

    observation: Observation
    decision: Decision
    fleet: FleetDecision
    sized: Sized | None = None


@dataclass(slots=True)
class _Memory:
    """One resource during a replay. seen: observations of this tick, until all pools have one."""

    targets: FleetTargets
    limits: Limits
    state: FleetState
    seen: dict[str, Observation] = field(default_factory=dict)

    def plan(self, observation: Observation) -> Iterator[Replayed]:
        """Each decision of a tick, once all its pools were observed.

        Raises: InvalidInputError for a pool that the spec does not have, or that was not observed.
        """
        names = [pool.name for pool in self.targets.pools]
        if observation.pool not in names:
            allowed = ", ".join(names) or "none: the spec has no pools"
            raise InvalidInputError("pool", observation.pool, allowed)
        if observation.pool in self.seen:
            missing = ", ".join(name for name in names if name not in self.seen)
            raise InvalidInputError("pool", observation.pool, f"{missing}, until each was observed")
        self.seen[observation.pool] = observation
        if len(self.seen) < len(names):
            return
        seen, self.seen = self.seen, {}
        fleet, self.state = plan_fleet(
            seen, self.targets, self.limits, self.state, observation.time_seconds
        )
        for name, decision in fleet.pools.items():
            yield Replayed(
                observation=seen[name],
                decision=decision,
                sized=self.state.pools[name].sized,
                fleet=fleet,
            )


# JSON has no infinity, which is the last edge of every histogram, so it is written as a string.
# Only an outside configuration reaches a plain dataclass, hence the tuples of one. An unknown field
# is misspelt or of another schema: its value would be lost.
_CONFIG = ConfigDict(ser_json_inf_nan="strings", extra="forbid")
_FIELDS = frozenset(one.name for one in fields(Observation))
_OBSERVATION = TypeAdapter(tuple[Observation], config=_CONFIG)
_HEADER = TypeAdapter(tuple[Header], config=_CONFIG)
_OUTCOME = TypeAdapter(tuple[Outcome], config=_CONFIG)


class Recorder:
    """Appends to a file; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        """Raises: InvalidInputError if the file cannot be written, or is no recording."""
        self._file: IO[str] | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                check_recording(path)
                self._file = path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                allowed = f"a file that can be written ({error.strerror})"
                raise InvalidInputError("recording", str(path), allowed) from error

    def header(self, header: Header) -> None:
        """Record the inputs of the decisions that follow."""
        self._write(HEADER, _HEADER, header)

    def observation(self, observation: Observation) -> None:
        """Record one observation."""
        if self._file is not None:
            self._file.write(observation_line(observation) + "\n")

    def outcome(self, outcome: Outcome) -> None:
        """Record the outcome of a write."""
        self._write(OUTCOME, _OUTCOME, outcome)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, key: str, adapter: TypeAdapter[tuple[Any]], value: object) -> None:
        if self._file is not None:
            self._file.write(f'{{"{key}":{_unwrapped(adapter.dump_json((value,)))}}}\n')


def observation_line(observation: Observation) -> str:
    """One observation as one line of JSON."""
    return _unwrapped(_OBSERVATION.dump_json((observation,)))


def replay(
    lines: Iterable[str], instead: Mapping[str, Any] | None = None, limits: Limits | None = None
) -> Iterator[Replayed]:
    """Each observation of a recording with the decision that the planner makes from it.

    instead: a spec to use whatever the headers say; observations then need no header. limits: of
    resources without a header; the default bounds by default. Raises: InvalidInputError naming the
    line, if one cannot be read, its resource has no header, or its laws were compiled;
    InvalidSpecError if `instead` is not valid.
    """
    targets = None if instead is None else fleet_from_spec(instead)
    bounds = Limits() if limits is None else limits
    memories: dict[str, _Memory] = {}
    times: dict[str, float] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        entry = decoded_line(line, number)
        if HEADER in entry:
            header = _header(entry, number)
            _began_anew(entry, times)
            memories[header.uid] = _began(header, memories.get(header.uid), targets, number)
            continue
        if OUTCOME in entry:
            outcome = _outcome(entry, number)
            memory = _known(memories, outcome.uid, number)
            if outcome.pool not in [pool.name for pool in memory.targets.pools]:
                raise InvalidInputError(f"line {number}: pool", outcome.pool, "a pool of the spec")
            memory.state = reconciled(memory.state, outcome, memory.targets)
            continue
        observation = _observation(entry, number, times)
        key = _key(observation)
        if targets is not None and key not in memories:
            memories[key] = _Memory(targets=targets, limits=bounds, state=FleetState())
        memory = _known(memories, key, number)
        with _named(number):
            yield from memory.plan(observation)


def ticks(replayed: Iterable[Replayed]) -> Iterator[tuple[Replayed, ...]]:
    """The same by tick: of all pools that are decided together."""
    together: list[Replayed] = []
    for one in replayed:
        together.append(one)
        if len(together) == len(one.fleet.pools):
            yield tuple(together)
            together = []


def reconciled(state: FleetState, outcome: Outcome, targets: FleetTargets) -> FleetState:
    """The planner's memory after the outcome of its order is known; used live and in replays."""
    if outcome.knob != Knob.REPLICAS:
        return state
    own = state.of(outcome.pool)
    if not outcome.written:
        own = record_write_failed(own)
    else:
        own = record_scale(
            own,
            before=outcome.before,
            after=outcome.after,
            now_seconds=outcome.time_seconds,
            behavior=targets.pool(outcome.pool).targets.behavior,
        )
    return state.with_pool(outcome.pool, own)


def _without_retired(spec: object) -> object:
    if not isinstance(spec, Mapping):
        return spec
    kept = dict(spec)
    for outer, inner in _RETIRED_OF_SPEC:
        if isinstance(kept.get(outer), Mapping):
            kept[outer] = {name: one for name, one in kept[outer].items() if name != inner}
    if isinstance(kept.get("pools"), list):
        kept["pools"] = [_without_retired(pool) for pool in kept["pools"]]
    return kept


def _began(
    header: Header, before: _Memory | None, instead: FleetTargets | None, number: int
) -> _Memory:
    targets = instead
    if targets is None:
        with _named(number, HEADER):
            targets = fleet_from_spec(_without_retired(header.spec))
    if header.carry_on and before is not None:
        state = carried_on(before.state, before.targets, targets)
    else:
        state = restore_fleet(header.learned, targets, header.time_seconds)
    return _Memory(targets=targets, limits=header.limits, state=state)


@contextmanager
def _named(number: int, part: str = "") -> Iterator[None]:
    """Report errors raised inside with their line, and the part of the line that has them."""
    try:
        yield
    except InvalidInputError as error:
        path = ".".join(name for name in (part, error.field) if name)
        field = f"line {number}: {path}" if path else f"line {number}"
        raise InvalidInputError(field, error.value, error.allowed) from error


def observations(lines: Iterable[str]) -> Iterator[Observation]:
    """The observations of a recording, in order, without any decision.

    Raises: InvalidInputError naming the line, if one cannot be read.
    """
    times: dict[str, float] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        entry = decoded_line(line, number)
        if HEADER in entry:
            _began_anew(entry, times)
        elif OUTCOME not in entry:
            yield _observation(entry, number, times)


def _time_key(observation: Observation) -> str:
    return f"{_key(observation)}/{observation.pool}"


def _key(observation: Observation) -> str:
    return observation.uid or f"{observation.namespace}/{observation.name}"


def _header(entry: Mapping[str, Any], number: int) -> Header:
    with _named(number, HEADER):
        header: Header = _validated(_HEADER, entry[HEADER])
        check_time(header.time_seconds)
        check_limits(header.limits)
        if header.laws != NUMPY_LAWS:
            raise InvalidInputError("laws", header.laws, _ALLOWED_LAWS)
    return header


def _outcome(entry: Mapping[str, Any], number: int) -> Outcome:
    with _named(number, OUTCOME):
        outcome: Outcome = _validated(_OUTCOME, entry[OUTCOME])
        check_time(outcome.time_seconds)
        if outcome.knob == Knob.REPLICAS:
            check_replicas(outcome.before, "before")
            check_replicas(outcome.after, "after")
    return outcome


def _observation(entry: Mapping[str, Any], number: int, times: dict[str, float]) -> Observation:
    """One observation, with checked ranges. times: newest time of each resource, updated here."""
    with _named(number):
        check_version(entry)
        entry = {"runtime": RUNTIME_BEFORE, **entry}
        entry = {name: value for name, value in entry.items() if name not in _RETIRED}
    entry = _with_features(entry, number)
    with _named(number):
        observation: Observation = _validated(_OBSERVATION, entry)
    key = _time_key(observation)
    with _named(number):
        check_observation(observation, times.get(key))
    times[key] = observation.time_seconds
    return observation


def _with_features(entry: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The entry with what features had read, each as its own type.

    Earlier recordings have it beside the kernel's fields. What is empty, or of a feature that is
    gone, is left out.
    """
    kinds: dict[str, Any] = {part.key.name: part.key.kind for part in READER.parts()}
    rest = {
        n: one for n, one in entry.items() if n in _FIELDS or (n not in kinds and one is not None)
    }
    stated = rest.setdefault("features", {})
    if not isinstance(stated, Mapping):
        return rest
    found: dict[str, object] = {}
    for name, kind in kinds.items():
        if (read := stated.get(name, entry.get(name))) is not None:
            with _named(number, name):
                found[name] = _validated(_adapter(kind), read)
    return {**rest, "features": found}


@cache
def _adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    alone: Any = GenericAlias(tuple, kind)
    return TypeAdapter(alone, config=_CONFIG)


def _began_anew(entry: Mapping[str, Any], times: dict[str, float]) -> None:
    """Forget the time of a resource whose memory starts again: recordings may be joined."""
    header = entry[HEADER]
    if isinstance(header, dict) and not header.get("carry_on"):
        began = f"{header.get('uid')}/"
        for key in [key for key in times if key.startswith(began)]:
            del times[key]


def _validated(adapter: TypeAdapter[tuple[Any]], value: object) -> Any:
    try:
        read = adapter.validate_python((value,))[0]
    except ValidationError as error:
        raise first_refusal(error, skipped=1) from error
    check_kinds(value, read)
    return read


def _known(memories: Mapping[str, _Memory], uid: str, number: int) -> _Memory:
    if uid not in memories:
        allowed = "the uid of a header before it; without headers a spec must be given (-f)"
        raise InvalidInputError(f"line {number}: uid", uid, allowed)
    return memories[uid]


def _unwrapped(data: bytes) -> str:
    """The single element of a JSON array."""
    return data[1:-1].decode()
