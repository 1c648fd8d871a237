"""Command lines as people write them, beside what a real shell and vLLM's parser make of them.

1. A limit that is read is the one that every engine of the container starts with.
2. A limit that is there and not read is reported; it is never taken for absent.
3. Where nothing is unknown before the container runs, the limit is read.
4. API servers are counted as vLLM counts them, whatever names its flags have.
5. What is reported is short and holds nothing of a Secret or of a value that was filled in.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.command_lines import (
    Case,
    RefusedError,
    Shell,
    as_kubernetes,
    parser,
    read,
    verdict,
)
from tests.property.command_variants import BITS, branching_case, plain_case, shell_case
from tests.property.fuzzing import EXAMPLES, unhurried

from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.engines.vllm import VLLM

pytestmark = unhurried
LONGEST_TOLD = 600
_RANDOMS = st.integers(0, 10**9).map(Random)
# Each example runs the container's command twice.
_started = settings(
    max_examples=min(EXAMPLES, 1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """A directory with programs that a script may start."""
    with TemporaryDirectory() as directory:
        yield Shell(Path(directory))


@_started
@given(random=_RANDOMS)
def test_a_script_is_read_as_the_shell_runs_it(shell: Shell, random: Random) -> None:
    """1, 2, 3: quotes, variables, branches, options of the shell, functions, here-documents."""
    case = shell_case(random)
    found = verdict(read(case), [words[1:] for words in shell.started(case)])
    assert found in ({"read", "refused"} if case.literal else {"read", "told", "absent", "refused"})


@_started
@given(random=_RANDOMS)
def test_no_branch_of_a_script_is_forgotten(shell: Shell, random: Random) -> None:
    """1, 2: whatever its conditions are."""
    case = branching_case(random)
    runs = [shell.started(case, C1=bits[0], C2=bits[1]) for bits in BITS]
    found = verdict(read(case), [words[1:] for run in runs for words in run])
    assert found in {"read", "told", "absent", "refused"}


@settings(max_examples=EXAMPLES, deadline=None)
@given(random=_RANDOMS)
def test_arguments_are_read_as_the_parser_takes_them(random: Random) -> None:
    """1, 2, 3: every form of a flag, with Kubernetes' own variables."""
    case = plain_case(random)
    words = as_kubernetes(case)
    starts = [at for at, word in enumerate(words) if word.startswith(("serve", "vllm.entry"))]
    found = verdict(read(case), [words[starts[0] + 1 :] if starts else words])
    assert found in ({"read"} if case.literal else {"read", "told", "absent", "refused"})


@settings(max_examples=EXAMPLES, deadline=None)
@given(random=_RANDOMS)
def test_what_is_reported_is_short_and_no_content(random: Random) -> None:
    """5: a word is shown as the pod has it."""
    case = (shell_case if random.random() < 0.5 else plain_case)(random)
    hidden = dict.fromkeys(case.known, "pass--word")
    told = read(Case(command=case.command, args=case.args, known=hidden, secret=case.secret)).told
    assert len(told) <= LONGEST_TOLD
    assert "pass--word" not in told


_NUMBERED = (
    "--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl", "--data-parallel-rank",
    "-dpn", "--data-parallel-start-rank", "-dpr", "--api-server-count", "-asc", "-tp",
)  # fmt: skip
_SWITCHES = (
    "--data-parallel-external-lb", "-dpe", "--data-parallel-hybrid-lb", "-dph", "--headless",
    "--data-parallel-multi-port-external-lb", "-dpm", "--enable-elastic-ep", "--enforce-eager",
)  # fmt: skip


def _vllm_servers(words: list[str]) -> int | None:
    """API servers as ServeSubcommand.cmd of vllm/entrypoints/cli/serve.py sets them; 1 is usual."""
    given = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for flag, short in (
        ("--data-parallel-size", "-dp"), ("--data-parallel-size-local", "-dpl"),
        ("--data-parallel-rank", "-dpn"), ("--data-parallel-start-rank", "-dpr"),
        ("--api-server-count", "-asc"), ("--tensor-parallel-size", "-tp"),
    ):  # fmt: skip
        given.add_argument(flag, short, type=int)
    for flag, short in (
        ("--data-parallel-external-lb", "-dpe"), ("--data-parallel-hybrid-lb", "-dph"),
        ("--data-parallel-multi-port-external-lb", "-dpm"),
    ):  # fmt: skip
        given.add_argument(flag, short, action="store_true")
    for flag in ("--headless", "--enable-elastic-ep", "--enforce-eager"):
        given.add_argument(flag, action="store_true")
    args = given.parse_args(words)
    if args.headless:
        return 0
    count = args.api_server_count
    if count is None:
        if (
            args.data_parallel_external_lb
            or args.data_parallel_rank is not None
            or args.data_parallel_multi_port_external_lb
        ):
            count = 1
        elif args.data_parallel_hybrid_lb or args.data_parallel_start_rank is not None:
            count = args.data_parallel_size_local or 1
        else:
            count = args.data_parallel_size
    return 1 if count and args.enable_elastic_ep else count


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    flags=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(_NUMBERED), st.integers(1, 16), st.booleans()),
            st.tuples(st.sampled_from(_SWITCHES), st.none(), st.booleans()),
        ),
        max_size=5,
    ),
    in_a_shell=st.booleans(),
)
def test_servers_are_counted_as_vllm_counts_them(flags, in_a_shell: bool) -> None:
    """4: internal, external and hybrid balancers, headless nodes, short and long names."""
    words: list[str] = []
    for flag, number, joined in flags:
        spelt = flag.replace("-", "_").replace("__", "--", 1) if joined and flag[1] == "-" else flag
        words += (
            [spelt] if number is None else [f"{flag}={number}"] if joined else [flag, f"{number}"]
        )
    plain = [word.replace("_", "-") for word in words]
    line = " ".join(["exec vllm serve m", *words])
    case = Case(command=("sh", "-c", line) if in_a_shell else ("vllm", "serve", "m", *words))
    assert read(case).servers == _vllm_servers(plain)


def test_no_other_flag_is_taken_for_an_abbreviation() -> None:
    """A flag that vLLM publishes is none of a limit's beginnings."""
    own = {knob.flag for knob in VLLM.knobs} | {*VLLM.launch.server_counts, VLLM.launch.local_count}
    published = {option for action in parser()._actions for option in action.option_strings}
    assert not {one for one in published - own if any(flag.startswith(one) for flag in own)}


def test_the_parser_of_the_oracle_refuses_what_vllm_refuses() -> None:
    """An abbreviation of two flags, and a value that is no number."""
    for words in (["--max-num", "4"], ["--max-num-seqs", "many"]):
        with pytest.raises(RefusedError):
            parser().parse_known_args(words)


@pytest.mark.parametrize("profile", [pytest.param(one, id=one.name) for one in CATALOGUE])
def test_every_runtime_with_limits_says_how_it_is_started(profile) -> None:
    """Else a script's other commands would count."""
    assert bool(profile.starts) == bool(profile.knobs)
