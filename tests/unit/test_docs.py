"""What the pages tell users to type exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from cli_calls import CLI
from typer.core import TyperGroup

from servingslo.adapters.gauges import GAUGES
from servingslo.cli.main import app
from servingslo.reasons import Reason

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)
FENCE = re.compile(r"^```(?:sh|shell|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```sh\n((?:(?!```).)*)^```\n\n```\n(.*?)^```", re.MULTILINE | re.DOTALL)


def typed_commands() -> Iterator[tuple[str, str]]:
    """(page, command line) of every call of `servingslo` in a block of shell."""
    for page in PAGES:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                command = (
                    line.strip().removeprefix("kubectl ").partition(" <<")[0].partition(" >")[0]
                )
                if command.startswith("servingslo "):
                    yield page.name, command


@pytest.mark.parametrize(
    "command", [pytest.param(line, id=f"{page}-{line[:40]}") for page, line in typed_commands()]
)
def test_commands_in_the_pages_parse(command: str) -> None:
    """Every subcommand, flag and argument of a documented call is accepted."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    words = shlex.split(command, comments=True)[1:]
    context = group.make_context("servingslo", words, resilient_parsing=True)
    name, found, rest = group.resolve_command(context, words)
    found.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_lab_is_installed_with_the_operator_that_it_needs(page: Path) -> None:
    """It requires the operator of its own version, which no index of packages has."""
    assert "pip install ./lab" not in page.read_text(encoding="utf-8")


def shown_outputs() -> Iterator[tuple[str, str, str, str]]:
    """(page, command line, standard input, what the page shows of its output)."""
    for page in PAGES:
        for block, shown in SHOWN.findall(page.read_text(encoding="utf-8")):
            command, _, rest = block.replace("\\\n", " ").strip().partition("\n")
            command, _, here = command.partition(" <<")
            if command.startswith("servingslo "):
                text = rest.rpartition("\n")[0] + "\n" if here else ""
                yield page.name, command, text, shown


@pytest.mark.parametrize(
    ("command", "stdin", "shown"),
    [pytest.param(*rest, id=f"{page}-{rest[0][:30]}") for page, *rest in shown_outputs()],
)
def test_outputs_in_the_pages_are_those_of_the_commands(
    cli: CLI,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    stdin: str,
    shown: str,
) -> None:
    """Line by line and in order; dots stand for lines, or the rest of one, that are not shown.

    Files that a command writes stay out of the checkout.
    """
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    called = cli(*shlex.split(command)[1:], stdin=stdin)
    lines = iter((called.out + called.err).splitlines())
    for wanted in shown.splitlines():
        if wanted != "...":
            start = wanted.removesuffix("...")
            cut = start != wanted
            assert any(line.startswith(start) if cut else line == wanted for line in lines), wanted


def test_the_explanation_in_the_pages_is_a_rendering_that_is_tested() -> None:
    """Its lines stand in the same order in the golden file."""
    page = (ROOT / "docs/how-to/record-and-replay.md").read_text(encoding="utf-8")
    shown = re.search(r"^```\n(inference/llama-chat at .*?)^```", page, re.MULTILINE | re.DOTALL)
    assert shown is not None
    golden = ROOT / "tests/golden/data/explain_scale_up.txt"
    lines = iter(golden.read_text(encoding="utf-8").splitlines())
    wanted = [line for line in shown[1].splitlines() if line != "..."]
    assert len(wanted) > 10
    assert all(line in lines for line in wanted)


def test_every_metric_is_explained() -> None:
    """The page of metrics has all that the operator exports for a resource, with its labels."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(servingslo_\w+)` \| ([^|]*)\|", page, re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    for gauge in GAUGES:
        assert told.get(gauge.name) == set(gauge.labels), gauge.name


def test_every_reason_is_explained() -> None:
    """The page of reasons has all that the code knows, and no other."""
    page = (ROOT / "docs/reference/reasons.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    told = [word for cell in first for word in re.findall(r"`([A-Z]\w+)`", cell)]
    assert sorted(told) == sorted(Reason)
