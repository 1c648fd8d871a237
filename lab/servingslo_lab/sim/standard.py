"""The standard cases of the benchmark: traces, fleets and how they are matched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.transforms import scaled, window
from servingslo_lab.sim.traces.workloads import (
    LONG_CONTEXT,
    LengthSource,
    RateCourse,
    constant,
    diurnal,
    flash_crowd,
    generated,
    lengths_of,
    markov_modulated,
    mixed_lengths,
    ramp,
    step,
)

TTFT_SECONDS, TPOT_SECONDS, SHARE_TARGET = 1.0, 0.05, 0.99

# Demand of the small card relative to the large one, so that both need about as many replicas.
_SMALL_CARD_RATE = 0.26
_COPIES = MappingProxyType({"h100-8b": 20.0, "l4-small": 5.0})
# Requests with long prompts cost about eight times the work of conversation.
_LONG_CONTEXT_RATE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trace on a fleet."""

    name: str
    engine: str
    trace: Trace

    def fleet(self, *, cold_start_seconds: float = 90.0) -> FleetSpec:
        """The fleet of the case; the caller sets the replica counts."""
        return FleetSpec(engine=self.engine, cold_start=ColdStart(mean_seconds=cold_start_seconds))


def _courses(rng: np.random.Generator) -> Mapping[str, RateCourse]:
    return {
        "poisson": constant(120.0, 1800.0),
        "diurnal": diurnal(160.0, 0.25, 7200.0),
        "ramp": ramp(
            20.0, 180.0, up_seconds=1200.0, hold_seconds=300.0, down_seconds=600.0,
            rest_seconds=300.0,
        ),
        "step": step(60.0, 150.0, at_seconds=900.0, duration_seconds=2700.0),
        "flash": flash_crowd(
            18.0, 10.0, at_seconds=1200.0, rise_seconds=60.0, hold_seconds=840.0,
            duration_seconds=2400.0,
        ),
        "mmpp": markov_modulated(
            60.0, 140.0, mean_low_seconds=300.0, mean_high_seconds=120.0,
            duration_seconds=3600.0, rng=rng,
        ),
        "long-context": diurnal(120.0, 0.3, 3600.0),
        "long-mix": diurnal(120.0, 0.3, 3600.0),
    }  # fmt: skip


CASE_NAMES = (
    "azure-conv", "poisson", "diurnal", "ramp", "step", "flash", "mmpp", "long-context",
    "long-mix",
)  # fmt: skip


def standard_case(
    name: str, engine: str, conversation: Trace, *, seed: int, part: float = 1.0
) -> Case:
    """One of the standard cases.

    conversation: the Azure conversation trace, the source of the lengths. part: the first part of
    the time, for quick checks.
    Raises: InvalidInputError for a name that is not in CASE_NAMES.
    """
    if name not in CASE_NAMES:
        raise InvalidInputError("case", name, ", ".join(CASE_NAMES))
    rng = np.random.default_rng([seed, CASE_NAMES.index(name)])
    if name == "azure-conv":
        trace = scaled(conversation, _COPIES[engine], rng)
    else:
        rate = _SMALL_CARD_RATE if engine == "l4-small" else 1.0
        lengths, share = _lengths(name, conversation)
        trace = generated(_courses(rng)[name].scaled(rate * share), lengths, rng)
    if part < 1.0:
        trace = window(trace, 0.0, part * trace.duration_seconds)
    return Case(name=name, engine=engine, trace=trace)


def _lengths(name: str, conversation: Trace) -> tuple[LengthSource, float]:
    talk = lengths_of(conversation)
    sources: Mapping[str, Callable[[], tuple[LengthSource, float]]] = {
        "long-context": lambda: (LONG_CONTEXT, _LONG_CONTEXT_RATE),
        "long-mix": lambda: (mixed_lengths(talk, LONG_CONTEXT, 0.2), 2 * _LONG_CONTEXT_RATE),
    }
    return sources.get(name, lambda: (talk, 1.0))()
