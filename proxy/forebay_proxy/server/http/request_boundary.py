"""Where one request on a connection ends and the next begins: has anything come behind the last whole one? Pure.

The parser does not tell. A part of a header behind a request that is still being answered, or in the same packet, would otherwise be seen
by nobody: no timer would end it, and its connection would stay for an hour.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Payload", "RequestBoundary"]

_HEADER_END = b"\r\n\r\n"


class Payload(Protocol):
    """The body of a request, as its parser hands it out."""

    def is_eof(self) -> bool:
        """Whether all of it has been parsed, read or not."""
        ...


class RequestBoundary:
    """Follows one connection's bytes. Where it cannot tell it says that a part has come: at worst an idle connection ends early."""

    __slots__ = ("_body_bytes", "_last", "_payload", "partial")

    def __init__(self) -> None:
        self.partial = False  # something behind the last whole request has come, and is no whole request itself
        self._last = b""  # the last bytes of the stream, for an end that came in two packets
        self._payload: Payload | None = None  # of the newest request
        self._body_bytes: int | None = None  # still to come of it; None: its end is not counted (chunked, or there is none)

    def parsed(self, data: bytes, payload: Payload | None, length: int | None, count: int) -> None:
        """``data`` has gone through the parser, and ended ``count`` headers; ``payload`` and ``length`` are of the newest of them."""
        if count:
            stream = self._last[-3:] + data
            header_end = stream.find(_HEADER_END) + len(_HEADER_END)
            self._payload = payload
            self._body_bytes = None if length is None or count > 1 else length - (len(stream) - header_end)
        elif self._body_bytes is not None:
            self._body_bytes -= len(data)
        self._last = (self._last + data[-4:])[-4:]
        if self._payload is not None and not self._payload.is_eof():
            self.partial = False  # in the middle of a body
        elif self._body_bytes is not None:
            self.partial = self._body_bytes < 0
        else:
            self.partial = not self._last.endswith(_HEADER_END)  # a header without a body ends so, and a chunked body
