"""Prometheus behind a proxy that lets every answer wait, or answers something else."""

import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError


class SlowPrometheus:
    """Passes GET requests on to a Prometheus, each delayed."""

    def __init__(self, upstream: str, delay_seconds: float) -> None:
        outer = self
        self.delay_seconds = delay_seconds
        self._upstream = upstream

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                time.sleep(outer.delay_seconds)
                status, body = outer.ask(self.path)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: a line for each query would fill the log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def ask(self, path: str) -> tuple[int, bytes]:
        """What Prometheus answers."""
        try:
            with urllib.request.urlopen(f"{self._upstream}{path}", timeout=5) as answer:  # noqa: S310
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
