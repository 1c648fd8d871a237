"""Batch limits in a container's command line.

Invariants:
1. What replace wrote, parse reads.
2. Replace touches nothing but the value of the flag, or appends one argument.
3. What cannot be read in one way only is unknown and is never changed.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.errors import ArgumentsNotUnderstoodError, InvalidInputError
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.launch.arguments import (
    BatchArguments,
    change_refused,
    parse_batch_arguments,
    replace_batch_arguments,
)
from servingslo.runtimes.launch.command_line import expanded
from servingslo.runtimes.launch.settings import parse_launch_arguments
from servingslo.runtimes.shell.words import LONGEST_LINE_CHARACTERS

VLLM = profile("vllm")


@pytest.mark.parametrize(
    ("command", "args", "seqs", "tokens"),
    [
        pytest.param(None, ["--max-num-seqs=64"], 64, None, id="joined"),
        pytest.param(None, ["--max-num-seqs", "64"], 64, None, id="apart"),
        pytest.param(None, ["--max_num_seqs=64"], 64, None, id="underscores-joined"),
        pytest.param(None, ["--max_num-seqs", "64"], 64, None, id="underscores-mixed"),
        pytest.param(["vllm", "serve", "m", "--max-num-seqs"], ["8"], 8, None, id="over-the-seam"),
        pytest.param(["vllm", "--max-num-seqs=8"], ["--max-num-seqs=16"], 16, None, id="last-wins"),
        pytest.param(None, ["m", "--max-num-batched-tokens", "8k"], None, 8000, id="decimal-k"),
        pytest.param(None, ["m", "--max-num-batched-tokens=8K"], None, 8192, id="binary-k"),
        pytest.param(None, ["m", "--max-num-batched-tokens=2.5k"], None, 2500, id="fraction-k"),
        pytest.param(
            None, ["m", "--max-num-batched-tokens=2.0016k"], None, 2001, id="fraction-of-a-token"
        ),
        pytest.param(
            None, ["m", "--max-num-seqs=4", "--max-num-batched-tokens=512"], 4, 512, id="both"
        ),
        pytest.param(None, ["m", "--max-num-partial-prefills=2"], None, None, id="another-flag"),
        pytest.param(["vllm", "serve"], None, None, None, id="absent"),
    ],
)
def test_limits_are_read_in_every_form_vllm_accepts(command, args, seqs, tokens):
    """Each spelling of a flag gives its value, and such arguments may be changed."""
    read = parse_batch_arguments(command, args, VLLM)
    assert (read.max_num_seqs, read.max_num_batched_tokens) == (seqs, tokens)
    assert read.change_refused == ""


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["--max-num-seqs"], id="no-value"),
        pytest.param(["--max-num-seqs", "--enforce-eager"], id="flag-for-a-value"),
        pytest.param(["--max-num-seqs="], id="empty"),
        pytest.param(["--max-num-seqs=many"], id="word"),
        pytest.param(["--max-num-seqs", "-1"], id="negative"),
        pytest.param(["--max-num-seqs=0"], id="zero"),
        pytest.param(["--max-num-seqs=6.5"], id="fraction"),
        pytest.param(["--max-num-seqs=8k"], id="not-human-readable-here"),
        pytest.param(["--max-num-seqs=$(MAX_SEQS)"], id="environment-variable"),
        pytest.param(['--max-num-seqs="64"'], id="quotes-of-a-shell"),
        pytest.param(["--max-num-seqs=4", "--max-num-seqs=x"], id="last-of-two-is-bad"),
        pytest.param(["--max-num-s", "4"], id="abbreviated"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_never_changed(args):
    """A value that is not a count is None, and the reason for refusing a change names the flag."""
    read = parse_batch_arguments(["vllm", "serve", "m"], args, VLLM)
    assert read.max_num_seqs is None
    assert "max-num-s" in read.change_refused
    with pytest.raises(ArgumentsNotUnderstoodError, match="max-num-s"):
        replace_batch_arguments(["vllm", "serve"], args, BatchArguments(max_num_seqs=8), VLLM)


@pytest.mark.parametrize(
    ("command", "args", "seqs"),
    [
        pytest.param(["sh", "-c"], ["vllm serve m --max-num-seqs 64"], 64, id="sh"),
        pytest.param(["/bin/bash", "-ec"], ["exec vllm serve m --max-num-seqs=64"], 64, id="bash"),
        pytest.param(
            ["bash", "-o", "pipefail", "-c"], ["vllm serve --max-num-seqs 8 | tee x"], 8, id="-o"
        ),
        pytest.param(["env", "A=1", "sh", "-c", "vllm --max-num-seqs=2;"], None, 2, id="env"),
        pytest.param(["sh", "-c"], ["vllm serve \\\n --max-num-seqs \\\n 64"], 64, id="continued"),
        pytest.param(["sh", "-c"], ["vllm # --max-num-seqs 64"], None, id="comment"),
        pytest.param(
            ["bash", "-c"],
            ["exec > >(tee -a 'x)') 2>&1; vllm serve <(echo m) --max-num-seqs 8 '>('"],
            8,
            id="processes",
        ),
        pytest.param(["sh", "-c"], ["vllm --max-num-seqs $N"], None, id="variable"),
        pytest.param(["sh", "-c"], ["vllm --max-num-seqs 'sixty"], None, id="open-quote"),
        pytest.param(
            ["sh", "-c"],
            ["if big; then vllm --max-num-seqs 9; else vllm --max-num-seqs 3; fi"],
            None,
            id="two-values",
        ),
        pytest.param(["sh", "-c"], None, None, id="no-script"),
        pytest.param(["bash", "/start.sh"], ["--max-num-seqs=5"], 5, id="script-file"),
    ],
)
def test_a_shell_command_is_read_when_unambiguous_and_never_changed(command, args, seqs):
    """Rewriting a script is guessing; reading one is not when it says the limit once."""
    read = parse_batch_arguments(command, args, VLLM)
    assert read.max_num_seqs == seqs
    assert "shell" in read.change_refused
    with pytest.raises(ArgumentsNotUnderstoodError, match="shell"):
        replace_batch_arguments(command, args, BatchArguments(max_num_seqs=8), VLLM)


def test_arguments_of_the_image_are_never_overridden():
    """Setting args on a container that has none would drop the image's own."""
    with pytest.raises(ArgumentsNotUnderstoodError, match="image"):
        replace_batch_arguments(None, None, BatchArguments(max_num_seqs=8), VLLM)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(["--max_num_seqs=4"], ["--max_num_seqs=9"], id="joined-keeps-its-spelling"),
        pytest.param(["--max-num-seqs", "4", "x"], ["--max-num-seqs", "9", "x"], id="apart"),
        pytest.param(
            ["--max-num-seqs=4", "--max-num-seqs=5"],
            ["--max-num-seqs=4", "--max-num-seqs=9"],
            id="only-the-last",
        ),
        pytest.param(["m"], ["m", "--max-num-seqs=9"], id="appended"),
    ],
)
def test_only_the_value_in_force_changes(before, after):
    """The form, the place and the spelling of a flag stay."""
    changed = replace_batch_arguments(None, before, BatchArguments(max_num_seqs=9), VLLM)
    assert changed.args == tuple(after)
    assert changed.command == ()


def test_a_limit_below_one_is_refused():
    """No engine runs with an empty batch."""
    with pytest.raises(InvalidInputError, match="max_num_seqs: 0"):
        replace_batch_arguments(None, ["m"], BatchArguments(max_num_seqs=0), VLLM)


_WORDS = st.text(alphabet="abc-/=.0123", min_size=1, max_size=8).filter(
    lambda word: word != "--" and not word.startswith("--m")
)
_FLAGS = st.sampled_from(
    [
        ("--max-num-seqs=7",),
        ("--max_num_seqs", "7"),
        ("--max-num-batched-tokens=256",),
        ("--max-num-batched-tokens", "256"),
    ]
)
_LINES = st.lists(st.one_of(_WORDS.map(lambda word: (word,)), _FLAGS), max_size=8).map(
    lambda parts: [word for part in parts for word in part]
)


@given(
    command=_LINES,
    args=_LINES,
    seqs=st.integers(1, 5000),
    tokens=st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_replace_then_parse_round_trips_and_leaves_the_rest(command, args, seqs, tokens):
    """The written limits are read back, and no other element of the command line differs."""
    command = ["vllm", "serve", "m", *command]
    wanted = BatchArguments(max_num_seqs=seqs, max_num_batched_tokens=tokens)
    before = parse_batch_arguments(command, args, VLLM)
    changed = replace_batch_arguments(command, args, wanted, VLLM)
    after = parse_batch_arguments(changed.command, changed.args, VLLM)
    assert after.max_num_seqs == seqs
    assert after.max_num_batched_tokens == (tokens or before.max_num_batched_tokens)
    old, new = [*command, *args], [*changed.command, *changed.args]
    touched = [position for position, word in enumerate(old) if new[position] != word]
    assert len(touched) + len(new) - len(old) <= 2
    assert all("max" in old[at] or "max" in old[at - 1] for at in touched)
    assert all(word.startswith("--max-num-") for word in new[len(old) :])
    again = replace_batch_arguments(changed.command, changed.args, wanted, VLLM)
    assert again == changed


def test_variables_of_the_container_are_expanded_as_kubernetes_does():
    """$(NAME) by its literal value; an unknown one stays and is refused; $$ is a plain dollar."""
    known = {"SEQS": "96"}
    args = expanded(["--max-num-seqs=$(SEQS)", "$$(SEQS)", "$(OTHER)"], known)
    assert args == ("--max-num-seqs=96", "$(SEQS)", "$(OTHER)")
    found = parse_batch_arguments(["vllm", "serve"], args, profile("vllm"))
    assert found.max_num_seqs == 96
    secret = parse_batch_arguments(["vllm"], expanded(["--max-num-seqs=$(S)"], {}), profile("vllm"))
    assert secret.max_num_seqs is None
    assert secret.change_refused


def test_of_a_flag_whose_value_is_a_variable_the_variable_changes():
    """The command line stays, and a variable whose number is the wanted one too, as written."""
    args = ["m", "--max-num-seqs", "$(SEQS)", "--max-num-batched-tokens=$(BUDGET)"]
    variables = {"SEQS": "8", "BUDGET": "8k"}
    wanted = BatchArguments(max_num_seqs=9, max_num_batched_tokens=8000)
    changed = replace_batch_arguments(None, args, wanted, VLLM, variables=variables)
    assert changed.args == tuple(args)
    assert changed.variables == {"SEQS": "9"}


@pytest.mark.parametrize(
    ("args", "variables", "why"),
    [
        pytest.param(
            ["--max-num-seqs=$(N)", "--port=$(N)"], {"N": "8"}, "something else", id="two",
        ),
        pytest.param(
            ["--max-num-seqs=$(N)", "--max-num-batched-tokens=$(N)"], {"N": "8"}, "something else",
            id="both-limits",
        ),
        pytest.param(["$(N)"], {"N": "--max-num-seqs=8"}, "inside a variable", id="hidden"),
        pytest.param(["--max-num-seqs=$(N)0"], {"N": "8"}, "", id="a-part"),
        pytest.param(["--max-num-seqs=$(N)"], {"N": "many"}, "many", id="no-number"),
        pytest.param(["--max-num-seqs=$(N)"], {}, "N", id="from-elsewhere"),
    ],
)  # fmt: skip
def test_a_variable_that_is_more_than_a_limit_is_refused(args, variables, why):
    """Changing it would change something else, or nothing is known of it."""
    refused = change_refused(["vllm", "serve"], args, VLLM, variables)
    assert why in refused
    if refused:
        with pytest.raises(ArgumentsNotUnderstoodError):
            replace_batch_arguments(
                ["vllm", "serve"], args, BatchArguments(max_num_seqs=9), VLLM, variables=variables
            )


def test_what_defaults_depend_on_is_read_from_the_command_line():
    """Mode, chunking, length, and processes that count steps, which are one for each engine."""
    args = [
        "serve", "m", "--performance-mode=throughput", "--no-enable-chunked-prefill",
        "--max_model_len", "32k", "--data-parallel-size=4", "--max-num-seqs=8",
    ]  # fmt: skip
    launch = parse_launch_arguments(None, args, profile("vllm"))
    assert launch.throughput_mode
    assert launch.chunked_prefill is False
    assert (launch.max_model_len, launch.api_server_count) == (32_000, 4)
    assert launch.flags == ("max_num_seqs",)
    one = parse_launch_arguments(None, [*args, "--api-server-count=1"], profile("vllm"))
    assert one.api_server_count == 1


def test_variables_that_would_fill_memory_are_not_filled_in():
    """A tenant's object of a megabyte would be fifty gigabytes so."""
    words = ["--max-num-seqs=$(SEQS)", "$(X)" * 20]
    known = {"SEQS": "96", "X": "x" * (LONGEST_LINE_CHARACTERS // 10)}
    assert expanded(words, known) == tuple(words)
    assert expanded(words[:1], known) == ("--max-num-seqs=96",)
