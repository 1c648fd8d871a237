"""Detect command lines on which a batch limit's flag would not have the intended effect.

The flag can be written there and read back, but the server derives another limit from it, or none.
Such limits are read if possible, and not changed.
"""

from collections.abc import Mapping, Sequence

from servingslo.runtimes.launch.arguments import command_words
from servingslo.runtimes.launch.command_line import (
    expanded,
    passes_on,
    place_behind,
    start_command,
)
from servingslo.runtimes.launch.flags import is_given, occurrences, words_as_they_are
from servingslo.runtimes.launch.programs import start_unseen
from servingslo.runtimes.profile import RuntimeProfile
from servingslo.runtimes.shell.words import Word

# Budgets are multiples of this many tokens, like blocks of KV caches and chunks.
BUDGET_BLOCK_TOKENS = 64
# SGLang. Source: sglang/srt/server_args.py of 0.5: with attention data parallelism both limits are
# divided by the ranks; a chunk that is no multiple of the page ends the server at its start.
_SPLITS, _RANKS = "--enable-dp-attention", "--dp-size"
_PAGE, _CHUNK = "--page-size", "--chunked-prefill-size"
# TensorRT-LLM. Source: tensorrt_llm/commands/serve.py: "a YAML file that overwrites the parameters
# specified by trtllm-serve"; a built TensorRT engine has its limits from its build.
_FILES = ("--config", "--extra_llm_api_options")
_BACKEND, _BUILT = "--backend", ("tensorrt", "trt")
# Its servers other than an engine's, which is the default.
_SERVE = "trtllm-serve"
_OTHER_SERVERS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve")


def write_refused(
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    profile: RuntimeProfile,
    variables: Mapping[str, str],
    *,
    image: str | None,
) -> str:
    """Why limits are not written into a command line although they could be; '' if they are.

    variables: the container's own literal variables.
    """
    if unseen := start_unseen(command or (), args or (), image, profile):
        return unseen
    words = command_words(expanded(command, variables), expanded(args, variables))
    started = words_as_they_are(words)
    if host := next((one for one in profile.hosts if place_behind(started, [one])), None):
        return f"{host} is not known to take the flags of {profile.name}"
    if wrapper := _wrapper(started, profile):
        return f"{wrapper[:80]} is not known to pass its arguments on"
    if profile.name == "sglang":
        return _of_sglang(started, profile)
    if profile.name == "trtllm":
        return _of_trtllm(started, profile)
    return ""


def _wrapper(words: Sequence[Word], profile: RuntimeProfile) -> str:
    """An unknown program in front of the start command; '' if there is none."""
    begin, _ = start_command(words, profile.starts) or (0, 0)
    before = [word.text for word in words[:begin] if "=" not in word.text]
    for at, text in enumerate(before):
        may_be_one = at == 0 or before[at - 1] == "--" or "/" in text or text.endswith(".py")
        if may_be_one and not text.startswith("-") and not passes_on(text):
            return text
    return ""


def _of_sglang(words: Sequence[Word], profile: RuntimeProfile) -> str:
    if is_given(words, _SPLITS, profile):
        return f"{_SPLITS} divides the limits by the number of ranks"
    if _value(words, _RANKS, profile) not in {None, "1"}:
        return f"{_RANKS} may divide the limits by the number of ranks"
    chunk = _value(words, _CHUNK, profile) or ""
    if chunk.startswith("-"):
        return f"{_CHUNK} {chunk[:20]} turns chunked prefill off, and it is left so"
    page = _value(words, _PAGE, profile)
    if page is None or (page.isascii() and page.isdecimal() and _divides(int(page))):
        return ""
    return f"{_PAGE} {page[:20]} does not divide {BUDGET_BLOCK_TOKENS}, the step of token budgets"


def _of_trtllm(words: Sequence[Word], profile: RuntimeProfile) -> str:
    place = place_behind(words, [_SERVE]) or len(words)
    if (other := "".join(word.text for word in words[place : place + 1])) in _OTHER_SERVERS:
        return f"{_SERVE} {other} does not take the limits of an engine"
    if file := next((flag for flag in _FILES if is_given(words, flag, profile)), None):
        return f"the file of {file} comes before the flags, and is not read"
    backend = _value(words, _BACKEND, profile)
    return f"{_BACKEND} {backend} has its limits from the engine's build" * (backend in _BUILT)


def _divides(page: int) -> bool:
    return page > 0 and BUDGET_BLOCK_TOKENS % page == 0


def _value(words: Sequence[Word], flag: str, profile: RuntimeProfile) -> str | None:
    """The last value of a flag, '' for one that is not read; None if not given."""
    found = occurrences(words, flag, profile)
    return found[-1].text if found else None
