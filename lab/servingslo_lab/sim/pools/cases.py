"""The traces of the benchmark of several pools, built from the conversation trace.

A half of each trace of prefill and decode asks for another ratio of the pools, or for more of both.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import FloatArray
from servingslo_lab.sim.traces.trace import IntArray, Trace
from servingslo_lab.sim.traces.transforms import scaled
from servingslo_lab.sim.traces.workloads import (
    RateCourse,
    constant,
    diurnal,
    flash_crowd,
    generated,
    lengths_of,
)

SECONDS = 3600.0
# Copies of the conversation trace (5.4 requests a second): about ten replicas of l4-small, and
# about four of h100-8b or twenty of l4-small.
_PATH_COPIES, _VARIANT_COPIES = 5.0, 10.0
_PATH_RATE, _VARIANT_RATE = 12.0, 25.0
# Copies where prompts and then answers are three times as long: up to ten replicas of h100-8b. On
# l4-small the longest of these prompts takes more than a second alone.
_MIX_COPIES, _MIX_FACTOR = 10.0, 3.0
# A new mix of requests arrives with its users, within ten minutes. If all requests doubled at once,
# those of one cold start alone, 90 s of an hour, would be more than the 1 % that may miss.
_SHIFT_SECONDS = 600.0


def pool_case(name: str, conversation: Trace, *, seed: int) -> Trace:
    """One of the traces. Raises: InvalidInputError for a name that is not in POOL_CASES."""
    if name not in POOL_CASES:
        raise InvalidInputError("case", name, ", ".join(POOL_CASES))
    return POOL_CASES[name](conversation, np.random.default_rng([seed, *name.encode()]))


def _longer_prompts(conversation: Trace, rng: np.random.Generator) -> Trace:
    trace = scaled(conversation, _PATH_COPIES, rng)
    return replace(trace, prompt_tokens=_doubled(trace, trace.prompt_tokens))


def _longer_answers(conversation: Trace, rng: np.random.Generator) -> Trace:
    trace = scaled(conversation, _PATH_COPIES, rng)
    return replace(trace, output_tokens=_doubled(trace, trace.output_tokens))


def _other_mix(conversation: Trace, rng: np.random.Generator) -> Trace:
    """Three times as long prompts in the second third, and answers in the last."""
    trace = scaled(conversation, _MIX_COPIES, rng)
    third = trace.duration_seconds / 3.0
    first, second = _shifted(trace, third - _SHIFT_SECONDS), _shifted(trace, 2.0 * third)
    return replace(
        trace,
        prompt_tokens=_times(trace.prompt_tokens, 1.0 + (_MIX_FACTOR - 1.0) * (first - second)),
        output_tokens=_times(trace.output_tokens, 1.0 + (_MIX_FACTOR - 1.0) * second),
    )


def _doubled(trace: Trace, tokens: IntArray) -> IntArray:
    """The tokens, and from the middle of the trace on twice as many."""
    return _times(tokens, 1.0 + _shifted(trace, (trace.duration_seconds - _SHIFT_SECONDS) / 2.0))


def _shifted(trace: Trace, begin_seconds: float) -> FloatArray:
    """The share of a shift that begins then, at each request."""
    return np.clip((trace.arrival_seconds - begin_seconds) / _SHIFT_SECONDS, 0.0, 1.0)


def _times(tokens: IntArray, factors: FloatArray) -> IntArray:
    return np.rint(tokens * factors).astype(np.int64)


def _crowd(rate: float) -> RateCourse:
    """Three times the rate within five minutes, for a quarter of an hour."""
    return flash_crowd(
        rate, 3.0, at_seconds=1200.0, rise_seconds=300.0, hold_seconds=900.0,
        duration_seconds=SECONDS,
    )  # fmt: skip


def _generated(course: RateCourse) -> Callable[[Trace, np.random.Generator], Trace]:
    return lambda conversation, rng: generated(course, lengths_of(conversation), rng)


PATH_CASES: Mapping[str, Callable[[Trace, np.random.Generator], Trace]] = MappingProxyType(
    {
        "path-conversation": lambda trace, rng: scaled(trace, _PATH_COPIES, rng),
        "path-prompts": _longer_prompts,
        "path-answers": _longer_answers,
        "path-mix": _other_mix,
        "path-constant": _generated(constant(_PATH_RATE, SECONDS)),
        "path-crowd": _generated(_crowd(_PATH_RATE)),
    }
)
"""Of prefill and decode pools of l4-small; path-mix is for h100-8b."""

VARIANT_CASES: Mapping[str, Callable[[Trace, np.random.Generator], Trace]] = MappingProxyType(
    {
        "variants-conversation": lambda trace, rng: scaled(trace, _VARIANT_COPIES, rng),
        "variants-diurnal": _generated(diurnal(3.0 * _VARIANT_RATE, 0.25, SECONDS)),
        "variants-crowd": _generated(_crowd(_VARIANT_RATE)),
    }
)
"""Of Combined pools of h100-8b and l4-small."""

POOL_CASES = MappingProxyType({**PATH_CASES, **VARIANT_CASES})
