"""Where Prometheus is, who asks, and how its series name a pod."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from servingslo.adapters.prometheus.credentials import checked
from servingslo.errors import InvalidInputError
from servingslo.runtimes.gateways import GatewayProfile

# Source: Kubernetes, "Object Names and IDs": a DNS label of RFC 1123.
_NAMESPACE = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_LABEL_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
# What a browser or a tool shows of it instead of the address itself.
_BEYOND_ADDRESS = re.compile(r"[\s?#]|/(?:graph|api/v1(?:/query(?:_range)?)?)/?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """Prometheus' address and query settings, set by the administrator, never by a tenant.

    timeout_seconds: of one query. reading_timeout_seconds: of all queries of one reading.
    retries: further attempts after an immediate failure; a timed-out query is not repeated.
    bearer_token_file, basic_auth_password_file: read again for each query, so they may rotate.
    tenant: value of X-Scope-OrgID (Mimir, Cortex, Loki's gateway).
    namespace_label, pod_label: labels with the scraped pod.
    source_labels: labels that distinguish two scrapes of one pod. One scrape is used; they are not
    added up.
    histogram_engines_each_tick: a reading reads the histograms of at most this many engines. If
    there are more, engines take turns, each within at most histogram_every_ticks readings.
    gateway: the gateway whose counts are read in addition to the engines'; None for none.
    namespaces: those of the engines to read; none: all. matchers: of every selector of every query.
    Raises: InvalidInputError if a value is outside its range.
    """

    url: str
    timeout_seconds: float = 5.0
    reading_timeout_seconds: float = 12.0
    retries: int = 1
    bearer_token_file: str | None = None
    basic_auth_username: str | None = None
    basic_auth_password_file: str | None = None
    ca_file: str | None = None
    tenant: str | None = None
    namespace_label: str = "namespace"
    pod_label: str = "pod"
    source_labels: tuple[str, ...] = ("job", "instance", "prometheus", "prometheus_replica")
    histogram_every_ticks: int = 8
    histogram_engines_each_tick: int = 500
    gateway: GatewayProfile | None = None
    namespaces: tuple[str, ...] = ()
    matchers: str = ""

    def selector(self, *matchers: str) -> str:
        """The PromQL of series with these matchers and the administrator's; '' is none."""
        return "{" + ", ".join(filter(None, (*matchers, self.matchers))) + "}"

    @property
    def of_engines(self) -> str:
        """PromQL matchers for the pods whose metrics are read."""
        own = f'{self.pod_label}!=""'
        if not self.namespaces:
            return own
        return f'{own}, {self.namespace_label}=~"{"|".join(self.namespaces)}"'

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.bearer_token_file and self.basic_auth_username:
            raise InvalidInputError(
                "--prometheus-bearer-token-file",
                self.bearer_token_file,
                "not together with --prometheus-username-file",
            )
        if bool(self.basic_auth_username) != bool(self.basic_auth_password_file):
            raise InvalidInputError(
                "--prometheus-username-file",
                # Never print the content of a credentials file.
                "a name" if self.basic_auth_username else None,
                "together with --prometheus-password-file",
            )
        for field, name in (
            ("--prometheus-namespace-label", self.namespace_label),
            ("--prometheus-pod-label", self.pod_label),
            *(("source label", name) for name in self.source_labels),
        ):
            if not _LABEL_NAME.match(name):
                raise InvalidInputError(field, name, "a label name: [a-zA-Z0-9_]+")
        _check_namespaces(self.namespaces)
        object.__setattr__(self, "matchers", checked(self.matchers))
        for field, value in (
            ("--prometheus-timeout-seconds", self.timeout_seconds),
            ("reading_timeout_seconds", self.reading_timeout_seconds),
            ("histogram_every_ticks", self.histogram_every_ticks),
            ("histogram_engines_each_tick", self.histogram_engines_each_tick),
        ):
            if value <= 0:
                raise InvalidInputError(field, value, "> 0")


def _check_url(text: str) -> None:
    # Never print credentials.
    told = text.rpartition("@")[2]
    try:
        url = urlsplit(text)
    except ValueError as error:
        raise InvalidInputError("--prometheus-url", told, f"an address ({error})") from error
    if url.scheme not in {"http", "https"} or not url.netloc:
        raise InvalidInputError("--prometheus-url", told, "http://… or https://…")
    if url.username or url.password:
        raise InvalidInputError(
            "--prometheus-url", url.hostname, "no credentials; use --prometheus-password-file"
        )
    if _BEYOND_ADDRESS.search(text):
        allowed = "without blank, query, /graph and /api/v1"
        raise InvalidInputError("--prometheus-url", text, allowed)


def _check_namespaces(names: tuple[str, ...]) -> None:
    for name in names:
        if not _NAMESPACE.match(name):
            raise InvalidInputError("--namespace", name, "the name of a namespace")
