"""Tell the sidecar what comes next: fire and forget, a few milliseconds, never an error.

The answer to one message is read when the next is sent, usually a shard later, so that a busy sidecar costs a worker nothing. Whatever goes
wrong, the next message replaces the whole plan.
"""

from __future__ import annotations

import os
import time
from http.client import HTTPConnection, HTTPException
from typing import Optional, Sequence

from forebay_loader.body import Unanswered
from forebay_loader.connection import connect
from forebay_loader.counts import COUNTS
from forebay_loader.endpoint import Endpoint, find_endpoint
from forebay_loader.ways import safe_headers
from forebay_proxy.wire.plan import Encoded, encode
from forebay_proxy.wire.urls import Source

__all__ = ["Announcer"]

CONNECT_S = 0.02  # it is on this machine
SEND_S = 0.02  # the body fits a socket buffer
ANSWER_S = 0.01  # its answer has usually been waiting for a shard's time; together at most 50 ms
PAUSE_S = 5.0  # after a failure: a dead sidecar must not be asked at every shard
REFUSED_PAUSE_S = 60.0  # after a 4xx: the same list will not be taken a moment later


class Announcer:
    """Sends one reader's plan. Not safe for concurrent access; each reading ahead has its own."""

    def __init__(self, reader: str) -> None:
        self._target = f"/v1/plans/{reader}"
        self._endpoint: Optional[Endpoint] = None
        self._connection: Optional[HTTPConnection] = None
        self._awaiting = False  # a request was sent, its answer not read
        self._taken = False  # the sidecar holds the plan as we know it
        self._quiet_until_s = float("-inf")
        self._pid = os.getpid()

    def announce(self, fresh: Sequence[Source], waiting: Sequence[Source]) -> None:
        """Append ``fresh``; ``waiting`` (which ends with it) replaces the plan where the sidecar may not have what was before."""
        if self._may_speak():
            self._settle()
        if not self._may_speak():
            self._taken = False
            return
        self._send("POST", fresh) if self._taken else self._send("PUT", waiting)

    def withdraw(self) -> None:
        """Take back what is unread, and hang up."""
        if self._may_speak() and (self._taken or self._awaiting):
            self._settle()
            if self._taken:
                self._send("DELETE", ())
                self._settle()
        self._hang_up()

    def _may_speak(self) -> bool:
        return time.monotonic() >= self._quiet_until_s

    def _send(self, method: str, sources: Sequence[Source]) -> None:
        listed, headers = publishable(sources)
        if method != "DELETE" and not listed:
            return
        content_type, content, _ = encode(listed) if listed else Encoded("", b"", "")
        try:
            connection = self._connected()
            connection.sock.settimeout(SEND_S)
            connection.request(method, self._target, content, self._headers(headers, content_type))
        except (OSError, HTTPException, ValueError, Unanswered):
            self._fail(PAUSE_S)
            return
        self._awaiting, self._taken = True, True
        COUNTS.add("plans_sent")

    def _headers(self, credentials: Sequence[tuple[str, str]], content_type: str) -> dict[str, str]:
        token = self._endpoint.token if self._endpoint else ""
        named = {"Content-Type": content_type, "Forebay-Token": token}
        return {**dict(credentials), **{name: value for name, value in named.items() if value}}

    def _connected(self) -> HTTPConnection:
        endpoint = find_endpoint()
        if endpoint is None:
            raise Unanswered("no sidecar")
        if self._connection is None or self._connection.sock is None or endpoint != self._endpoint or self._pid != os.getpid():
            self._hang_up()
            self._connection, self._endpoint, self._pid = connect(endpoint, CONNECT_S), endpoint, os.getpid()
        return self._connection

    def _settle(self) -> None:
        """Read the answer to what was sent last."""
        if not self._awaiting or self._connection is None:
            return
        self._awaiting = False
        try:
            self._connection.sock.settimeout(ANSWER_S)
            response = self._connection.getresponse()
            response.read()
        except (OSError, HTTPException, ValueError, AttributeError):  # AttributeError: closed by the other side, no socket left
            self._fail(PAUSE_S)
            return
        if not 200 <= response.status < 300:
            self._fail(0.0 if response.status == 404 else REFUSED_PAUSE_S)

    def _fail(self, pause_s: float) -> None:
        COUNTS.add("plans_failed")
        self._taken = False
        self._quiet_until_s = time.monotonic() + pause_s
        self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection, self._awaiting = self._connection, None, False
        if connection is not None:
            connection.close()


def publishable(sources: Sequence[Source]) -> tuple[list[str], list[tuple[str, str]]]:
    """The origin URLs to announce and the headers to send along.

    Headers apply to a host: they travel only when all sources share host and headers; otherwise sources that need some are left out, since
    without them the sidecar would only be refused.
    """
    if not sources:
        return [], []
    first = sources[0]
    shared = all(source.headers == first.headers and source.url.authority == first.url.authority for source in sources)
    if shared:
        return [source.url.text() for source in sources], safe_headers(first)
    return [source.url.text() for source in sources if not source.headers], []
