"""Batch limits in force, and where each is known from.

In this order: stated (spec.engine), exported by the engine, given on its command line, shown by
the data, the runtime's default for the version and the card. vLLM exports neither limit (read in
0.32.0).

What data show, and what they rule out:
- running stands at its highest value while requests end, others wait and the KV cache is not full:
  that value is the limit of sequences; a value above a default refutes it;
- steps while requests wait, although neither sequences nor KV cache are at their limit, are full:
  mean tokens per step are the budget. Over any window the mean is no more than the budget, and a
  step with so many tokens refutes a default below them less one prompt, whose tokens are counted
  when its last chunk is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.estimation.stored_fields import items_of, numbers_of, rounded, text_of
from servingslo.estimation.windows.counters import EngineStep, Window
from servingslo.models.engine.service_time import DynamicBatcher
from servingslo.runtimes import catalogue
from servingslo.runtimes.profile import EngineSetting, RuntimeProfile
from servingslo.runtimes.vllm_images import vllm_version

# Scrapes at the highest value with requests waiting before it is taken for the limit. One or two
# may be the token budget's doing; it does not hold the count of sequences at one value.
STANDING_SCRAPES = 3
# A request that has just ended leaves a place until the next step.
STANDING_RATIO = 0.95
# Above, waiting requests may wait for memory.
FREE_KV_RATIO = 0.9
# A window whose queue was empty in between is not full throughout: there were more at both ends
# than a few steps admit, and two windows agree on what a full step holds.
LEAST_WAITING = 4.0
LEAST_FULL_WINDOWS = 2
FULL_WINDOWS_AGREE_RATIO = 0.1
# Running that rises by so much inside a window is not held by the limit of sequences.
RISING_RATIO = 1.1
# Steps over which the prompt that a window began or ended in is no large part of the mean.
LEAST_STEPS = 20.0
# What a mean must exceed a default by to refute it.
REFUTED_RATIO = 1.1
# What a default may be wrong by shows in the percentiles: with 128 / 2,048 in place of 64 / 512 the
# predicted p95 TTFT of the recorded vLLM 0.32.0 is 9 to 13 % lower at 22 to 71 % utilization, TPOT
# less than 1 %. Each assumed limit adds it to the stated error of the law, as an independent one.
ASSUMED_ERROR_RATIO = 0.1
_VERSION_UNKNOWN = (
    "the tag of image {} does not say vLLM's version; defaults of 0.9 to 0.31 are assumed"
)
_NUMBERS_STORED = 6
# Fields of the limits, as a runtime's knobs name them.
_SEQUENCES, _BUDGET = "max_num_seqs", "max_num_batched_tokens"


class LimitSource(StrEnum):
    """Where a limit in force is known from."""

    STATED = "stated"
    EXPORTED = "exported"
    ARGUMENTS = "args"
    LEARNT = "learnt"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLimits:
    """Limits that the resource states; None where it states none.

    batcher: how batches of whole requests form, of engines that serve those.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    batcher: DynamicBatcher | None = None


NOTHING_STATED = StatedLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit in force. assumed: the default that holds where nothing else tells."""

    value: int
    source: LimitSource
    assumed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsInForce:
    """Both limits; None where they are not known.

    That is where nothing tells and the runtime has no default that is known, and where the command
    line gives a limit that could not be read.
    unread: what of the command line, and of the image, could not be read; '' for nothing.
    """

    max_num_seqs: Limit | None = None
    max_num_batched_tokens: Limit | None = None
    unread: str = ""

    @property
    def assumed_count(self) -> int:
        """How many of them are defaults that nothing confirms."""
        both = (self.max_num_seqs, self.max_num_batched_tokens)
        return sum(one is not None and one.source is LimitSource.DEFAULT for one in both)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvidence:
    """What the engines of one pod template and image have shown of their limits.

    running_high: most sequences seen running. standing_count, below_count: scrapes with requests
    waiting and KV cache free, at that value and below it. tokens_low: most tokens that a step
    certainly held on average. full_tokens: mean tokens per step of the fullest windows in which
    steps were full, largest first.
    """

    template_hash: str | None = None
    image: str | None = None
    running_high: float = 0.0
    standing_count: int = 0
    below_count: int = 0
    tokens_low: float = 0.0
    full_tokens: tuple[float, ...] = ()

    @property
    def sequences(self) -> int | None:
        """The limit of sequences that the data show, None while they show none."""
        shown = self.standing_count >= STANDING_SCRAPES and self.standing_count > self.below_count
        return int(self.running_high) if shown else None

    @property
    def batched_tokens(self) -> int | None:
        """The token budget that the data show, None while they show none."""
        full = self.full_tokens
        if len(full) < LEAST_FULL_WINDOWS or full[-1] < (1.0 - FULL_WINDOWS_AGREE_RATIO) * full[0]:
            return None
        return round(max(full[0], self.tokens_low))


def observe(
    evidence: LimitEvidence, newest: PodSample, steps: Sequence[EngineStep], names: frozenset[str]
) -> LimitEvidence:
    """The evidence after one tick's new scrapes of the pods with these names.

    newest: their youngest; another template or image starts anew.
    """
    if (evidence.template_hash, evidence.image) != (newest.template_hash, newest.image):
        evidence = LimitEvidence(template_hash=newest.template_hash, image=newest.image)
    several = counted_several_times(newest)
    for step in steps:
        scraped = step.memory.counters
        if step.memory.pod not in names or step.counters is None or scraped is None:
            continue
        evidence = _with_running(evidence, scraped.sample, step.counters)
        if step.flow is not None and not several:
            evidence = _with_tokens(evidence, step.flow, scraped.sample)
    return evidence


def counted_several_times(pod: PodSample) -> bool:
    """Whether several processes count each step of its engines, so that steps are not known.

    Source: vllm/v1/metrics/loggers.py of 0.32.0, the remark at iteration_tokens_total; without a
    count there are as many API servers as data-parallel engines.
    """
    stated = None if pod.launch is None else pod.launch.api_server_count
    return (stated or 1) > 1


def _with_running(evidence: LimitEvidence, scraped: EngineSample, window: Window) -> LimitEvidence:
    running = scraped.running or 0.0
    if running > evidence.running_high:
        evidence = replace(evidence, running_high=running, standing_count=0, below_count=0)
    # Where none ended in between, running stands because nothing happened.
    if not _waits_for_capacity(scraped) or running < 1.0 or not window.finished:
        return evidence
    if running == evidence.running_high:
        return replace(evidence, standing_count=evidence.standing_count + 1)
    if running < STANDING_RATIO * evidence.running_high:
        return replace(evidence, below_count=evidence.below_count + 1)
    return evidence


def _waits_for_capacity(scraped: EngineSample) -> bool:
    """Whether requests wait and memory is not what they wait for."""
    reasons = scraped.waiting_by_reason
    waiting = reasons.get("capacity", 0.0) if reasons else scraped.waiting or 0.0
    kv = scraped.kv_usage_ratio
    return waiting > 0.0 and (kv is None or kv < FREE_KV_RATIO)


def _with_tokens(evidence: LimitEvidence, window: Window, scraped: EngineSample) -> LimitEvidence:
    steps = window.step_count
    if window.restarted or window.from_zero or not steps or not window.paired:
        return evidence
    computed = (window.prompt_tokens or 0.0) - (window.cached_tokens or 0.0)
    mean = (max(computed, 0.0) + (window.generated_tokens or 0.0)) / steps
    low = max(evidence.tokens_low, _certain_tokens(scraped))
    if steps >= LEAST_STEPS:
        low = max(low, mean / REFUTED_RATIO)
    evidence = replace(evidence, tokens_low=low)
    if not _full_throughout(evidence, window, scraped):
        return evidence
    fullest = sorted((*evidence.full_tokens, mean), reverse=True)
    return replace(evidence, full_tokens=tuple(fullest[:LEAST_FULL_WINDOWS]))


def _certain_tokens(scraped: EngineSample) -> float:
    """Fewest tokens that the fullest step computed, since the engine started."""
    fullest, longest = scraped.iteration_tokens, scraped.prompt_tokens
    if fullest is None or longest is None:
        return 0.0
    most, tokens = _highest_bucket(longest), _highest_bucket(fullest, lower=True)
    if most is None or tokens is None:
        return 0.0
    # Everything in a step was scheduled in it, save the first chunks of one prompt.
    return max(tokens - most, 0.0)


def _highest_bucket(histogram: HistogramSample, *, lower: bool = False) -> float | None:
    """Upper (or lower) edge of the highest bucket that holds something, None for an empty one."""
    edges, counts = histogram.upper_bounds, histogram.cumulative_counts
    for index in range(len(counts) - 1, -1, -1):
        before = counts[index - 1] if index else 0.0
        if counts[index] > before:
            return (edges[index - 1] if index else 0.0) if lower else edges[index]
    return None


def _full_throughout(evidence: LimitEvidence, window: Window, scraped: EngineSample) -> bool:
    """Whether requests waited for the token budget from the window's beginning to its end."""
    waited = min(window.waiting_before or 0.0, window.waiting_after or 0.0)
    if waited < LEAST_WAITING or not _waits_for_capacity(scraped) or window.preempted:
        return False
    before, after = window.running_before or 0.0, window.running_after or 0.0
    below = max(before, after) < STANDING_RATIO * evidence.running_high
    return below or (before > 0.0 and after >= RISING_RATIO * before)


def resolve(
    newest: PodSample,
    stated: StatedLimits,
    runtime: str | None,
    evidence: LimitEvidence,
) -> LimitsInForce:
    """The limits in force on the youngest pod, each with its source.

    runtime: whose defaults are assumed; without one no limit is.
    """
    engine = newest.engines[0]
    sequences = _known(stated.max_num_seqs, engine.num_seqs_in_force, engine.max_num_seqs)
    budget = _known(
        stated.max_num_batched_tokens, engine.batched_tokens_in_force, engine.max_num_batched_tokens
    )
    if sequences is not None and budget is not None:
        return LimitsInForce(max_num_seqs=sequences, max_num_batched_tokens=budget)
    usual_sequences: tuple[int, ...] = ()
    usual_tokens: tuple[int, ...] = ()
    assumed: dict[str, int] = {}
    unread = [] if newest.launch is None or not newest.launch.unread else [newest.launch.unread]
    if runtime is not None:
        profile = catalogue.profile(runtime)
        usual_sequences, usual_tokens = profile.usual_sequences, profile.usual_batched_tokens
        setting = _setting(
            newest,
            None if sequences is None else sequences.value,
            None if budget is None else budget.value,
        )
        assumed = _assumed(newest, profile, setting)
        decides = profile.version_decides
        if newest.image and assumed and decides is not None and decides(setting):
            unread.append(_VERSION_UNKNOWN.format(newest.image))
    return LimitsInForce(
        max_num_seqs=sequences
        or _shown(
            evidence.sequences, evidence.running_high, assumed.get(_SEQUENCES), usual_sequences
        ),
        max_num_batched_tokens=budget
        or _shown(evidence.batched_tokens, evidence.tokens_low, assumed.get(_BUDGET), usual_tokens),
        unread="; ".join(unread),
    )


def _assumed(pod: PodSample, profile: RuntimeProfile, setting: EngineSetting) -> dict[str, int]:
    """Defaults by field; none for a limit that is given and could not be read."""
    if profile.default_limits is None:
        return {}
    defaults = profile.default_limits(setting)
    unread = () if pod.launch is None else pod.launch.unread_limits
    values = {_SEQUENCES: defaults.max_num_seqs, _BUDGET: defaults.max_num_batched_tokens}
    return {name: value for name, value in values.items() if name not in unread}


def _known(stated: int | None, exported: float | None, given: int | None) -> Limit | None:
    if stated is not None:
        return Limit(value=stated, source=LimitSource.STATED)
    if exported is not None and exported >= 1.0:
        return Limit(value=round(exported), source=LimitSource.EXPORTED)
    return None if given is None else Limit(value=given, source=LimitSource.ARGUMENTS)


def _shown(
    shown: int | None, least: float, assumed: int | None, usual: Sequence[int]
) -> Limit | None:
    """What data show, else the default, or the next usual value where data refute it."""
    if shown is not None:
        return Limit(value=shown, source=LimitSource.LEARNT, assumed=assumed)
    if assumed is None:
        return None
    if least <= assumed:
        return Limit(value=assumed, source=LimitSource.DEFAULT, assumed=assumed)
    corrected = next((value for value in usual if value >= least), round(least))
    return Limit(value=corrected, source=LimitSource.LEARNT, assumed=assumed)


def _setting(pod: PodSample, sequences: int | None, budget: int | None) -> EngineSetting:
    launch = pod.launch
    memory = [
        gpu.memory_used_bytes + gpu.memory_free_bytes
        for gpu in pod.gpus
        if gpu.memory_used_bytes is not None and gpu.memory_free_bytes is not None
    ]
    given = launch is not None and launch.accelerator
    return EngineSetting(
        version=vllm_version(pod.image),
        card=pod.gpu_product,
        card_memory_bytes=min(memory, default=None),
        accelerator=bool(given or pod.gpus or pod.gpu_product),
        throughput_mode=launch is not None and launch.throughput_mode,
        chunked_prefill=None if launch is None else launch.chunked_prefill,
        max_model_len=None if launch is None else launch.max_model_len,
        max_num_seqs=sequences,
        max_num_batched_tokens=budget,
    )


def dump(evidence: LimitEvidence) -> dict[str, Any]:
    """The evidence as JSON values."""
    e = evidence
    numbers = (e.running_high, e.standing_count, e.below_count, e.tokens_low, *e.full_tokens)
    return {"of": [e.template_hash, e.image], "seen": rounded(numbers, 6)}


def load(stored: object) -> LimitEvidence:
    """The evidence that was stored; none where it cannot be read."""
    if not isinstance(stored, Mapping):
        return LimitEvidence()
    of, seen = items_of(stored.get("of")), items_of(stored.get("seen"))
    numbers = numbers_of(seen, len(seen))
    if len(of) != 2 or numbers is None or not 4 <= len(seen) <= _NUMBERS_STORED:
        return LimitEvidence()
    if min(numbers) < 0 or not (numbers[1].is_integer() and numbers[2].is_integer()):
        return LimitEvidence()
    return LimitEvidence(
        template_hash=text_of(of[0]),
        image=text_of(of[1]),
        running_high=numbers[0],
        standing_count=int(numbers[1]),
        below_count=int(numbers[2]),
        tokens_low=numbers[3],
        full_tokens=tuple(numbers[4:]),
    )
