"""How Prometheus is asked: one set of flags for every command that asks it.

A command takes a parameter `asking: PrometheusFlags` and is decorated; the decorator puts the flags
into its signature in place of that parameter, which is all that Typer looks at. Credentials are
files, never values on a command line, which every user of a machine can read.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servingslo.cli.flags import spread
from servingslo.errors import InvalidInputError

if TYPE_CHECKING:
    from servingslo.adapters.prometheus.config import PrometheusConfig

_PARAMETER = "asking"
_ENGINE_LABELS = frozenset({"namespace_label", "pod_label"})


def _option(name: str, help_text: str, **bounds: float) -> Any:
    return typer.Option(envvar=f"SERVINGSLO_PROMETHEUS_{name}", help=help_text, **bounds)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusFlags:
    """How Prometheus is asked; token and password are read again when their files change."""

    timeout_seconds: Annotated[
        float, _option("TIMEOUT_SECONDS", "Timeout of one query.", min=0.1, max=60.0)
    ] = 5.0
    namespace_label: Annotated[
        str, _option("NAMESPACE_LABEL", "Label with the namespace of the scraped pod.")
    ] = "namespace"
    pod_label: Annotated[str, _option("POD_LABEL", "Label with the scraped pod's name.")] = "pod"
    matchers: Annotated[
        str, _option("MATCHERS", "Matchers of every query, such as 'cluster=\"a\"'.")
    ] = ""
    tenant: Annotated[str | None, _option("TENANT", "Value of the X-Scope-OrgID header.")] = None
    bearer_token_file: Annotated[
        Path | None,
        _option("BEARER_TOKEN_FILE", "File with a bearer token; read again when it rotates."),
    ] = None
    username_file: Annotated[
        Path | None, _option("USERNAME_FILE", "File with the basic-auth username.")
    ] = None
    password_file: Annotated[
        Path | None, _option("PASSWORD_FILE", "File with the basic-auth password.")
    ] = None
    ca_file: Annotated[Path | None, _option("CA_FILE", "Certificate authority of Prometheus.")] = (
        None
    )

    def config(self, url: str, **settings: Any) -> "PrometheusConfig":
        """The reader's configuration. settings: fields of PrometheusConfig that are no flags here.

        Raises: InvalidInputError for a value out of range, or a file that is missing, empty or
        unreadable now; one that goes later is reported with the metrics.
        """
        # The HTTP client is not needed by a command that reads a file.
        from servingslo.adapters.prometheus.config import PrometheusConfig  # noqa: PLC0415

        return PrometheusConfig(
            url=url,
            timeout_seconds=self.timeout_seconds,
            namespace_label=self.namespace_label,
            pod_label=self.pod_label,
            matchers=self.matchers,
            tenant=self.tenant or None,
            bearer_token_file=_path(
                "bearer-token", self.bearer_token_file, "a readable file with a token"
            ),
            basic_auth_username=_content(
                "username", self.username_file, "a readable file with a name in UTF-8"
            ),
            basic_auth_password_file=_path(
                "password", self.password_file, "a readable file with a password"
            ),
            ca_file=_path("ca", self.ca_file, "a readable file with certificates in PEM"),
            **settings,
        )


def asks_prometheus(*, engines: bool = True) -> Callable[[Callable[..., None]], Any]:
    """Give a command the flags, as --prometheus-…, in place of its parameter `asking`.

    engines: whether engines' series are read, and so the labels that name their pods matter.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        flags = {
            f"prometheus_{field.name}": field
            for field in fields(PrometheusFlags)
            if engines or field.name not in _ENGINE_LABELS
        }

        return spread(command, _PARAMETER, flags, _flags)

    return decorate


def _flags(stated: dict[str, Any]) -> PrometheusFlags:
    return PrometheusFlags(
        **{name.removeprefix("prometheus_"): value for name, value in stated.items()}
    )


def _path(name: str, path: Path | None, allowed: str) -> str | None:
    """The path of a file that has something in it, which is read again with each query."""
    return None if _content(name, path, allowed) is None else str(path)


def _content(name: str, path: Path | None, allowed: str) -> str | None:
    """What is in a file, None without one. name: as in its flag. Raises: InvalidInputError."""
    if path is None:
        return None
    flag = f"--prometheus-{name}-file"
    try:
        content = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(flag, str(path), allowed) from error
    if not content:
        raise InvalidInputError(flag, f"{path}, which is empty", allowed)
    return content
