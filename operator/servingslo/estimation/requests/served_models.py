"""Several models or adapters (LoRA) in one engine: their mix, and adapters that wait for a slot.

An engine names only the adapters of requests in flight, not their number. The share of time in
which an engine names an adapter shows it: p = 1 − e^(−L/N) for L requests in flight in N engines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servingslo.estimation.sample import EngineSample, PodSample

# Five minutes: some 20 scrapes at 15 s show a share to a tenth.
MEMORY_SECONDS = 300.0
# After a pause one scrape does not speak for all of it.
LONGEST_STEP_SECONDS = 60.0
# Adapters and models that are remembered; the ones with the least load are forgotten first.
MOST_REMEMBERED = 128
# A share of 1 would be infinitely many requests: as for 20 scrapes and half a one more.
LARGEST_SHARE = 40.0 / 41.0
# One scrape of one engine; less is forgotten.
LEAST_SECONDS = 1.0
# Requests that wait for something other than room in the batch, as vLLM calls them.
DEFERRED = "deferred"

Pod = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelsState:
    """Sums over the last minutes; older parts fade.

    time_seconds: of the last tick. engine_seconds: of engines that name their adapters;
    held_seconds: of them while they named this adapter. tokens: generated, by model name; totals:
    of each engine at the last tick.
    """

    time_seconds: float | None = None
    engine_seconds: float = 0.0
    held_seconds: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[Pod, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedNumber:
    """A number of one model or adapter."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """Models and adapters at one tick.

    slots: most different adapters in a batch, the least over engines; None if no engine has
    adapters. adapters_in_flight: different ones, over the fleet. adapters_waiting: that an engine
    names beyond its slots, summed over engines. deferred_requests: that wait for something other
    than room in the batch, such as a slot. adapter_requests: in flight of each adapter in the
    fleet, on average, most first. token_shares: of output tokens by model name, largest first;
    empty for one.
    """

    slots: int | None = None
    adapters_in_flight: int = 0
    adapters_waiting: int = 0
    deferred_requests: float = 0.0
    adapter_requests: tuple[NamedNumber, ...] = ()
    token_shares: tuple[NamedNumber, ...] = ()


def observe(
    state: ServedModelsState, engines: Sequence[tuple[PodSample, EngineSample]], now_seconds: float
) -> ServedModelsState:
    """Return the state after one tick with the fresh engines."""
    named = _with_adapters(engines)
    totals = {(p.name, e.engine): e.tokens_by_model for p, e in engines if e.tokens_by_model}
    if not named and not totals and state.time_seconds is None:
        return state
    elapsed = 0.0 if state.time_seconds is None else now_seconds - state.time_seconds
    weight = min(elapsed, LONGEST_STEP_SECONDS)
    keep = math.exp(-elapsed / MEMORY_SECONDS)
    held = {name: keep * seconds for name, seconds in state.held_seconds.items()}
    for engine in named:
        for name in engine.adapters:
            held[name] = held.get(name, 0.0) + weight
    tokens = {name: keep * count for name, count in state.tokens.items()}
    for key, counts in totals.items():
        before = state.totals.get(key)
        if before is None:
            continue
        for name, count in counts.items():
            grown = max(count - before.get(name, 0.0), 0.0)
            tokens[name] = tokens.get(name, 0.0) + grown
    return ServedModelsState(
        time_seconds=now_seconds,
        engine_seconds=keep * state.engine_seconds + weight * len(named),
        held_seconds=_largest(held, LEAST_SECONDS),
        tokens=_largest(tokens, LEAST_SECONDS),
        totals=totals,
    )


def served_models(
    state: ServedModelsState, engines: Sequence[tuple[PodSample, EngineSample]]
) -> ServedModels | None:
    """Return what is known at this tick; None if each engine serves one model without adapters."""
    named = _with_adapters(engines)
    tokens = sum(state.tokens.values())
    shares = {name: count / tokens for name, count in state.tokens.items()} if tokens > 0.0 else {}
    if not named and len(shares) < 2:
        return None
    slots = [engine.adapter_slots for engine in named if engine.adapter_slots is not None]
    requests = {
        name: -len(named) * math.log1p(-min(seconds / state.engine_seconds, LARGEST_SHARE))
        for name, seconds in state.held_seconds.items()
        if state.engine_seconds > 0.0
    }
    return ServedModels(
        slots=min(slots, default=None),
        adapters_in_flight=len({name for engine in named for name in engine.adapters}),
        adapters_waiting=sum(
            max(len(engine.adapters) - (engine.adapter_slots or 0), 0) for engine in named
        ),
        deferred_requests=sum(engine.waiting_by_reason.get(DEFERRED, 0.0) for engine in named),
        adapter_requests=_numbers(requests),
        token_shares=_numbers(shares) if len(shares) > 1 else (),
    )


def _with_adapters(engines: Sequence[tuple[PodSample, EngineSample]]) -> list[EngineSample]:
    """Return engines that name their adapters, one a pod: the engines of a pod share one series."""
    return [e for pod, e in engines if e.adapter_slots is not None and len(pod.engines) == 1]


def _largest(values: Mapping[str, float], least: float) -> dict[str, float]:
    kept = [one for one in values.items() if one[1] >= least]
    return dict(sorted(kept, key=lambda one: (-one[1], one[0]))[:MOST_REMEMBERED])


def _numbers(values: Mapping[str, float]) -> tuple[NamedNumber, ...]:
    ordered = sorted(values.items(), key=lambda one: (-one[1], one[0]))
    return tuple(NamedNumber(name=name, value=value) for name, value in ordered)
