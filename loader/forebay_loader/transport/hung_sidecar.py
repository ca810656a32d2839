"""A sidecar that is there and does not turn: stopped, frozen, swapping. Its sockets connect, and nothing ever comes.

``turns`` asks /healthz, for two seconds at most. A reader without an answer sets ``HUNG``; from then on no reader of this process with
another way waits for the sidecar. One request stays open at its socket; a sidecar that goes on answers that first. Each opening looks for
this answer for a twentieth of a second. That takes no thread, and must not: a process that is no worker may fork at any time.

A reader with no other way waits (``Bearing``): an error would end a training that a busy node only holds up.
"""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from typing import Callable, Optional

from forebay_loader.base.notices import warn_node
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import Endpoint, find_endpoint
from forebay_loader.transport.http import ask, open_socket
from forebay_loader.transport.source_timeout import SourceTimeout

__all__ = ["HUNG", "Bearing", "hung", "look", "turns"]

TURNS_S = 2.0  # /healthz is answered in a turn of its loop; together with ``Limits.look_s`` the five seconds that a shard may lose
Tell = Callable[[float, Callable[[], bool]], None]  # the seconds waited, and what says whether the answer is there meanwhile
LOOK_S = 0.05  # at each opening, for the answer to what was left standing
AGAIN_S = 1.0  # between two questions, where one cannot be left


def turns(endpoint: Optional[Endpoint] = None) -> bool:
    """Whether the sidecar (at ``endpoint``) answers /healthz."""
    found = endpoint or find_endpoint()
    if found is None:
        return False
    try:
        reply = ask(found, "/healthz", [], connect_s=TURNS_S, silence_s=TURNS_S)
    except Unanswered:
        return False
    reply.explanation()
    return reply.status == 200


class Bearing:
    """How much longer a sidecar that does not turn is waited for, in seconds: 0 unless ``alone``, where no other way leads to the bytes.

    The sidecar's silence is then borne as long as that of a live one. A warning says so once.
    """

    def __init__(self, shard: str, source_timeout: SourceTimeout, *, alone: bool) -> None:
        self.alone = alone
        self.began = False  # it was found not to turn, and is waited for
        self._shard = shard
        self._source_timeout = source_timeout
        self._most_s = float("inf")

    @property
    def left_s(self) -> float:
        """For how much longer one that is waited for may be silent."""
        return min(self._source_timeout.left_s, max(0.0, self._most_s - self._source_timeout.waited_s))

    def at_most(self, seconds: float) -> None:
        """From now on so many, where little is to be hoped for."""
        self._most_s = self._source_timeout.waited_s + seconds

    def __call__(self) -> float:
        if not self.alone:
            return 0.0
        left_s = self.left_s
        if left_s and not self.began:
            warn_node(f"{self._shard}: {hung()}; no other way leads to it: waiting, for up to {left_s:.0f} s")
        self.began = True
        return left_s


def look(
    asked: socket.socket,
    look_s: float,
    tell_s: float = 0.0,
    tell: Optional[Tell] = None,
    bearing: Optional[Bearing] = None,
    silence_s: float = float("inf"),
    why: Callable[[], str] = str,
) -> None:
    """Wait for the start of an answer. Raises ``Unanswered`` where none comes within ``look_s`` and the sidecar does not turn either.

    ``bearing`` may say to wait on all the same. Where it turns and nothing comes within ``tell_s``, ``tell`` is told so. A sidecar that
    turns and says nothing for ``silence_s`` waits for its origin; ``why`` says what it tells of that, while the question stands.
    """
    began_s = time.monotonic()
    waiting = select.poll()  # select() takes no number above 1,023
    waiting.register(asked, select.POLLIN)
    if waiting.poll(look_s * 1e3):
        return
    if not turns():
        HUNG.found()
        if bearing is None or not _comes(waiting, bearing()):
            raise hung()
        return
    if tell is not None and not waiting.poll(max(0.0, began_s + tell_s - time.monotonic()) * 1e3):
        tell(time.monotonic() - began_s, lambda: bool(waiting.poll(0)))
    if silence_s < float("inf") and not waiting.poll(max(0.0, began_s + silence_s - time.monotonic()) * 1e3):
        if not turns():
            raise hung()
        raise Unanswered(f"no answer within {silence_s:g} s: {why()}", silent=True, reached=True)


def _comes(waiting: select.poll, within_s: float) -> bool:
    """Whether the answer is worth waiting for: it is there within that time, or the sidecar at last turns. False: it is another's now.

    The same question all the while: a sidecar that is only slow would never answer one that is given up every few seconds.
    """
    where, until_s = find_endpoint(), time.monotonic() + within_s
    while (left_s := until_s - time.monotonic()) > 0:
        if waiting.poll(min(left_s, AGAIN_S) * 1e3):
            return True
        if find_endpoint() != where:
            return False
    return within_s > 0 and turns()


def hung() -> Unanswered:
    """What to raise instead of asking."""
    return Unanswered(f"the sidecar at {find_endpoint()} runs but does not answer (stopped, frozen, swapping?)", silent=True, hung=True)


class _Hung:
    """This process's memory of a sidecar that does not turn. A fork's child has it too, and a question of its own."""

    def __init__(self) -> None:
        self._question: Optional[socket.socket] = None
        self.forget()

    def forget(self) -> None:
        self._where: Optional[Endpoint] = None
        self._since_s = 0.0
        self._asked_at_s = float("-inf")
        self._drop()

    def found(self) -> None:
        """The present sidecar did not answer."""
        where = find_endpoint()
        if where != self._where:
            self._since_s = time.monotonic()
        self._where = where

    @property
    def for_s(self) -> float:
        """For how long it has been known."""
        return 0.0 if self._where is None else time.monotonic() - self._since_s

    def known(self) -> bool:
        """Whether the present sidecar is known not to answer, still."""
        where = self._where
        if where is None:
            return False
        if find_endpoint() != where or self._answers(where):
            self.forget()
            return False
        return True

    def _answers(self, where: Endpoint) -> bool:
        """Whether it has said something, or is gone: then it is dead, which is told otherwise."""
        question = self._question
        if question is None or self._pid != os.getpid():
            if time.monotonic() - self._asked_at_s < AGAIN_S:
                return False
            self._asked_at_s = time.monotonic()
            try:
                question = self._ask(where)
            except (socket.timeout, BlockingIOError):  # its backlog is full
                return False
            except OSError:
                return True
        try:
            answered = bool(question.recv(1, socket.MSG_PEEK))
        except socket.timeout:
            return False
        except OSError:
            answered = False
        if not answered:  # it has closed it: it is ending, or was started anew
            self._drop()
        return answered

    def _ask(self, where: Endpoint) -> socket.socket:
        self._drop()
        self._pid = os.getpid()
        made = open_socket(where, LOOK_S)
        try:
            made.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        except BaseException:
            made.close()
            raise
        self._question = made
        return made

    def _drop(self) -> None:
        question, self._question, self._pid = self._question, None, 0
        if question is not None:
            with suppress(OSError):
                question.close()


HUNG = _Hung()
