"""A connection to the sidecar whose answers are not waited for: each is read before the next request, usually long after it came."""

from __future__ import annotations

import select
from http.client import HTTPConnection, HTTPException
from typing import Mapping, NamedTuple, Optional

from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import Endpoint
from forebay_loader.transport.http import connect

__all__ = ["Answer", "DeferredConnection"]


class Answer(NamedTuple):
    """Its status, and the instance of the sidecar it is from ("" where it does not say)."""

    status: int
    instance: str


class DeferredConnection:
    """At most one request is out at a time. Not for two threads at once, and not for a fork's child: its parent's socket is not its own."""

    def __init__(self) -> None:
        self.awaiting = False  # a request was sent, its answer not read
        self._endpoint: Optional[Endpoint] = None
        self._connection: Optional[HTTPConnection] = None

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else "awaiting an answer" if self.awaiting else "idle"
        return f"<DeferredConnection to {self._endpoint}, {state}>"

    def send(
        self, endpoint: Endpoint, method: str, target: str, content: bytes, headers: Mapping[str, str], *, connect_s: float, send_s: float
    ) -> None:
        """Send a request to ``endpoint``, over the socket that is open if it leads there. The answer to the one before must be read.

        Raises ``Unanswered``; ``ValueError`` for an unsendable header.
        """
        if self._connection is None or self._connection.sock is None or endpoint != self._endpoint:
            self.close()
            self._connection, self._endpoint = connect(endpoint, connect_s), endpoint
        token = {"Forebay-Token": endpoint.token} if endpoint.token else {}
        try:
            self._connection.sock.settimeout(send_s)
            self._connection.request(method, target, content, {**headers, **token})
        except (OSError, HTTPException) as error:
            raise Unanswered(f"{endpoint} took no request ({type(error).__name__})") from error
        self.awaiting = True

    def receive(self, answer_s: float) -> Optional[Answer]:
        """The answer to what was sent last; None where none is awaited. Raises ``Unanswered`` where it is not there within ``answer_s``."""
        connection = self._connection
        if not self.awaiting or connection is None:
            return None
        self.awaiting = False
        if connection.sock is None:
            raise Unanswered(f"{self._endpoint} closed the connection")
        try:
            connection.sock.settimeout(answer_s)
            response = connection.getresponse()
            response.read()
        except (OSError, HTTPException, ValueError) as error:
            raise Unanswered(f"{self._endpoint} gave no answer ({type(error).__name__})") from error
        return Answer(response.status, str(response.headers.get("Forebay-Instance", "")))

    def is_answered(self) -> bool:
        """Whether the answer, or the end of the connection, is there already. Waits for nothing."""
        connection = self._connection
        if connection is None or connection.sock is None:
            return True
        try:
            return bool(select.select([connection.sock], [], [], 0)[0])
        except (OSError, ValueError):  # closed, or a number that select does not take
            return True

    def close(self) -> None:
        """Hang up; an answer is awaited no longer. Safe to repeat."""
        connection, self._connection, self.awaiting = self._connection, None, False
        if connection is not None:
            connection.close()
