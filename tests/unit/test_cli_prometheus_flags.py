"""Every command that asks Prometheus has the same flags, and logs in with each of them."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.answering import Answering, serving
from tests.unit.cli_calls import CLI

from servingslo.adapters.prometheus.refusals import status_words
from servingslo.cli.lazy import COMMANDS
from servingslo.cli.prometheus_flags import PrometheusFlags
from servingslo.errors import InvalidInputError

CREDENTIALS = (
    "--prometheus-bearer-token-file", "--prometheus-username-file", "--prometheus-password-file",
    "--prometheus-ca-file", "--prometheus-tenant", "--prometheus-timeout-seconds",
    "--prometheus-matchers",
)  # fmt: skip
LABELS = ("--prometheus-namespace-label", "--prometheus-pod-label")
ASKING = ("run", "fit", "backtest", "record", "shadow", "history", "explain")
EMPTY = {"status": "success", "data": {"resultType": "vector", "result": []}}


class _Guarded(Answering):
    """An API that answers only to user 'me' with password 'secret' and tenant 'team'."""

    seen: list[tuple[str | None, str | None]]

    def reply(self) -> None:
        """Answer 401 to anybody else."""
        asked_by = (self.headers["Authorization"], self.headers["X-Scope-OrgID"])
        self.seen.append(asked_by)
        wanted = "Basic " + base64.b64encode(b"me:secret").decode()
        self.answer(json.dumps(EMPTY).encode(), 200 if asked_by == (wanted, "team") else 401)


@pytest.fixture
def guarded() -> Iterator[str]:
    """The address of such an API."""
    _Guarded.seen = []
    with serving(_Guarded) as url:
        yield url


@pytest.fixture
def credentials(tmp_path: Path) -> list[str]:
    """Flags of the one user."""
    (tmp_path / "user").write_text("me\n", encoding="utf-8")
    (tmp_path / "password").write_text("secret\n", encoding="utf-8")
    return [
        f"--prometheus-username-file={tmp_path / 'user'}",
        f"--prometheus-password-file={tmp_path / 'password'}",
        "--prometheus-tenant=team",
    ]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_that_takes_an_address_takes_every_credential(cli: CLI, command: str) -> None:
    """And one that takes none asks for none."""
    text = cli(command, "--help").out
    wanted = CREDENTIALS if command in ASKING else ()
    assert tuple(flag for flag in CREDENTIALS if flag in text) == wanted
    assert ("--prometheus-url" in text) == (command in ASKING)
    engines = set(ASKING) - {"history"}
    assert all((flag in text) == (command in engines) for flag in LABELS)


def test_the_hint_of_401_names_flags_that_every_command_has() -> None:
    """Whatever command it is printed by."""
    hint = status_words(401, b"")
    named = [word.strip(":,") for word in hint.split() if word.startswith("--")]
    assert "--prometheus-tenant" in named  # Mimir answers 401, "no org id".
    assert set(named) <= set(CREDENTIALS)


def test_basic_auth_reaches_prometheus(cli: CLI, guarded: str, credentials: list[str]) -> None:
    """Without it the answer is 401; with it the answer is not."""
    arguments = ("history", "inference/llama", "--prometheus-url", guarded)
    refused = cli(*arguments)
    assert refused.exit_code == 1
    assert "HTTP 401" in refused.err
    answered = cli(*arguments, *credentials)
    assert "401" not in answered.err
    assert _Guarded.seen[-1][1] == "team"


def test_the_environment_states_flags_too(
    cli: CLI, guarded: str, credentials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same names as for the operator."""
    for flag in credentials:
        name, _, value = flag.removeprefix("--").partition("=")
        monkeypatch.setenv(f"SERVINGSLO_{name.replace('-', '_').upper()}", value)
    cli("history", "inference/llama", "--prometheus-url", guarded)
    assert _Guarded.seen
    assert all(tenant == "team" and user for user, tenant in _Guarded.seen)


def test_a_username_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """By its flag."""
    flags = PrometheusFlags(username_file=tmp_path / "none", password_file=tmp_path / "none")
    with pytest.raises(InvalidInputError, match="--prometheus-username-file"):
        flags.config("http://prometheus:9090")


@pytest.mark.parametrize(
    ("flag", "allowed"),
    [
        ("--prometheus-bearer-token-file", "a readable file with a token"),
        ("--prometheus-ca-file", "a readable file with certificates in PEM"),
    ],
)
@pytest.mark.parametrize("content", [None, " \n"], ids=["missing", "empty"])
def test_a_file_that_is_missing_or_empty_is_refused_at_the_start(
    cli: CLI, tmp_path: Path, flag: str, allowed: str, content: str | None
) -> None:
    """With the flag, the path and what is expected there."""
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    done = cli("run", "--prometheus-url", "https://thanos-querier:9091", flag, str(file))
    assert done.exit_code == 2
    assert f"{flag}: '{file}" in done.err
    assert f"allowed: {allowed}" in done.err
