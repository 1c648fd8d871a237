"""Find the batch limits in force, and the source of each.

In this order: stated (spec.engine), exported by the engine, given on its command line, shown by the
data, the runtime's default for the version and the card. vLLM exports neither limit (read in
0.32.0).

What data show, and what they rule out:
- If running requests stay at their highest value while requests end, others wait and the KV cache
  is not full, that value is the limit of sequences. A value above a default refutes the default.
- If requests wait although neither sequences nor KV cache are at their limit, steps are full: mean
  tokens per step are the budget. Over any window the mean is at most the budget. The largest step
  refutes a default below its tokens less one prompt, whose tokens are counted when its last chunk
  is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.estimation.stored_fields import TEXT, Items, Keys, Number, Numbers, One, Record
from servingslo.estimation.windows.counters import EngineStep, Window
from servingslo.models.engine.service_time import DynamicBatcher
from servingslo.records import record
from servingslo.runtimes import catalogue
from servingslo.runtimes.engines.vllm_images import vllm_version
from servingslo.runtimes.profile import EngineSetting, RuntimeProfile

# Scrapes at the highest value with requests waiting before it is taken for the limit. One or two
# may be caused by the token budget, which does not hold the number of sequences at one value.
# Judgement; measured by limits found wrongly on recordings whose limits are known.
STANDING_SCRAPES = 3
# A request that has just ended leaves its slot empty until the next step.
STANDING_RATIO = 0.95
# Above this, waiting requests may wait for memory.
# Judgement; measured by the KV use at which a recorded engine first makes requests wait.
FREE_KV_RATIO = 0.9
# A window whose queue was empty in between is not full throughout. So both ends must have more
# waiting requests than a few steps admit, and two windows must agree on the tokens of a full step.
LEAST_WAITING = 4.0
LEAST_FULL_WINDOWS = 2
FULL_WINDOWS_AGREE_RATIO = 0.1
# If running requests rise by this much inside a window, the limit of sequences does not bind.
RISING_RATIO = 1.1
# Steps over which a prompt cut by the window's ends is no large part of the mean.
LEAST_STEPS = 20.0
# Factor by which a mean must exceed a default to refute it.
REFUTED_RATIO = 1.1
# A wrong default shows in the percentiles: with 128 / 2,048 in place of 64 / 512 the predicted p95
# TTFT of the recorded vLLM 0.32.0 is 9 to 13 % lower at 22 to 71 % utilization, TPOT less than 1 %.
# Each assumed limit adds this to the stated error of the law, as an independent error.
ASSUMED_ERROR_RATIO = 0.1
# Fields of the limits, as a runtime's knobs name them.
_SEQUENCES, _BUDGET = "max_num_seqs", "max_num_batched_tokens"


class LimitSource(StrEnum):
    """The source of a limit in force."""

    STATED = "stated"
    EXPORTED = "exported"
    ARGUMENTS = "args"
    LEARNT = "learnt"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLimits:
    """Limits that the resource states; None if it states none.

    batcher: how batches of whole requests form, for engines that serve those.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    batcher: DynamicBatcher | None = None


NOTHING_STATED = StatedLimits()


@record(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit in force. assumed: the default that holds without other evidence."""

    value: int
    source: LimitSource
    assumed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsInForce:
    """Both limits; None if unknown.

    A limit is unknown if no source gives it and the runtime's default is unknown, or if the command
    line gives it in a form that could not be read. unread: the parts of the command line and of the
    image that could not be read; '' for none.
    """

    max_num_seqs: Limit | None = None
    max_num_batched_tokens: Limit | None = None
    unread: str = ""

    @property
    def assumed_count(self) -> int:
        """How many of them are unconfirmed defaults."""
        both = (self.max_num_seqs, self.max_num_batched_tokens)
        return sum(one is not None and one.source is LimitSource.DEFAULT for one in both)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvidence:
    """What the engines of one pod template and image have shown about their limits.

    running_high: most running sequences observed. standing_count, below_count: scrapes with
    requests waiting and KV cache free, at that value and below it. tokens_low: most tokens that a
    step certainly held on average. full_tokens: mean tokens per step of the fullest windows in
    which steps were full, largest first.
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
    """Return the evidence after one tick's new scrapes of the pods with these names.

    newest: their youngest; another template or image starts new evidence.
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
    """Return whether several processes count each step of its engines, so that steps are unknown.

    Source: vllm/v1/metrics/loggers.py of 0.32.0, the remark at iteration_tokens_total; without a
    count there are as many API servers as data-parallel engines.
    """
    stated = None if pod.launch is None else pod.launch.api_server_count
    return (stated or 1) > 1


def _with_running(evidence: LimitEvidence, scraped: EngineSample, window: Window) -> LimitEvidence:
    running = scraped.running or 0.0
    if running > evidence.running_high:
        evidence = replace(evidence, running_high=running, standing_count=0, below_count=0)
    # If no request ended in between, running requests are constant only because nothing happened.
    if not _waits_for_capacity(scraped) or running < 1.0 or not window.finished:
        return evidence
    if running == evidence.running_high:
        return replace(evidence, standing_count=evidence.standing_count + 1)
    if running < STANDING_RATIO * evidence.running_high:
        return replace(evidence, below_count=evidence.below_count + 1)
    return evidence


def _waits_for_capacity(scraped: EngineSample) -> bool:
    """Return whether requests wait for something other than memory."""
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
    if low > evidence.tokens_low:
        evidence = replace(evidence, tokens_low=low)
    if not _full_throughout(evidence, window, scraped):
        return evidence
    fullest = sorted((*evidence.full_tokens, mean), reverse=True)
    return replace(evidence, full_tokens=tuple(fullest[:LEAST_FULL_WINDOWS]))


def _certain_tokens(scraped: EngineSample) -> float:
    """Return the fewest tokens that the fullest step computed, since the engine started."""
    fullest, longest = scraped.iteration_tokens, scraped.prompt_tokens
    if fullest is None or longest is None:
        return 0.0
    most, tokens = _highest_bucket(longest), _highest_bucket(fullest, lower=True)
    if most is None or tokens is None:
        return 0.0
    # Everything in a step was scheduled in it, except the first chunks of one prompt.
    return max(tokens - most, 0.0)


def _highest_bucket(histogram: HistogramSample, *, lower: bool = False) -> float | None:
    """Upper (or lower) edge of the highest bucket in use, None for an empty histogram."""
    edges, counts = histogram.upper_bounds, histogram.cumulative_counts
    for index in range(len(counts) - 1, -1, -1):
        before = counts[index - 1] if index else 0.0
        if counts[index] > before:
            return (edges[index - 1] if index else 0.0) if lower else edges[index]
    return None


def _full_throughout(evidence: LimitEvidence, window: Window, scraped: EngineSample) -> bool:
    """Return whether requests waited for the token budget from the window's start to its end."""
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
    """Return the limits in force on the youngest pod, each with its source.

    runtime: whose defaults are assumed; None assumes no limit.
    """
    engine = newest.engines[0]
    sequences = _known_limit(stated.max_num_seqs, engine.num_seqs_in_force, engine.max_num_seqs)
    budget = _known_limit(
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
        setting = _engine_setting(
            newest,
            None if sequences is None else sequences.value,
            None if budget is None else budget.value,
        )
        assumed = _defaults_of(newest, profile, setting)
        if assumed and profile.doubts is not None:
            unread.extend(profile.doubts(setting, newest.image))
    return LimitsInForce(
        max_num_seqs=sequences
        or _inferred_limit(
            evidence.sequences, evidence.running_high, assumed.get(_SEQUENCES), usual_sequences
        ),
        max_num_batched_tokens=budget
        or _inferred_limit(
            evidence.batched_tokens, evidence.tokens_low, assumed.get(_BUDGET), usual_tokens
        ),
        unread="; ".join(unread),
    )


def _defaults_of(pod: PodSample, profile: RuntimeProfile, setting: EngineSetting) -> dict[str, int]:
    """Return defaults by field; none for a limit that is given but could not be read."""
    if profile.default_limits is None:
        return {}
    defaults = profile.default_limits(setting)
    unread = () if pod.launch is None else pod.launch.unread_limits
    values = {_SEQUENCES: defaults.max_num_seqs, _BUDGET: defaults.max_num_batched_tokens}
    return {name: value for name, value in values.items() if name not in unread}


def _known_limit(stated: int | None, exported: float | None, given: int | None) -> Limit | None:
    if stated is not None:
        return Limit(value=stated, source=LimitSource.STATED)
    if exported is not None and exported >= 1.0:
        return Limit(value=round(exported), source=LimitSource.EXPORTED)
    return None if given is None else Limit(value=given, source=LimitSource.ARGUMENTS)


def _inferred_limit(
    shown: int | None, least: float, assumed: int | None, usual: Sequence[int]
) -> Limit | None:
    """Limit that data show, else the default, or the next usual value if data refute it."""
    if shown is not None:
        return Limit(value=shown, source=LimitSource.LEARNT, assumed=assumed)
    if assumed is None:
        return None
    if least <= assumed:
        return Limit(value=assumed, source=LimitSource.DEFAULT, assumed=assumed)
    corrected = next((value for value in usual if value >= least), round(least))
    return Limit(value=corrected, source=LimitSource.LEARNT, assumed=assumed)


def _engine_setting(pod: PodSample, sequences: int | None, budget: int | None) -> EngineSetting:
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
        part_of_card=launch is not None and launch.part_of_card,
        throughput_mode=launch is not None and launch.throughput_mode,
        chunked_prefill=None if launch is None else launch.chunked_prefill,
        max_model_len=None if launch is None else launch.max_model_len,
        max_num_seqs=sequences,
        max_num_batched_tokens=budget,
    )


def _few(evidence: LimitEvidence) -> LimitEvidence | None:
    return evidence if len(evidence.full_tokens) <= LEAST_FULL_WINDOWS else None


# How the evidence is stored over a restart; six digits hold any limit.
EVIDENCE = Record(
    LimitEvidence,
    Keys(
        {
            "of": Items(One("template_hash", TEXT), One("image", TEXT)),
            "seen": Numbers(
                Number("running_high", digits=6, least=0.0),
                Number("standing_count", digits=6, least=0.0, whole=True),
                Number("below_count", digits=6, least=0.0, whole=True),
                Number("tokens_low", digits=6, least=0.0),
                Number("full_tokens", digits=6, least=0.0, rest=True),
            ),
        },
        needed=("of", "seen"),
    ),
    finish=_few,
)
