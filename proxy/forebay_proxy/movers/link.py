"""One mover as the event loop sees it: its process, what is said to it, what it says, and what of that is believed.

A mover is believed within what it was asked for, and no further. A message that is no frame, a mark beyond its range or one that goes back,
no answer for ten seconds: it is killed, and only when the process is gone are its landings over. Nothing writes to their files any more
then, so their room can be given back or written by others. What its marks said is in the file: a write that returned outlives its process.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.tasks import to_its_end
from forebay_proxy.movers.frames import (
    MOST_MESSAGE_BYTES,
    BadFrame,
    Frame,
    Gone,
    Hand,
    HandAgain,
    Land,
    Landed,
    Opened,
    Outcome,
    Ping,
    Pong,
    Relay,
    Retire,
    Unopened,
    UnopenedFor,
    decode,
    encode,
)
from forebay_proxy.movers.watermarks import SLOTS, Watermarks

__all__ = ["PATIENCE_S", "MoverLink", "MoverLost", "OriginLink"]

PATIENCE_S = 10.0  # as with a write of the loop's own: a throttled disk may keep one for a second
PING_S = 2.0
LEAVING_S = 2.0  # a mover whose control socket closed ends at once, unless the disk holds it

COMMAND = ("-P", "-m", "forebay_proxy.movers.process")


class MoverLost(ForebayError):
    """The mover that had this connection is gone, or is not to be believed. The body is asked for again, on another way."""


@dataclass(slots=True)
class _Landing:
    slot: int
    count: int
    moved: Callable[[int], None]
    ended: asyncio.Future[Landed]
    mark: int = 0
    moved_at: float = 0.0


class OriginLink:
    """One connection to an origin that a mover has."""

    def __init__(self, mover: MoverLink, number: int, peer: str) -> None:
        """``peer``: the address at its other end, as it was dialled."""
        self.mover = mover
        self.number = number
        self.peer = peer
        self.answer: asyncio.Future[Opened | Unopened] = _future()
        self.landing: _Landing | None = None
        self.gone = False

    def __repr__(self) -> str:
        return f"<OriginLink {self.number} to {self.peer} in {self.mover!r}>"

    async def opened(self) -> Opened | Unopened:
        """Wait for its TLS, or until a kept one has a new tunnel. Raises ``MoverLost``."""
        return await asyncio.shield(self.answer)

    def again(self, tunnel: socket.socket) -> None:
        """Give a kept one a new tunnel; ``opened`` tells what came of it."""
        self.answer = _future()
        self.mover.say(HandAgain(self.number), [tunnel.fileno()])

    def relay(self) -> None:
        """Have a body that may be held come through the tunnel."""
        self.mover.say(Relay(self.number))

    def retire(self) -> None:
        """Close it, whatever it does."""
        self.mover.say(Retire(self.number))

    async def land(self, file: int, offset: int, count: int, moved: Callable[[int], None], *, keep: bool, idle_s: float) -> Landed:
        """Have the next ``count`` bytes of the body written to ``file`` from ``offset`` on; ``moved`` hears how many are there.

        When this returns or raises nothing is written any more. Raises ``MoverLost``, and ``TimeoutError`` after ``idle_s`` in which
        nothing came.
        """
        clock = asyncio.get_running_loop().time
        landing = self.landing = self.mover.begin(count, moved)
        landing.moved_at = clock()
        try:
            self.mover.say(Land(self.number, landing.slot, offset, count, keep), [file])
            while not landing.ended.done():
                left_s = landing.moved_at + idle_s - clock()
                if left_s <= 0:
                    raise TimeoutError
                await asyncio.wait([landing.ended], timeout=left_s)
            return landing.ended.result()
        finally:
            if not landing.ended.done():
                await to_its_end(self._stopped(landing))
            self.mover.end(landing)
            self.landing = None

    async def _stopped(self, landing: _Landing) -> None:
        self.retire()
        await asyncio.wait([landing.ended], timeout=PATIENCE_S)
        if not landing.ended.done():
            self.mover.give_up("stuck")
            await asyncio.wait([landing.ended])


class MoverLink:
    """One mover's process. ``start`` makes one; ``ended`` looks after it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, watermarks: Watermarks) -> None:
        self.why_lost = ""  # a short word; "": it is not
        self.trusted = False  # a sum of its was compared with the file
        self.connections: dict[int, OriginLink] = {}
        self.moved_bytes = 0
        self._process = process
        self._control = control
        self._watermarks = watermarks
        self._slots = list(range(SLOTS))
        self._landings: set[int] = set()  # connections
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._numbers = 0
        self._ponged = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(control.fileno(), self._hear)
        loop.add_reader(watermarks.bell, self._rung)

    def __repr__(self) -> str:
        return f"<MoverLink {self._process.pid}, {self.landings} landings{', ' + self.why_lost if self.why_lost else ''}>"

    @classmethod
    async def start(cls, command: tuple[str, ...] = COMMAND) -> MoverLink:
        """A new process: executed, never forked from this one and its threads. Raises ``OSError``."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watermarks = Watermarks.create()
        given = theirs.fileno(), watermarks.table, watermarks.bell
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, *map(str, given), pass_fds=given, stdin=asyncio.subprocess.DEVNULL
            )
        except BaseException:
            ours.close()
            watermarks.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(process, ours, watermarks)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def landings(self) -> int:
        """Bodies that it moves now."""
        return SLOTS - len(self._slots)

    async def ended(self) -> str:
        """Look after it until it is gone; why it is. Cancelled, it is made to end."""
        exit_ = asyncio.ensure_future(self._process.wait())
        try:
            while not self.why_lost:
                self._ponged.clear()
                self._numbers += 1
                self.say(Ping(self._numbers))
                await asyncio.wait([exit_], timeout=PING_S)
                if exit_.done():
                    self.give_up("exit")
                elif not self._ponged.is_set():
                    await self._answered(exit_)
        finally:
            self.give_up("end")
            await to_its_end(self._gone(exit_))
        return self.why_lost

    async def _answered(self, exit_: asyncio.Future[int]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S - PING_S):
                await self._ponged.wait()
        if not self._ponged.is_set():
            self.give_up("exit" if exit_.done() else "silent")

    async def _gone(self, exit_: asyncio.Future[int]) -> None:
        await asyncio.wait([exit_])  # killed; one that the disk holds comes back from there first
        for connection in list(self.connections.values()):
            self._drop(connection)
        self._watermarks.close()

    def give_up(self, why: str) -> None:
        """Kill it; what it has is lost once it is gone. Nothing where that was done before."""
        if self.why_lost:
            return
        self.why_lost = why
        loop = asyncio.get_running_loop()
        for descriptor in (self._control.fileno(), self._watermarks.bell):
            loop.remove_reader(descriptor)
        loop.remove_writer(self._control.fileno())
        self._control.close()
        for _, descriptors in self._outbox:
            _close(descriptors)
        self._outbox.clear()
        with suppress(ProcessLookupError):
            self._process.kill()

    def _drop(self, connection: OriginLink) -> None:
        self.connections.pop(connection.number, None)
        lost = MoverLost("a mover process ended while it had this connection")
        for waiting in (connection.answer, connection.landing.ended if connection.landing else None):
            if waiting is not None and not waiting.done():
                waiting.set_exception(lost)
                waiting.exception()  # heard, even if nobody waits
        connection.gone = True

    # What is said to it

    def hand(
        self, origin: socket.socket, tunnel: socket.socket, peer: str, *, tls: bool, name: str, authorities: tuple[str, str]
    ) -> OriginLink:
        """Give it a connection, and its end of the tunnel; both stay the caller's too. Raises ``MoverLost``."""
        if self.why_lost:
            raise MoverLost("the mover process ended")
        self._numbers += 1
        connection = self.connections[self._numbers] = OriginLink(self, self._numbers, peer)
        self.say(Hand(connection.number, tls, name, *authorities), [origin.fileno(), tunnel.fileno()])
        return connection

    def say(self, frame: Frame, descriptors: list[int] | None = None) -> None:
        """Send ``frame`` in its turn; nothing to one that is lost. ``descriptors`` stay the caller's."""
        if self.why_lost:
            return
        self._outbox.append((encode(frame), [os.dup(descriptor) for descriptor in descriptors or ()]))
        if len(self._outbox) == 1:
            self._send()

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._outbox:
                message, descriptors = self._outbox[0]
                socket.send_fds(self._control, [message], descriptors)
                self._outbox.popleft()
                _close(descriptors)
        except BlockingIOError:
            loop.add_writer(self._control.fileno(), self._send)
            return
        except OSError:
            self.give_up("exit")
            return
        loop.remove_writer(self._control.fileno())

    def begin(self, count: int, moved: Callable[[int], None]) -> _Landing:
        """A place for a landing's mark. Raises ``MoverLost`` where it has none."""
        if self.why_lost or not self._slots:
            raise MoverLost("the mover process ended, or has too much to do")
        slot = self._slots.pop()
        self._watermarks.clear(slot)
        return _Landing(slot, count, moved, _future())

    def end(self, landing: _Landing) -> None:
        """The landing is over: its place is free."""
        self._slots.append(landing.slot)

    # What it says

    def _rung(self) -> None:
        self._watermarks.heard()  # before the marks are read: see ``watermarks``
        for connection in list(self.connections.values()):
            landing = connection.landing
            if landing is not None and not landing.ended.done():
                self._look(landing, self._watermarks[landing.slot])

    def _look(self, landing: _Landing, mark: int) -> None:
        if mark == landing.mark:
            return
        if not landing.mark < mark <= landing.count:
            self.give_up("claims")
            return
        self.moved_bytes += mark - landing.mark
        landing.mark, landing.moved_at = mark, asyncio.get_running_loop().time()
        landing.moved(mark)

    def _hear(self) -> None:
        try:
            while not self.why_lost:
                message, descriptors, _, _ = socket.recv_fds(self._control, MOST_MESSAGE_BYTES + 1, 1)
                if not message:
                    self.give_up("exit")
                    return
                _close(descriptors)
                self._heard(decode(message, len(descriptors)))
        except BlockingIOError:
            return
        except OSError:
            self.give_up("exit")
        except BadFrame:
            self.give_up("garbage")

    def _heard(self, frame: Frame) -> None:
        if isinstance(frame, Pong):
            self._ponged.set()
            return
        if not isinstance(frame, Opened | Unopened | Landed | Gone):
            raise BadFrame(f"{type(frame).__name__} is not for the loop")
        connection = self.connections.get(frame.connection)
        if connection is None:
            return  # it was given up meanwhile
        if isinstance(frame, Landed):
            self._landed(connection, frame)
        elif isinstance(frame, Gone):
            del self.connections[frame.connection]
            if not connection.answer.done():
                connection.answer.set_result(Unopened(frame.connection, UnopenedFor.GONE, 0, ""))
            connection.gone = True
        else:
            if isinstance(frame, Unopened):
                del self.connections[frame.connection]
                connection.gone = True
            if not connection.answer.done():
                connection.answer.set_result(frame)

    def _landed(self, connection: OriginLink, frame: Landed) -> None:
        landing = connection.landing
        if landing is None or landing.ended.done() or frame.outcome not in tuple(Outcome):
            raise BadFrame("a landing that nobody asked for")
        whole = frame.outcome == Outcome.WHOLE
        if not landing.mark <= frame.moved <= landing.count or whole != (frame.moved == landing.count):
            self.give_up("claims")
            return
        self._look(landing, frame.moved)
        if not frame.kept and frame.outcome != Outcome.NOT_HELD:
            del self.connections[frame.connection]
            connection.gone = True
        landing.ended.set_result(frame)


def _future() -> asyncio.Future:  # type: ignore[type-arg]  # of whatever the caller says
    return asyncio.get_running_loop().create_future()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
