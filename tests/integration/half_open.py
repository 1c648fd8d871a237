"""A TCP proxy that can go half-open: connections stay up, and nothing comes through them."""

import socket
import threading
from contextlib import suppress


class HalfOpenProxy:
    """Passes connections on; those of before `fall_silent` stay open and bring nothing more."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._generation = 0
        self._cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens, on loopback."""
        return int(self._listener.getsockname()[1])

    def fall_silent(self) -> None:
        """From now on nothing comes through any connection that is open."""
        self._generation += 1

    def cut(self) -> None:
        """From now on nothing comes through at all, until `mend`; connections stay up."""
        self._cut = True
        self._generation += 1

    def mend(self) -> None:
        """New connections bring something again; those of before stay silent."""
        self._generation += 1
        self._cut = False

    def stop(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                born = self._generation
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, born), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, born: int) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if born == self._generation and not self._cut:
                    sink.sendall(data)
        if born == self._generation:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
