"""The server of the tests."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

from tests.answering import Answering, serving


class _Refusing(Answering):
    """Takes GET alone, over connections that stay."""

    protocol_version = "HTTP/1.1"

    def reply(self) -> None:
        """Its body is the same for both."""
        self.answer(b"{}", 200 if self.command == "GET" else 501)


def test_the_body_of_a_refused_request_is_not_the_next_request() -> None:
    """It was taken for one of another kind, or for one too long."""
    with serving(_Refusing) as url:
        connection = HTTPConnection(urlsplit(url).netloc)
        statuses = []
        for method, body in (("POST", "x" * 100_000), ("GET", None)):
            connection.request(method, "/", body)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()
    assert statuses == [501, 200]
