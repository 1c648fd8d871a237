"""Pages that a real Prometheus scrapes, and a proxy between a reader and that Prometheus."""

import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.answering import Answering, serving

from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.processes import ProcessFamily
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.prometheus import Prometheus, ScrapePlan

TEXT_FORMAT = "text/plain; version=0.0.4"


class _Handler(Answering):
    protocol_version = "HTTP/1.1"


@dataclass
class Pages:
    """Metric pages by path, and the scrape targets that lead to them.

    texts: a page, what makes it anew for each scrape, or None of one that is gone.
    """

    url: str = ""
    texts: dict[str, str | Callable[[], str] | None] = field(default_factory=dict)
    targets: list[dict[str, object]] = field(default_factory=list)

    def add(self, path: str, text: str | Callable[[], str] | None, **labels: str) -> None:
        """Serve a page, and list it as a target with these labels."""
        self.texts[path] = text
        address = self.url.partition("//")[2]
        self.targets.append(
            {"targets": [address], "labels": {"__metrics_path__": f"/{path}", **labels}}
        )


@contextmanager
def serving_pages() -> Iterator[Pages]:
    """Pages under their paths, the list of targets under /targets; None answers 503."""
    pages = Pages()

    class Handler(_Handler):
        def reply(self):
            if self.path == "/targets":
                self.answer(json.dumps(pages.targets).encode())
                return
            text = pages.texts.get(self.path[1:])
            if callable(text):
                text = text()
            if text is None:
                self.answer(b"gone", 503, "text/plain")
            else:
                self.answer(text.encode(), kind=TEXT_FORMAT)

    with serving(Handler) as url:
        pages.url = url
        yield pages


@contextmanager
def running_prometheus(
    pages: Pages | None,
    *,
    interval_seconds: float = 0.5,
    oldest_sample_days: int | None = None,
    retention_days: int = 1,
    fill: Callable[[Path], None] | None = None,
) -> Iterator[Prometheus]:
    """The rig's Prometheus on its own, scraping these pages twice a second; None: nothing.

    fill: puts blocks into its folder of data before it starts.
    """
    binaries = ensure_tools((versions.PROMETHEUS,))
    with TemporaryDirectory(prefix="servingslo-test-") as directory:
        work_dir = Path(directory)
        family = ProcessFamily(work_dir=work_dir, remove_work_dir=True)
        plan = ScrapePlan(
            http_sd_url=f"{pages.url}/targets" if pages else None,
            scrape_interval_seconds=interval_seconds,
            oldest_sample_days=oldest_sample_days,
            retention_days=retention_days,
        )
        prometheus = Prometheus(binaries=binaries, work_dir=work_dir, family=family, plan=plan)
        if fill is not None:
            fill(prometheus.data_directory)
        try:
            prometheus.start()
            prometheus.wait_ready()
            yield prometheus
        finally:
            family.stop()


@dataclass
class Proxy:
    """What stands between reader and Prometheus, and what it saw.

    required: headers without which it answers 401. admits: whom else it answers, by the token that
    they bear; None: anybody. warnings: added to every answer. failures: how
    many requests it fails with 503 first. body: sent instead of Prometheus's answer.
    trickle_seconds: pause between single bytes of the answer. late_seconds: for how long answers
    lie before they go on. behind_seconds: how far the clock is behind that it is asked for.
    """

    target: str
    url: str = ""
    required: dict[str, str] = field(default_factory=dict)
    admits: Callable[[str], bool] | None = None
    warnings: list[str] = field(default_factory=list)
    failures: int = 0
    body: bytes | None = None
    trickle_seconds: float | None = None
    late_seconds: float = 0.0
    behind_seconds: float = 0.0
    requests: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)


@contextmanager
def proxying(target: str, certificate: Path | None = None) -> Iterator[Proxy]:
    """A reverse proxy in front of Prometheus, with TLS when it has a certificate."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    proxy = Proxy(target=target)
    with serving(_forwarding(proxy), context) as url:
        proxy.url = url
        try:
            yield proxy
        finally:
            proxy.stopped.set()


def _body(proxy: Proxy, path: str) -> bytes:
    if proxy.body is not None:
        return proxy.body
    with urllib.request.urlopen(proxy.target + path, timeout=10) as answer:  # noqa: S310 - our own
        document = json.load(answer)
    result = document.get("data", {}).get("result")
    if proxy.behind_seconds and isinstance(result, list) and "query=time" in path:
        result[1] = str(float(result[1]) - proxy.behind_seconds)
    proxy.stopped.wait(proxy.late_seconds)
    if proxy.warnings:
        document["warnings"] = proxy.warnings
    return json.dumps(document).encode()


def _forwarding(proxy: Proxy) -> type[_Handler]:
    class Handler(_Handler):
        def reply(self):
            if self.command != "GET":
                self.answer(b"only GET", 501, "text/plain")
                return
            proxy.requests.append(self.path)
            bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            stranger = proxy.admits is not None and not proxy.admits(bearer)
            required = proxy.required.items()
            if stranger or any(self.headers.get(name) != value for name, value in required):
                self.answer(b"who are you?", 401, "text/plain")
            elif proxy.failures:
                proxy.failures -= 1
                self.answer(b"busy", 503, "text/plain")
            elif proxy.trickle_seconds is not None:
                self._trickle(_body(proxy, self.path), proxy.trickle_seconds)
            else:
                self.answer(_body(proxy, self.path))

        def _trickle(self, body, pause_seconds):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for byte in body:
                if proxy.stopped.wait(pause_seconds):
                    return
                try:
                    self.wfile.write(bytes([byte]))
                except OSError:
                    return

    return Handler
