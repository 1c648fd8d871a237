"""NVIDIA Dynamo's planner, aggregated engines: the throughput loop and the load loop.

Profiles that Dynamo measures before deployment, or fits online, are exact here: this is the rule at
its best. Instead of ticks of 5 s it uses the simulator's, 15 s.
Source: ai-dynamo/dynamo components/planner (planner_core.py, load loop and its regression;
SLA-driven throughput loop with a Kalman filter: q 1.0 and 0.1, r 10, 5 points).
"""

import math

from servingslo.estimation.sample import EngineSample
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import View, request_rate, served_lengths
from servingslo_lab.sim.baselines.wva import tokens_in_use
from servingslo_lab.sim.fleets.cluster import Wanted

LOAD_DEFAULTS = {"sensitivity": 0.8, "kv_limit": 0.9}
LOAD_GRID = {"sensitivity": (0.4, 0.6, 0.8), "kv_limit": (0.5, 0.9)}
THRESHOLD_DEFAULTS = {"up": 1.0, "down": 0.6, "prefill_up": 1.0, "prefill_down": 0.1}
THRESHOLD_GRID = {"up": (0.2, 0.3, 0.4, 0.6, 1.0), "down": (0.1, 0.2, 0.3, 0.6)}
THROUGHPUT_DEFAULTS = {"interval_seconds": 180.0, "headroom": 1.0}
THROUGHPUT_GRID = {"interval_seconds": (60.0, 180.0), "headroom": (1.0, 1.2, 1.4)}
_LENGTH_SECONDS = 300.0
_LEVEL_NOISE, _TREND_NOISE, _READING_NOISE = 1.0, 0.1, 10.0
_POINTS = 5


def inter_token(
    law: ServiceLaw, running: float, context_tokens: float, prefill_tokens: float = 0.0
) -> float:
    """Time of a step at this load, in seconds; prefill_tokens: that ride along in it, a mean.

    Source: the aggregated regression predicts from the mean of prefill tokens in a step and the KV
    tokens of its decodes.
    """
    return (
        law.step_fixed_seconds
        + law.step_per_sequence_seconds * running
        + law.context_per_token_seconds * context_tokens
        + law.prefill_per_token_seconds * prefill_tokens
    )


def prefill_per_step(view: View, window_seconds: float) -> float:
    """Mean prefill tokens in a step of any engine; 0 if nothing was prefilled."""
    tokens = view.rate(lambda engine: engine.prompt_tokens_total, window_seconds)
    steps = view.rate(_steps, window_seconds)
    return tokens / steps if tokens is not None and steps else 0.0


def _steps(engine: EngineSample) -> float | None:
    return None if engine.iteration_tokens is None else engine.iteration_tokens.count


def first_token(
    law: ServiceLaw, limits: EngineLimits, engine: EngineSample, prompt: float
) -> float:
    """Estimated TTFT in seconds: queued prompts and the own one in chunks of the token budget.

    Requests that do not fit into the batch wait until as many others have ended.
    """
    running, queued = engine.running or 0.0, engine.waiting or 0.0
    tokens = (queued + 1.0) * prompt
    steps = max(math.ceil(tokens / max(limits.max_num_batched_tokens - running, 1.0)), 1)
    step = inter_token(law, running, tokens_in_use(engine))
    return steps * step + law.prefill_per_token_seconds * tokens


class LoadLoop:
    """One replica more if all engines would miss an objective, one less if all hold without it.

    No change while pods start or end.
    """

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()

    def decide(self, observation: Observation) -> Wanted:
        """One step or none."""
        seen = self._view.add(observation)
        lengths = served_lengths(self._view, _LENGTH_SECONDS)
        if lengths is None or not seen.engines or seen.ready != seen.replicas:
            return Wanted()
        prompt, engines = lengths[0], list(seen.engines.values())
        prefill = prefill_per_step(self._view, _LENGTH_SECONDS)
        if all(self._misses(engine, prompt, prefill) for engine in engines):
            return Wanted(replicas=self._setting.clamped(seen.replicas + 1))
        count = seen.replicas
        if count > 1 and all(self._spare(e, prompt, prefill, count / (count - 1)) for e in engines):
            return Wanted(replicas=self._setting.clamped(count - 1))
        return Wanted()

    def _misses(self, engine: EngineSample, prompt: float, prefill: float) -> bool:
        setting = self._setting
        ttft = first_token(setting.law, setting.limits, engine, prompt)
        itl = inter_token(setting.law, engine.running or 0.0, tokens_in_use(engine), prefill)
        return ttft > setting.ttft_seconds or itl > setting.tpot_seconds

    def _spare(self, engine: EngineSample, prompt: float, prefill: float, factor: float) -> bool:
        setting, share = self._setting, self._parameters["sensitivity"]
        law, running = setting.law, (engine.running or 0.0) * factor
        tokens = tokens_in_use(engine) * factor
        prefill *= factor
        own = law.step_fixed_seconds + law.prefill_per_token_seconds * prompt
        queued = (engine.waiting or 0.0) * factor * prompt * law.prefill_per_token_seconds
        return (
            queued < share * (setting.ttft_seconds - own)
            and inter_token(law, running, tokens, prefill) < share * setting.tpot_seconds
            and tokens < self._parameters["kv_limit"] * setting.limits.kv_capacity_tokens
        )


class ThresholdLoop:
    """The load loop's default target, "throughput": KV scheduled and queued, prompts queued.

    One engine above its threshold is enough to scale up; to scale down all must be below.
    Source: core/load_scaling.py, `_agg_easy_decision`; queued prompts as `_prefill_easy_decision`.
    """

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()

    def decide(self, observation: Observation) -> Wanted:
        """One step or none."""
        seen = self._view.add(observation)
        lengths = served_lengths(self._view, _LENGTH_SECONDS)
        if lengths is None or not seen.engines or seen.ready != seen.replicas:
            return Wanted()
        prompt, limits, p = lengths[0], self._setting.limits, self._parameters
        decode, prefill = [], []
        for engine in seen.engines.values():
            queued = (engine.waiting or 0.0) * prompt
            decode.append((tokens_in_use(engine) + queued) / limits.kv_capacity_tokens)
            prefill.append(queued / limits.max_num_batched_tokens)
        if any(d > p["up"] or q >= p["prefill_up"] for d, q in zip(decode, prefill, strict=True)):
            return Wanted(replicas=self._setting.clamped(seen.replicas + 1))
        if max(decode) < p["down"] and max(prefill) < p["prefill_down"]:
            return Wanted(replicas=self._setting.clamped(seen.replicas - 1))
        return Wanted()


class Kalman:
    """A level with a trend, filtered from noisy readings."""

    def __init__(self) -> None:
        self._readings = 0
        self._level, self._trend = 0.0, 0.0
        self._p11, self._p12, self._p22 = 1e3, 0.0, 1e3

    def add(self, reading: float) -> float:
        """The next expected level after this reading; until there are enough, the reading."""
        self._readings += 1
        level = self._level + self._trend
        p11 = self._p11 + 2 * self._p12 + self._p22 + _LEVEL_NOISE
        p12 = self._p12 + self._p22
        p22 = self._p22 + _TREND_NOISE
        gain1, gain2 = p11 / (p11 + _READING_NOISE), p12 / (p11 + _READING_NOISE)
        surprise = reading - level
        self._level, self._trend = level + gain1 * surprise, self._trend + gain2 * surprise
        self._p11, self._p12 = (1 - gain1) * p11, (1 - gain1) * p12
        self._p22 = p22 - gain2 * p12
        return reading if self._readings < _POINTS else max(self._level + self._trend, 0.0)


def rate_within(
    law: ServiceLaw, limits: EngineLimits, prompt: float, output: float, itl_seconds: float
) -> float:
    """Requests per second of one engine whose decode steps last the objective on average.

    Source: balance of tokens in continuous batching; the batch is limited by sequences and memory.
    """
    held = prompt + output / 2
    most = min(limits.max_num_seqs, limits.kv_capacity_tokens / held)
    each = law.step_per_sequence_seconds + law.context_per_token_seconds * held
    decode_rate = 1.0 / output

    def itl(n: float) -> float:
        # A step of n sequences prefills n/O prompts on average.
        own = law.step_fixed_seconds + each * n
        return own + n * decode_rate * prompt * law.prefill_per_token_seconds

    slope = each + decode_rate * prompt * law.prefill_per_token_seconds
    n = min(most, max((itl_seconds - law.step_fixed_seconds) / slope, 1.0))
    return n * decode_rate / itl(n)


class ThroughputLoop:
    """Every few minutes: the expected rate, divided by one engine's rate at the objective."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()
        self._filter = Kalman()
        self._last: float | None = None

    def decide(self, observation: Observation) -> Wanted:
        """The count for the next interval, nothing between two of them."""
        seen = self._view.add(observation)
        interval = self._parameters["interval_seconds"]
        if self._last is None:
            self._last = seen.time_seconds
        if seen.time_seconds - self._last < interval:
            return Wanted()
        self._last = seen.time_seconds
        lengths, rate = served_lengths(self._view, interval), request_rate(self._view, interval)
        if lengths is None or rate is None:
            return Wanted()
        setting = self._setting
        each = rate_within(setting.law, setting.limits, *lengths, setting.tpot_seconds)
        wanted = math.ceil(self._parameters["headroom"] * self._filter.add(rate) / each)
        return Wanted(replicas=setting.clamped(wanted))
