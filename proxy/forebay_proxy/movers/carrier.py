"""One connection to an origin inside a mover, and the tunnel through which the event loop speaks HTTP over it.

| state | what the origin sends | leaves it by |
|---|---|---|
| ``SHAKING`` | TLS handshake | its end: ``RELAYING`` |
| ``RELAYING`` | goes into the tunnel as it comes | a request from the tunnel: ``HEADING`` |
| ``HEADING`` | is gathered up to the head's end, which goes into the tunnel | the end: ``HOLDING`` (see ``answer_head``) or ``RELAYING`` |
| ``HOLDING`` | is left in the kernel | ``Land``: ``LANDING``; ``Relay``: ``RELAYING`` |
| ``LANDING`` | goes to the file, hashed on the way | its last byte: ``KEPT``, or closed |
| ``KEPT`` | nothing may come; there is no tunnel | ``HandAgain``: ``RELAYING`` |

Whoever closes the tunnel ends everything: that is how the loop stops a landing. Nothing blocks but the write to the file.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from forebay_proxy.movers.answer_head import AnswerHead
from forebay_proxy.movers.frames import Frame, Land, Landed, Opened, Outcome, Unopened, UnopenedFor
from forebay_proxy.movers.sink import Landing
from forebay_proxy.movers.watermarks import Watermarks

__all__ = ["BUFFER_BYTES", "Carrier", "Link", "State"]

BUFFER_BYTES = 2**20  # one for all connections of a mover: what was received is written before the next receives
RELAY_BYTES = 256 * 1024  # waiting for the tunnel; more waits in the kernel
TURNS = 4  # receives of one connection before the others have theirs

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class State(Enum):
    """See the module's table."""

    SHAKING = auto()
    RELAYING = auto()
    HEADING = auto()
    HOLDING = auto()
    LANDING = auto()
    KEPT = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Link:
    """What every connection of a mover works with: where its frames go, the marks, and the one buffer."""

    say: Callable[[Frame], None]
    watermarks: Watermarks
    buffer: memoryview


class Carrier:
    """``wants_turn``: it stopped for the others' sake, or what it waits for may lie where epoll does not look.

    ``owes_end``: the loop has not heard that it ended, or will.
    """

    def __init__(
        self, link: Link, number: int, origin: socket.socket, tunnel: socket.socket, context: ssl.SSLContext | None, name: str
    ) -> None:
        origin.setblocking(False)
        tunnel.setblocking(False)
        self.number = number
        self.origin = origin
        self.tunnel: socket.socket | None = tunnel
        self.state = State.RELAYING
        self.wants_turn = False
        self.owes_end = True
        self._link = link
        self._head = AnswerHead()
        self._to_origin = bytearray()
        self._to_tunnel = bytearray()
        self._landing: Landing | None = None
        self._ended = False  # the origin has; what waits for the tunnel still goes there
        if context is not None:
            self.origin = context.wrap_socket(origin, server_hostname=name, do_handshake_on_connect=False)
            self.state = State.SHAKING

    def __repr__(self) -> str:
        return f"<Carrier {self.number} {self.state.name}>"

    @property
    def moved(self) -> int:
        """Bytes of the present landing that are in its file."""
        return 0 if self._landing is None else self._landing.moved

    @property
    def _reads_origin(self) -> bool:
        """Whether what the origin sends is wanted now."""
        return self.state is not State.HOLDING and not self._ended and len(self._to_tunnel) < RELAY_BYTES

    def interests(self) -> list[tuple[int, int]]:
        """Both descriptors, and for what epoll is asked there; [] once closed."""
        if self.state is State.CLOSED:
            return []
        writes = bool(self._to_origin) and self.state is not State.SHAKING
        ends = [(self.origin.fileno(), (select.EPOLLIN if self._reads_origin else 0) | (select.EPOLLOUT if writes else 0))]
        if self.tunnel is not None:
            ends.append((self.tunnel.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._to_tunnel else 0)))
        return ends

    # What the loop says

    def land(self, asked: Land, file: int) -> None:
        """The body that is held goes to ``file``, whose descriptor is this object's from now on."""
        if self.state is not State.HOLDING:
            os.close(file)
            self._link.say(Landed(self.number, Outcome.NOT_HELD, 0, 0, 0, False))
            return
        self.state = State.LANDING
        self._landing = Landing(asked, file)
        early = memoryview(self._head.rest())
        self._ended = len(early) > asked.count  # bytes beyond the answer: nothing that follows on this connection could be believed
        self._landing.wake_rarely(self.origin)
        if early:
            self._put(early[: asked.count])
        self.wants_turn = self.state is State.LANDING

    def relay(self) -> None:
        """The body that is held goes through the tunnel."""
        if self.state is State.HOLDING:
            self.state = State.RELAYING
            self._give(self._head.rest())
            self.wants_turn = True

    def again(self, tunnel: socket.socket) -> bool:
        """Take a new ``tunnel``; whether the connection, kept so far, is still good."""
        if self.state is not State.KEPT:
            return False
        tunnel.setblocking(False)
        self.tunnel, self.state = tunnel, State.RELAYING
        self._link.say(Opened(self.number))
        return True

    def retire(self) -> None:
        """Leave off whatever it does, and close."""
        if self._landing is not None:
            self._land_ended(Outcome.STOPPED)
        self.close()

    # What the sockets say

    def from_tunnel(self) -> None:
        """Bytes of a request, or the tunnel's end."""
        assert self.tunnel is not None
        try:
            data = self.tunnel.recv(RELAY_BYTES)
        except _WOULD_BLOCK:
            return
        except OSError:
            data = b""
        if not data:
            self.retire()
            return
        if self.state is State.RELAYING and not self._to_tunnel:
            self.state = State.HEADING  # the client has had the whole answer before, or it would not ask again
            self._head = AnswerHead()
        self._to_origin += data
        self.to_origin()

    def to_origin(self) -> None:
        """Write what waits for the origin, or go on with the handshake."""
        if self.state is State.SHAKING:
            self._shake()
            return
        try:
            while self._to_origin:
                del self._to_origin[: self.origin.send(self._to_origin)]
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._origin_ended(error)

    def to_tunnel(self) -> None:
        """Write what waits for the tunnel."""
        try:
            while self._to_tunnel and self.tunnel is not None:
                del self._to_tunnel[: self.tunnel.send(self._to_tunnel)]
        except _WOULD_BLOCK:
            return
        except OSError:
            self.close()
            return
        if self._ended:
            self.close()
        else:
            self.wants_turn = True  # TLS may hold what was not read for want of room

    def from_origin(self) -> None:
        """Take what has come, as the state says, a few times at most."""
        self.wants_turn = False
        try:
            for _ in range(TURNS):
                if not self._reads_origin or self.state is State.CLOSED:
                    return
                if not self._receive():
                    self._origin_ended()
                    return
            self.wants_turn = self.state is not State.CLOSED
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._origin_ended(error)

    def _receive(self) -> bool:
        """One turn; False at the origin's end. Raises what the socket raises."""
        if self.state is State.SHAKING:
            self._shake()
            return True
        if self.state is State.LANDING:
            return self._receive_to_file()
        size = self.origin.recv_into(self._link.buffer[:RELAY_BYTES])
        if size and self.state is State.KEPT:
            return False  # it speaks unasked
        data = self._link.buffer[:size]
        if self.state is State.HEADING:
            forward = self._head.add(data)
            if self._head.over:
                self.state = State.HOLDING if self._head.may_hold else State.RELAYING
            self._give(forward)
        else:
            self._give(data)
        return size > 0

    def _receive_to_file(self) -> bool:
        """As much as has come and the buffer takes; TLS gives it in records of 16 KiB."""
        assert self._landing is not None
        most, got = min(self._landing.left, BUFFER_BYTES), 0
        buffer = self._link.buffer
        try:
            while got < most:
                size = self.origin.recv_into(buffer[got:most])
                if not size:
                    break
                got += size
                if not isinstance(self.origin, ssl.SSLSocket):
                    break
        except (*_WOULD_BLOCK, OSError):
            if not got:
                raise
        if got:
            self._put(buffer[:got])
        return got > 0

    def _shake(self) -> None:
        assert isinstance(self.origin, ssl.SSLSocket)
        try:
            self.origin.do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLWantWriteError:  # some kilobytes on a new connection: it will not be long
            self.wants_turn = True
            raise
        except ssl.SSLCertVerificationError as error:
            self._refuse(UnopenedFor.CERTIFICATE, 0, error.verify_message or "")
        except ssl.SSLError as error:
            self._refuse(UnopenedFor.TLS, 0, error.reason or "")
        except OSError as error:
            self._refuse(UnopenedFor.SYSTEM, error.errno or 0, "")
        else:
            self.state = State.RELAYING
            self._link.say(Opened(self.number))

    def _refuse(self, why: UnopenedFor, number: int, words: str) -> None:
        self._link.say(Unopened(self.number, why, number, words[:200]))
        self.owes_end = False
        self.close()

    def _give(self, data: bytes | bytearray | memoryview) -> None:
        self._to_tunnel += data
        if self._to_tunnel:
            self.to_tunnel()

    # Landings

    def _put(self, data: memoryview) -> None:
        """Write ``data`` at its place, sum it up, say so."""
        landing = self._landing
        assert landing is not None
        try:
            landing.put(data)
        except OSError as error:
            self._land_ended(Outcome.DISK, error.errno or 0)
            return
        if landing.left:
            self._link.watermarks.move(landing.asked.slot, landing.moved)
            landing.wake_rarely(self.origin)
        else:
            self._land_ended(Outcome.WHOLE)

    def _land_ended(self, outcome: Outcome, number: int = 0) -> None:
        landing, self._landing = self._landing, None
        assert landing is not None
        landing.close(self.origin)
        kept = outcome is Outcome.WHOLE and landing.asked.keep and not self._ended
        if outcome is not Outcome.STOPPED:
            self._link.watermarks.move(landing.asked.slot, landing.moved)
        self._link.say(Landed(self.number, outcome, landing.moved, landing.hasher.intdigest(), number, kept))
        if not kept:
            self.owes_end = False
            self.close()
            return
        self.state = State.KEPT
        if self.tunnel is not None:
            self.tunnel.close()
            self.tunnel = None

    # Ends

    def _origin_ended(self, error: OSError | None = None) -> None:
        if self._landing is not None and error is not None:
            self._land_ended(Outcome.BROKEN, error.errno or 0)
        elif self._landing is not None:
            self._land_ended(Outcome.SHORT)
        elif self.state in (State.HEADING, State.RELAYING):
            self._ended = True
            self._give(self._head.rest())
            if not self._to_tunnel:
                self.close()
        else:
            self.close()

    def close(self) -> None:
        """Close both sides. Safe to repeat."""
        self.state = State.CLOSED
        self.wants_turn = False
        for end in (self.origin, self.tunnel):
            if end is not None:
                end.close()
        if self._landing is not None:
            self._landing.close(self.origin)
            self._landing = None
