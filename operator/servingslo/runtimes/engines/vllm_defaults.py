"""Default batch limits of vLLM: they depend on version, card and three flags.

Source: EngineArgs.get_batch_defaults and _set_default_max_num_seqs_and_batched_tokens_args of
vllm/engine/arg_utils.py, read in the wheel of 0.32.0, for the API server. Large cards have larger
defaults since vllm-project/vllm#17885 (0.9.0), two of them by name since #12369, in force in 0.8.
#16158 (0.8.4) took back the sequences of all others; #10544 (0.6.5) enlarged chunks.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from servingslo.runtimes.profile import DefaultLimits, EngineSetting

GIBIBYTE = 2**30
# Thresholds and values of get_batch_defaults.
LARGE_CARD_BYTES = 70 * GIBIBYTE
LARGEST_CARD_BYTES = 160 * GIBIBYTE
CPU_LIMITS = DefaultLimits(max_num_seqs=128, max_num_batched_tokens=2048)
SMALL_CARD_LIMITS = DefaultLimits(max_num_seqs=256, max_num_batched_tokens=2048)
LARGE_CARD_LIMITS = DefaultLimits(max_num_seqs=1024, max_num_batched_tokens=8192)
LARGEST_CARD_LIMITS = DefaultLimits(max_num_seqs=1024, max_num_batched_tokens=16384)
MANY_SEQUENCES_LIMITS = DefaultLimits(max_num_seqs=1024, max_num_batched_tokens=2048)
# For earlier versions only the smaller limits are certain, except on these cards.
FIRST_WITH_LARGE_CARDS = (0, 9)
FIRST_WITH_NAMED_CARDS = (0, 8)
NAMED_CARDS = ("H100", "H200")
BEFORE_LARGE_CARDS = (0, 7)
# In these versions every card has the sequences of a large one.
FIRST_WITH_MANY_SEQUENCES, FIRST_WITH_FEWER = (0, 8, 0), (0, 8, 4)
# Earlier versions process prompts whole by default, except for models of longer sequences.
FIRST_WITH_CHUNKS = (0, 8)
LONGEST_WITHOUT_CHUNKS = 32_768
FIRST_WITH_LARGE_CHUNKS = (0, 6, 5)
SMALL_CHUNK_TOKENS = 512
# Read in this version; for earlier or unknown versions the smaller budget is assumed.
FIRST_WITH_LARGEST_CARDS = (0, 32)
# A card with this name never counts as large, whatever its memory.
SMALL_IN_SPITE_OF_MEMORY = "A100"
# `--performance-mode throughput` multiplies both limits by this.
THROUGHPUT_FACTOR = 2
# Minimum memory of cards with these names, used if no exporter reports the memory.
# Source: vendors' data sheets: H100 80 GB or more, H20 96, H200 141, GH200 96 (the number in its
# name is the processor's); B200 180, B300 270, MI300X 192, MI325X 256, MI355X 288.
_LARGEST_NAMES = re.compile(r"\b(G?B[23]00|MI3[0-9]{2}X)\b", re.IGNORECASE)
_LARGE_NAMES = re.compile(r"\b(H100|H200|H20|GH200)\b", re.IGNORECASE)
# As GPU feature discovery labels nodes: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb, NVIDIA-L40S-SHARED.
_PART_IN_NAME = re.compile(r"\b(MIG|SHARED)\b")
_MEMORY_IN_NAME = re.compile(r"\b(\d+)\s?GB\b", re.IGNORECASE)

_VERSION_UNKNOWN = (
    "the tag of image {} does not say vLLM's version; defaults of 0.9 to 0.31 are assumed"
)
_LENGTH_UNKNOWN = (
    "the token budget of this vLLM depends on the model's longest sequence: give --max-model-len"
)


def default_limits(setting: EngineSetting) -> DefaultLimits:
    """The limits of an engine with this setting and no limits in its command line.

    For an unknown card, or a part of one, they are the smaller ones; without any sign of an
    accelerator, those of a CPU. If one limit is given, it also bounds the other's default.
    """
    base = _by_card(setting)
    factor = THROUGHPUT_FACTOR if setting.throughput_mode else 1
    sequences = setting.max_num_seqs or base.max_num_seqs * factor
    budget = setting.max_num_batched_tokens
    if budget is None:
        budget = base.max_num_batched_tokens * factor
        longest = setting.max_model_len
        if longest is not None and _whole_prompts(setting, longest):
            budget = max(budget, longest)
        elif (longest or setting.chunked_prefill) and _before(setting, FIRST_WITH_LARGE_CHUNKS):
            budget = SMALL_CHUNK_TOKENS
        if longest is not None:
            budget = min(budget, sequences * longest)
    if setting.max_num_seqs is None:
        sequences = min(sequences, budget)
    return DefaultLimits(max_num_seqs=sequences, max_num_batched_tokens=budget)


def _whole_prompts(setting: EngineSetting, longest: int) -> bool:
    """Whether a prompt is processed in one step: as stated, else by the version's default.

    Source: EngineArgs._set_default_args_v0 of vllm/engine/arg_utils.py of 0.8. Since 0.8.0 the
    default is the other engine, which chunks prompts.
    """
    if setting.chunked_prefill is not None:
        return not setting.chunked_prefill
    return _before(setting, FIRST_WITH_CHUNKS) and longest <= LONGEST_WITHOUT_CHUNKS


def doubts(setting: EngineSetting, image: str | None) -> Iterator[str]:
    """Why the defaults may be others: the version or the longest sequence is not known."""
    others = (replace(setting, version=v) for v in (BEFORE_LARGE_CARDS, FIRST_WITH_LARGEST_CARDS))
    unknown = image and setting.version is None
    if unknown and any(_by_card(one) != _by_card(setting) for one in others):
        yield _VERSION_UNKNOWN.format(image)
    given = setting.max_num_batched_tokens or setting.max_model_len
    if not given and _whole_prompts(setting, 0):
        yield _LENGTH_UNKNOWN


def _before(setting: EngineSetting, version: tuple[int, ...]) -> bool:
    return setting.version is not None and setting.version < version


def _by_card(setting: EngineSetting) -> DefaultLimits:
    if setting.accelerator is not True and setting.card is None:
        return CPU_LIMITS
    version = setting.version
    memory = setting.card_memory_bytes or _memory_by_name(setting.card or "")
    name = (setting.card or "").upper()
    if setting.part_of_card or _PART_IN_NAME.search(name):
        return SMALL_CARD_LIMITS
    if version is not None and version < FIRST_WITH_LARGE_CARDS:
        named = version >= FIRST_WITH_NAMED_CARDS and any(one in name for one in NAMED_CARDS)
        many = FIRST_WITH_MANY_SEQUENCES <= version < FIRST_WITH_FEWER
        small = MANY_SEQUENCES_LIMITS if many else SMALL_CARD_LIMITS
        return LARGE_CARD_LIMITS if named else small
    newest = version is not None and version >= FIRST_WITH_LARGEST_CARDS
    if memory >= LARGEST_CARD_BYTES and newest:
        return LARGEST_CARD_LIMITS
    if memory >= LARGE_CARD_BYTES and SMALL_IN_SPITE_OF_MEMORY not in name:
        return LARGE_CARD_LIMITS
    return SMALL_CARD_LIMITS


def _memory_by_name(card: str) -> float:
    """A card's memory as known from its name; 0 if the name shows nothing."""
    # An exporter writes spaces, a node label dashes.
    words = card.replace("-", " ").replace("_", " ")
    if _LARGEST_NAMES.search(words):
        return LARGEST_CARD_BYTES
    if _LARGE_NAMES.search(words):
        return LARGE_CARD_BYTES
    found = _MEMORY_IN_NAME.search(words)
    return 0.0 if found is None else float(found.group(1)) * GIBIBYTE
