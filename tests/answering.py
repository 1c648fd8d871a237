"""A server on this machine whose answers a test makes."""

import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answering(BaseHTTPRequestHandler, ABC):
    """Answers each request in one go, and says nothing on standard error.

    body: of the request. It is read whole: what stays of it would be the connection's next request.
    """

    body = b""

    @abstractmethod
    def reply(self) -> None:
        """Answer the request."""

    def do_GET(self) -> None:
        """Answer."""
        self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.reply()

    do_POST = do_GET  # noqa: N815 - the standard library's name

    def log_message(self, *_: object) -> None:
        """Nothing: the tests judge the answers."""

    def answer(self, body: bytes, status: int = 200, kind: str = "application/json") -> None:
        """The whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """The address of a server with this handler, over TLS with a context."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    scheme = "http" if context is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
