"""Allowed ranges in a recording: its lines may come from another program, or be edited by hand.

Only input from a file or a pipe is checked: the live loop neither pays for it nor stops on it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servingslo.api.refusals import shown
from servingslo.errors import InvalidInputError
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.sample import (
    EngineSample,
    GatewaySample,
    HistogramSample,
    PodSample,
)
from servingslo.estimation.stored_fields import LARGEST_NUMBER
from servingslo.estimation.windows.plausible import LARGEST_KV_USAGE, MOST_REQUESTS_HELD
from servingslo.policy.inputs import OBSERVATION_SCHEMA_VERSION, Limits, Observation

MOST_REPLICAS = 1_000_000
# Far above the limits of engines, and still small enough for the planner's tables.
MOST_SEQUENCES = 1_000_000
MOST_BATCHED_TOKENS = 1_000_000_000
SHORTEST_TICK_SECONDS = 0.5
# Five minutes without a decision, as in the chart.
LONGEST_TICK_SECONDS = 300.0
# The end of the year 9999, since the epoch: a later time has no date. A simulator begins at 0.
LATEST_SECONDS = 253_402_300_799
LONGEST_BIN_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Finite numbers from least to most, or above least."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value is in the range; not a number never is."""
        # Integers of any length are finite, and some are longer than a float.
        if not isinstance(value, int) and not math.isfinite(value):
            return False
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        """The allowed range, in words."""
        if math.isinf(self.least):
            return "a finite number"
        if math.isinf(self.most):
            return f"a finite number, {self.least:.12g} or more"
        if self.above:
            return f"above {self.least:.12g}, at most {self.most:.12g}"
        return f"{self.least:.12g} to {self.most:.12g}"


_FINITE = _Range()
_NOT_NEGATIVE = _Range(least=0.0, most=LARGEST_NUMBER)
_POSITIVE = _Range(least=0.0, most=LARGEST_NUMBER, above=True)
_TIME = _Range(least=0, most=LATEST_SECONDS)
_REQUESTS = _Range(least=0.0, most=MOST_REQUESTS_HELD)
_REPLICAS = _Range(least=0, most=MOST_REPLICAS)
_OBSERVATION = {
    "time_seconds": _TIME,
    "desired_replicas": _REPLICAS,
    "current_replicas": _REPLICAS,
}
_POD = {
    "age_seconds": _NOT_NEGATIVE,
    "scheduled_after_seconds": _NOT_NEGATIVE,
    "started_after_seconds": _NOT_NEGATIVE,
    "ready_after_seconds": _NOT_NEGATIVE,
    "ready_for_seconds": _NOT_NEGATIVE,
    "unready_for_seconds": _NOT_NEGATIVE,
    "restarts": _NOT_NEGATIVE,
}
_ENGINE = {
    "gauges_age_seconds": _NOT_NEGATIVE,
    "counters_age_seconds": _NOT_NEGATIVE,
    "histograms_age_seconds": _NOT_NEGATIVE,
    "running": _REQUESTS,
    "waiting": _REQUESTS,
    "kv_usage_ratio": _Range(least=0.0, most=LARGEST_KV_USAGE),
    "kv_capacity_tokens": _POSITIVE,
    "kv_block_tokens": _Range(least=1, most=LARGEST_NUMBER),
    "max_num_seqs": _Range(least=1, most=MOST_SEQUENCES),
    "max_num_batched_tokens": _Range(least=1, most=MOST_BATCHED_TOKENS),
    "num_seqs_in_force": _NOT_NEGATIVE,
    "batched_tokens_in_force": _NOT_NEGATIVE,
    "prompt_tokens_total": _NOT_NEGATIVE,
    "cached_prompt_tokens_total": _NOT_NEGATIVE,
    "generation_tokens_total": _NOT_NEGATIVE,
    "accepted_draft_tokens_total": _NOT_NEGATIVE,
    "preempted_total": _NOT_NEGATIVE,
    "rejected_total": _NOT_NEGATIVE,
    "aborted_total": _NOT_NEGATIVE,
    "failed_total": _NOT_NEGATIVE,
    "adapter_slots": _Range(least=1, most=MOST_SEQUENCES),
}
_ENGINE_SPLITS = ("waiting_by_reason", "sleep_states", "finished_total", "tokens_by_model")
_ENGINE_HISTOGRAMS = (
    "ttft_seconds",
    "inter_token_seconds",
    "time_per_output_token_seconds",
    "latency_seconds",
    "queue_seconds",
    "prompt_tokens",
    "output_tokens",
    "iteration_tokens",
    "transfer_seconds",
    "prefill_seconds",
    "decode_seconds",
)
# A field that a card leaves blank has values of its own, which are not computed with.
_GPU = {
    "age_seconds": _FINITE,
    "utilization_ratio": _FINITE,
    "memory_used_bytes": _FINITE,
    "memory_free_bytes": _FINITE,
    "power_watts": _FINITE,
}
_GATEWAY = {
    "age_seconds": _NOT_NEGATIVE,
    "requests_total": _NOT_NEGATIVE,
    "rejected_total": _NOT_NEGATIVE,
    "queued": _NOT_NEGATIVE,
}
_GATEWAY_INSTANCE = {
    **_GATEWAY,
    "retried_total": _NOT_NEGATIVE,
    # Differences of counters, which a restart may leave below zero.
    "errors_total": _FINITE,
    "aborted_total": _FINITE,
    "cut_total": _FINITE,
    "active": _NOT_NEGATIVE,
    "failed_total": _NOT_NEGATIVE,
    "ended_total": _NOT_NEGATIVE,
    "ended_milliseconds_total": _NOT_NEGATIVE,
    "saturation_ratio": _NOT_NEGATIVE,
}
_HISTOGRAM = {"sum": _NOT_NEGATIVE, "count": _NOT_NEGATIVE}
_HISTORY = {
    # A simulator also has times before its beginning.
    "start_seconds": _Range(least=-LATEST_SECONDS, most=LATEST_SECONDS),
    "bin_seconds": _Range(least=1, most=LONGEST_BIN_SECONDS),
}
_GRANT = {
    "gpus": _Range(least=0, most=MOST_REPLICAS),
    "gpus_per_replica": _Range(least=1, most=MOST_REPLICAS),
    "kept_per_gpu": _NOT_NEGATIVE,
}
_TICK = _Range(least=SHORTEST_TICK_SECONDS, most=LONGEST_TICK_SECONDS)
_LIMITS = {
    "max_replicas": _Range(least=1),
    "max_step": _Range(least=1),
    "tick_seconds": _TICK,
}


def check_version(entry: Mapping[str, Any]) -> None:
    """Raises: InvalidInputError for an observation of a schema that is not known here.

    Called before anything else is read, because another version may have other fields.
    """
    version = entry.get("schema_version", OBSERVATION_SCHEMA_VERSION)
    if version != OBSERVATION_SCHEMA_VERSION:
        raise InvalidInputError("schema_version", shown(version), str(OBSERVATION_SCHEMA_VERSION))


def check_observation(observation: Observation, after_seconds: float | None) -> None:
    """Raises: InvalidInputError naming the first value that no workload can have.

    after_seconds: time of the observation before it, of the same workload.
    """
    _check(observation, _OBSERVATION, "")
    if after_seconds is not None and observation.time_seconds < after_seconds:
        allowed = f"{after_seconds!r} or later: the time of the observation before it"
        raise InvalidInputError("time_seconds", observation.time_seconds, allowed)
    for index, pod in enumerate(observation.pods):
        _check_pod(pod, f"pods[{index}].")
    counted = {"gateway.": observation.gateway, "fallback.": observation.fallback}
    counted |= {f"classes.{name}.": sample for name, sample in observation.classes.items()}
    for where, sample in counted.items():
        _check_gateway(sample, where)
    for knob, standing in observation.in_force.items():
        for name, value in standing.values.items():
            _check_number(value, _NOT_NEGATIVE, f"in_force.{knob}.{name}")
    if observation.grant is not None:
        _check(observation.grant, _GRANT, "grant.")
    if observation.history is not None:
        _check_history(observation.history, "history.")
        if observation.history.recent is not None:
            _check_history(observation.history.recent, "history.recent.")


def check_kinds(stated: Any, read: Any, field: str = "") -> None:
    """Raises: InvalidInputError naming the first value of another kind than was read from it.

    pydantic reads "3" and true as numbers, and 1 and "yes" as true.
    """
    if isinstance(stated, Mapping):
        for name, value in stated.items():
            own = read.get(name) if isinstance(read, Mapping) else getattr(read, name, None)
            check_kinds(value, own, f"{field}.{name}" if field else name)
    elif isinstance(stated, list):
        for index, (value, own) in enumerate(zip(stated, read or (), strict=False)):
            check_kinds(value, own, f"{field}[{index}]")
    elif _kind(read) not in {None, _kind(stated)} and (
        # JSON has no infinity, so the last edge of a histogram is a string.
        isinstance(read, int) or math.isfinite(read)
    ):
        raise InvalidInputError(field, shown(stated), str(_kind(read)))


def _kind(value: Any) -> str | None:
    """What a value is that pydantic would convert another one to; None for all others."""
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, int | float) else None


def check_limits(limits: Limits) -> None:
    """Raises: InvalidInputError naming the first bound that no administrator can set."""
    _check(limits, _LIMITS, "limits.")


def check_tick(tick_seconds: float, field: str) -> float:
    """The time between decisions. Raises: InvalidInputError for one that no operator can run at."""
    _check_number(tick_seconds, _TICK, field)
    return tick_seconds


def check_time(time_seconds: float) -> None:
    """Raises: InvalidInputError for an invalid time."""
    _check_number(time_seconds, _TIME, "time_seconds")


def check_replicas(count: int, field: str) -> None:
    """Raises: InvalidInputError for a count of replicas that no target can have."""
    _check_number(count, _REPLICAS, field)


def _check_pod(pod: PodSample, where: str) -> None:
    _check(pod, _POD, where)
    for index, engine in enumerate(pod.engines):
        _check_engine(engine, f"{where}engines[{index}].")
    for index, gpu in enumerate(pod.gpus):
        _check(gpu, _GPU, f"{where}gpus[{index}].")


def _check_engine(engine: EngineSample, where: str) -> None:
    _check(engine, _ENGINE, where)
    for name in _ENGINE_SPLITS:
        for part, value in getattr(engine, name).items():
            _check_number(value, _NOT_NEGATIVE, f"{where}{name}.{part}")
    for name in _ENGINE_HISTOGRAMS:
        histogram = getattr(engine, name)
        if histogram is not None:
            _check_histogram(histogram, f"{where}{name}.")


def _check_histogram(histogram: HistogramSample, where: str) -> None:
    _check(histogram, _HISTOGRAM, where)
    edge_before, count_before = -math.inf, 0.0
    for index, edge in enumerate(histogram.upper_bounds):
        if not edge > edge_before:
            allowed = "a number" if index == 0 else f"above {edge_before!r}, the edge before it"
            raise InvalidInputError(f"{where}upper_bounds[{index}]", edge, allowed)
        edge_before = edge
    for index, count in enumerate(histogram.cumulative_counts):
        field = f"{where}cumulative_counts[{index}]"
        _check_number(count, _NOT_NEGATIVE, field)
        if count < count_before:
            allowed = f"{count_before!r} or more: counts are cumulative"
            raise InvalidInputError(field, count, allowed)
        count_before = count


def _check_gateway(gateway: GatewaySample | None, where: str) -> None:
    if gateway is None:
        return
    _check(gateway, _GATEWAY, where)
    for index, instance in enumerate(gateway.instances):
        _check(instance, _GATEWAY_INSTANCE, f"{where}instances[{index}].")
        if instance.latency_seconds is not None:
            _check_histogram(
                instance.latency_seconds, f"{where}instances[{index}].latency_seconds."
            )
    for one in gateway.priorities:
        for index, instance in enumerate(one.instances):
            _check(
                instance, _GATEWAY_INSTANCE, f"{where}priorities.{one.priority}.instances[{index}]."
            )


def _check(sample: object, ranges: Mapping[str, _Range], where: str) -> None:
    for name, allowed in ranges.items():
        _check_number(getattr(sample, name), allowed, f"{where}{name}")


def _check_number(value: float | None, allowed: _Range, field: str) -> None:
    """Check a number; an unknown one is valid."""
    if value is not None and not allowed.holds(value):
        raise InvalidInputError(field, shown(value), str(allowed))


def _check_history(history: RateHistory, name: str) -> None:
    _check(history, _HISTORY, name)
    for index, rate in enumerate(history.rates_per_second):
        _check_number(rate, _NOT_NEGATIVE, f"{name}rates_per_second[{index}]")
