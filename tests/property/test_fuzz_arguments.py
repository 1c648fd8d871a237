"""Command lines of containers, whatever a tenant writes into them.

1. Reading never fails; a limit is a positive number of a size that a counter can hold, or unknown.
2. What is said is short.
3. A change gives what was asked for and leaves every other word, or is refused with a reason.
4. A configuration file is words or a problem, in bounded time.
5. Variables make it longer by a bounded length.
"""

import time

from hypothesis import example, given
from hypothesis import strategies as st
from tests.property.fuzzing import fuzzed, is_said, unhurried

from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.estimation.windows.plausible import LARGEST_COUNT
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.launch.arguments import (
    BatchArguments,
    command_words,
    parse_batch_arguments,
    replace_batch_arguments,
)
from servingslo.runtimes.launch.command_line import expanded
from servingslo.runtimes.launch.config_file import config_file, config_path
from servingslo.runtimes.launch.settings import parse_launch_arguments
from servingslo.runtimes.shell.words import LONGEST_LINE_CHARACTERS

pytestmark = unhurried
# A Kubernetes object is 1.5 MiB at most; a message with a whole word in it would be as long.
LONGEST_MESSAGE = 600
LONGEST_SECONDS = 2.0
_FLAGS = sorted(
    {knob.flag for profile in CATALOGUE for knob in profile.knobs}
    | {"--max_num_seqs", "--max-num", "--max-model-len", "--config", "--api-server-count"}
    | {"--no-enable-chunked-prefill", "--enable-chunked-prefill", "--performance-mode", "--"}
)
_NUMBERS = st.one_of(
    st.integers(-10, 10**7).map(str),
    st.sampled_from(["", "0", "64k", "1.5K", "2M", "0.5t", "auto", "1e3", "-1", "٣", "64\n", "08"]),
    st.builds(lambda digit, times: digit * times, st.sampled_from("09٣"), st.integers(1, 6000)),
    st.builds(lambda times: "9" * times + "k", st.integers(1, 6000)),
)
_WORDS = st.one_of(
    st.sampled_from(_FLAGS),
    st.builds("{}={}".format, st.sampled_from(_FLAGS), _NUMBERS),
    _NUMBERS,
    st.sampled_from(
        ["sh", "/bin/bash", "-c", "-lc", "-o", "vllm", "serve", "exec", "&&", "|", ";"]
    ),
    st.builds(" ".join, st.lists(st.sampled_from([*_FLAGS, "64", "'", '"', "#", "$(X)", "\\\n"]))),
    st.text(max_size=30),
)
_ARGV = st.lists(_WORDS, max_size=8)
_BY_NAME = {profile.name: profile for profile in CATALOGUE}
_RUNTIMES = st.sampled_from(sorted(_BY_NAME))
_LIMITS = st.one_of(st.none(), st.integers(1, 10**6))
_YAML = st.one_of(
    st.text(max_size=200),
    st.builds(
        "\n".join,
        st.lists(
            st.builds(
                "{}{}: {}".format,
                st.sampled_from(["", " ", "- ", "? ", "&a ", "*a ", "<<"]),
                st.sampled_from(
                    ["max-num-seqs", "max_model_len", "a", "[", "!!python/name:x", "1"]
                ),
                st.one_of(
                    _NUMBERS, st.sampled_from(["yes", "[1, 2]", "{a: b}", "2001-13-45", "|"])
                ),
            ),
            max_size=8,
        ),
    ),
)


@fuzzed
@given(command=_ARGV, args=_ARGV, runtime=_RUNTIMES, config=_ARGV)
@example(command=[], args=["--max-num-seqs", "9" * 5000], runtime="vllm", config=[])
@example(command=[], args=["--max-num-batched-tokens", "9" * 400 + "k"], runtime="vllm", config=[])
def test_any_command_line_is_read(command, args, runtime, config) -> None:
    """1, 2: limits or none, and a short reason."""
    profile = _BY_NAME[runtime]
    found = parse_batch_arguments(command, args, profile, config)
    launch = parse_launch_arguments(command, args, profile, config)
    for value in (
        found.max_num_seqs, found.max_num_batched_tokens, launch.max_model_len,
        launch.api_server_count,
    ):  # fmt: skip
        assert value is None or 1 <= value <= LARGEST_COUNT
    assert len(found.change_refused) <= LONGEST_MESSAGE
    assert isinstance(config_path(command_words(command, args)), str | None)
    assert len(expanded(command, {"X": "1"})) == len(command)


@fuzzed
@given(
    words=st.lists(st.builds(lambda word, times: word * times, _WORDS, st.integers(0, 5000))),
    value=st.builds(lambda times: "x" * times, st.integers(0, 10**6)),
)
@example(words=["$(X)" * 300_000], value="x" * 10**6)
def test_variables_make_no_line_longer_than_one_may_be(words, value) -> None:
    """5: what is filled in is bounded, however often a variable is named."""
    grown = sum(map(len, expanded(words, {"X": value}))) - sum(map(len, words))
    assert grown <= LONGEST_LINE_CHARACTERS


@fuzzed
@given(command=_ARGV, args=_ARGV, runtime=_RUNTIMES, sequences=_LIMITS, tokens=_LIMITS)
def test_a_change_gives_what_was_asked_for_or_is_refused(
    command, args, runtime, sequences, tokens
) -> None:
    """3: nothing else of the command line moves."""
    profile = _BY_NAME[runtime]
    asked = {"max_num_seqs": sequences, "max_num_batched_tokens": tokens}
    known = {knob.field for knob in profile.knobs}
    wanted = BatchArguments(**{name: asked[name] for name in asked if name in known})
    try:
        changed = replace_batch_arguments(command, args, wanted, profile)
    except ArgumentsNotUnderstoodError as refusal:
        assert is_said(refusal, LONGEST_MESSAGE)  # noqa: PT017 - any refusal, if it says why
        return
    found = parse_batch_arguments(changed.command, changed.args, profile)
    before = parse_batch_arguments(command, args, profile)
    assert found.change_refused == ""
    assert found.max_num_seqs == (wanted.max_num_seqs or before.max_num_seqs)
    tokens = wanted.max_num_batched_tokens or before.max_num_batched_tokens
    assert found.max_num_batched_tokens == tokens
    assert len(changed.command) == len(command)
    words, old = [*changed.command, *changed.args], [*command, *args]
    assert len(words) - len(old) in (0, 1, 2)
    assert sum(new != word for new, word in zip(words, old, strict=False)) <= 2


@fuzzed
@given(text=_YAML)
@example(text="a: " + "9" * 5000)
@example(text="max-num-seqs: 2001-13-45")
@example(text="max-num-seqs: !!int ''")
@example(text="max-num-seqs: !!bool maybe")
@example(text="max-num-seqs: !!timestamp soon")
def test_any_configuration_file_is_words_or_a_problem(text) -> None:
    """4: and its words can be read as a command line."""
    began = time.process_time()
    found = config_file(text)
    assert time.process_time() - began < LONGEST_SECONDS
    assert all(isinstance(word, str) for word in found.words)
    assert not (found.words and found.problem)
    assert len(found.problem) <= LONGEST_MESSAGE
    for profile in CATALOGUE:
        parse_batch_arguments(None, None, profile, found.words)
        parse_launch_arguments(None, None, profile, found.words)
