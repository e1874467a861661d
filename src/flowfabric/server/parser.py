"""Parses requests with httptools; checks framing, and limits the size of everything but bodies."""

from typing import Final, NoReturn, Protocol
from urllib.parse import unquote

import httptools

from flowfabric.errors import InvalidInput
from flowfabric.server.http import Scope
from flowfabric.server.replies import encode

MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 128

_HTTP_1_1: Final = "1.1"
_HTTP_1_0: Final = "1.0"


class Receiver(Protocol):
    """Gets the requests of one connection, piece by piece. What follows a False is not parsed."""

    def request_received(self, scope: Scope, *, is_last: bool, expects_continue: bool) -> None: ...

    def body_received(self, body: bytes) -> bool: ...

    def request_ended(self) -> bool: ...


def _refusal(status: bytes, reason: str) -> bytes:
    body = encode(InvalidInput(reason).body())
    return (
        b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (status, len(body), body)
    )


_TOO_LARGE: Final = _refusal(
    b"431 Request Header Fields Too Large",
    f"request head too large: expected at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers",
)
_MALFORMED: Final = _refusal(b"400 Bad Request", "request: malformed HTTP")
_VERSION: Final = _refusal(b"400 Bad Request", "request: expected HTTP/1.1 or HTTP/1.0")
_HOST: Final = _refusal(b"400 Bad Request", "host: expected exactly one Host header")
_OLD_CODING: Final = _refusal(b"400 Bad Request", "transfer-encoding: HTTP/1.0 has none")
_CODING: Final = _refusal(b"501 Not Implemented", "transfer-encoding: expected chunked alone")
_UPGRADE: Final = _refusal(
    b"501 Not Implemented", "upgrade: not supported with a body; send the request without it"
)


class _Stop(Exception):
    """Makes httptools return from the middle of its input."""


class RequestParser:
    """Hands the requests in a stream of bytes to its receiver. `shared` is what all their scopes
    have in common."""

    def __init__(self, receiver: Receiver, shared: Scope) -> None:
        self._receiver = receiver
        self._shared = shared
        # A chunk may be of one byte: a method in Python for each would block for too long.
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpRequestParser(self)
        # True before the first byte of a connection, too: a client connects to send a request.
        self.is_in_head = True
        self._is_stopped = False
        self._refusal = b""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._unfinished_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """The response to a request that must be refused, or nothing. After a refusal, and after
        the receiver wants no more, nothing more may be fed."""
        self._unfinished_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            if not self._is_stopped:
                raise
            return self._refusal
        except httptools.HttpParserError:
            return _MALFORMED
        if self._pieces:
            self._deliver_body()
        # httptools buffers an element until it is complete, without a limit.
        return _TOO_LARGE if self._unfinished_bytes > MAX_HEAD_BYTES else b""

    def close(self) -> None:
        """Break the reference cycles with the receiver and httptools' parser."""
        del self._parser, self._receiver

    # ---- callbacks of httptools

    def on_message_begin(self) -> None:
        self.is_in_head = True
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_head:
            self._drop_trailer(name, value)
            return
        if len(self._headers) == MAX_HEADERS:
            self._refuse(_TOO_LARGE)
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._unfinished_bytes = 0
        self.is_in_head = False
        self._check_size()
        names = [name for name, _ in self._headers]
        parser = self._parser
        version = parser.get_http_version()
        self._check_framing(names, version)
        # httptools does not parse what follows a request for an upgrade.
        keeps_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self._receiver.request_received(
            self._scope(version),
            is_last=version == _HTTP_1_0 or not keeps_alive,
            expects_continue=b"expect" in names and self._expects_continue(version),
        )

    def _scope(self, version: str) -> Scope:
        path, query = self._target()
        text = path.decode("ascii")
        return {
            **self._shared,
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "headers": self._headers,
        }

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        if self._pieces and not self._deliver_body():
            self._stop()
        if not self._receiver.request_ended():
            self._stop()

    def _deliver_body(self) -> bool:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unfinished_bytes = 0
        return self._receiver.body_received(body)

    # ---- rules

    def _check_size(self) -> None:
        sizes = [len(name) + len(value) + 4 for name, value in self._headers]
        self._head_bytes = len(self._url) + sum(sizes)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)

    def _drop_trailer(self, name: bytes, value: bytes) -> None:
        """Trailers are ignored: they come after all checks of the head."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)

    def _check_framing(self, names: list[bytes], version: str) -> None:
        if version not in (_HTTP_1_1, _HTTP_1_0):
            self._refuse(_VERSION)
        hosts = names.count(b"host")
        if hosts != 1 and (hosts or version == _HTTP_1_1):
            self._refuse(_HOST)
        if b"transfer-encoding" in names:
            self._check_coding(version)
        if self._parser.should_upgrade() and self._has_body(names):
            self._refuse(_UPGRADE)

    def _check_coding(self, version: str) -> None:
        if version == _HTTP_1_0:
            self._refuse(_OLD_CODING)
        codings = [value.strip().lower() for value in self._values(b"transfer-encoding")]
        if codings != [b"chunked"]:
            self._refuse(_CODING)

    def _has_body(self, names: list[bytes]) -> bool:
        return b"transfer-encoding" in names or any(
            int(length) for length in self._values(b"content-length")
        )

    def _expects_continue(self, version: str) -> bool:
        expected = [value.strip().lower() for value in self._values(b"expect")]
        return version == _HTTP_1_1 and b"100-continue" in expected

    def _values(self, wanted: bytes) -> list[bytes]:
        return [value for name, value in self._headers if name == wanted]

    def _target(self) -> tuple[bytes, bytes]:
        """Path and query, both of ASCII."""
        url = self._url
        if url.startswith(b"/") and url.isascii() and b"#" not in url:
            path, _, query = url.partition(b"?")
            return path, query
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            self._refuse(_MALFORMED)
        return parsed.path or b"/", parsed.query or b""

    def _refuse(self, response: bytes) -> NoReturn:
        self._refusal = response
        self._stop()

    def _stop(self) -> NoReturn:
        self._is_stopped = True
        raise _Stop
