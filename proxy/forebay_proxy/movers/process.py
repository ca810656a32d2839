"""The mover: a process of one thread and one epoll loop, which moves the bytes of bodies and decides nothing.

``python -P -m forebay_proxy.movers.process CONTROL TABLE BELL``: descriptors it inherits. What it is to do comes over the control socket;
it ends when that closes, so it never outlives its sidecar, and takes no signal for an order: a SIGTERM to a whole group is for the sidecar,
which drains first. It leaves no core dump and cannot be looked into: requests with credentials pass through it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import ssl
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress

from forebay_proxy.movers.carrier import BUFFER_BYTES, Carrier, Link, State
from forebay_proxy.movers.frames import (
    MOST_MESSAGE_BYTES,
    BadFrame,
    Frame,
    Gone,
    Hand,
    HandAgain,
    Land,
    Landed,
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
from forebay_proxy.movers.watermarks import Watermarks

__all__ = ["Mover", "main"]

SWEEP_S = 0.05  # a landing that brought less than the kernel wakes for is looked at so often
KEPT_MOST = 64  # connections between two requests
KEPT_S = 20.0  # as the loop's own: below the 60 s of most servers
GARBAGE = 70  # exit status: the loop said something that is no frame

_PR_SET_DUMPABLE = 4


class Mover:
    """The loop. ``control`` is the other end of the sidecar's."""

    def __init__(self, control: socket.socket, watermarks: Watermarks) -> None:
        control.setblocking(False)
        self._control = control
        self._link = Link(self._say, watermarks, memoryview(bytearray(BUFFER_BYTES)))
        self._epoll = select.epoll()
        self._carriers: dict[int, Carrier] = {}
        self._ends: dict[int, tuple[Carrier, bool]] = {}  # descriptor -> whose, and whether it is the tunnel
        self._watched: dict[int, list[tuple[int, int]]] = {}  # connection -> its descriptors and what epoll tells of each
        self._kept: OrderedDict[int, float] = OrderedDict()  # connections between two requests, since when
        self._swept: dict[int, int] = {}  # landing -> bytes moved at the last sweep
        self._contexts: dict[tuple[str, str], ssl.SSLContext] = {}
        self._outbox: deque[bytes] = deque()
        self._awaits_room = False  # for the outbox
        self._swept_at = 0.0

    def run(self) -> int:
        """Serve until the control socket closes; the exit status."""
        self._epoll.register(self._control, select.EPOLLIN)
        try:
            while True:
                busy = [carrier for carrier in self._carriers.values() if carrier.wants_turn]
                events = self._epoll.poll(0 if busy else SWEEP_S if self._swept else 1.0)
                told = {descriptor for descriptor, _ in events}
                if self._control.fileno() in told and not self._obey(dict(events)[self._control.fileno()]):
                    return 0
                for descriptor, event in events:
                    self._turn(descriptor, event)
                for carrier in busy:
                    self._served(carrier, carrier.from_origin)
                self._sweep()
        except BadFrame:
            return GARBAGE

    # The loop's orders

    def _obey(self, event: int) -> bool:
        """Take what the loop says; False once it is gone. Raises ``BadFrame``."""
        if event & select.EPOLLOUT:
            self._send_outbox()
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._control, MOST_MESSAGE_BYTES + 1, 4)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not message:
                return False
            try:
                frame = decode(message, len(descriptors))
            except BadFrame:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise
            self._do(frame, descriptors)

    def _do(self, frame: Frame, descriptors: list[int]) -> None:
        if isinstance(frame, Hand):
            self._take(frame, descriptors)
        elif isinstance(frame, Ping):
            self._say(Pong(frame.number))
        elif isinstance(frame, HandAgain | Land | Relay | Retire):
            carrier = self._carriers.get(frame.connection)
            if carrier is None:
                self._unknown(frame, descriptors)
            elif isinstance(frame, HandAgain):
                self._again(carrier, descriptors[0])
            elif isinstance(frame, Land):
                self._served(carrier, lambda: carrier.land(frame, descriptors[0]))
            elif isinstance(frame, Relay):
                self._served(carrier, carrier.relay)
            else:
                self._served(carrier, carrier.retire)
        else:
            raise BadFrame(f"{type(frame).__name__} is not for a mover")

    def _unknown(self, frame: HandAgain | Land | Relay | Retire, descriptors: list[int]) -> None:
        """The connection has ended meanwhile."""
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(frame, HandAgain):
            self._say(Unopened(frame.connection, UnopenedFor.GONE, 0, ""))
        elif isinstance(frame, Land):
            self._say(Landed(frame.connection, Outcome.NOT_HELD, 0, 0, 0, False))

    def _take(self, frame: Hand, descriptors: list[int]) -> None:
        origin, tunnel = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        try:
            context = self._context(frame) if frame.tls else None
            carrier = Carrier(self._link, frame.connection, origin, tunnel, context, frame.name)
        except (OSError, ValueError):  # authorities that cannot be read any more, a name that is none
            origin.close()
            tunnel.close()
            self._say(Unopened(frame.connection, UnopenedFor.TLS, 0, "TLS could not begin"))
            return
        self._carriers[frame.connection] = carrier
        self._served(carrier, carrier.from_origin if frame.tls else lambda: None)

    def _context(self, frame: Hand) -> ssl.SSLContext:
        """One for all connections that trust the same: loading authorities takes 20 ms."""
        place = frame.authorities_file, frame.authorities_directory
        context = self._contexts.get(place)
        if context is None:
            context = ssl.create_default_context(cafile=place[0] or None, capath=place[1] or None)
            context.set_alpn_protocols(("http/1.1",))
            self._contexts[place] = context
        return context

    def _again(self, carrier: Carrier, descriptor: int) -> None:
        tunnel = socket.socket(fileno=descriptor)
        if carrier.again(tunnel):
            self._kept.pop(carrier.number, None)
            self._watch(carrier)
        else:
            tunnel.close()
            self._say(Unopened(carrier.number, UnopenedFor.GONE, 0, ""))

    # The sockets

    def _turn(self, descriptor: int, event: int) -> None:
        carrier, is_tunnel = self._ends.get(descriptor, (None, False))
        if carrier is None:
            return
        if event & select.EPOLLOUT:
            self._served(carrier, carrier.to_tunnel if is_tunnel else carrier.to_origin)
        if event & ~select.EPOLLOUT and self._ends.get(descriptor, (None, False))[0] is carrier:
            self._served(carrier, carrier.from_tunnel if is_tunnel else carrier.from_origin)

    def _served(self, carrier: Carrier, act: Callable[[], None]) -> None:
        """Let ``carrier`` act, then watch what it waits for now."""
        if carrier.state is State.CLOSED:
            return
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            act()
        self._watch(carrier)

    def _watch(self, carrier: Carrier) -> None:
        number = carrier.number
        wanted = carrier.interests()
        watched = self._watched.get(number, [])
        if wanted != watched:
            self._rewatch(carrier, watched, wanted)
        if carrier.state is State.LANDING:
            self._swept.setdefault(number, -1)
        else:
            self._swept.pop(number, None)
        if carrier.state is State.KEPT and number not in self._kept:
            self._keep(carrier)
        if carrier.state is State.CLOSED:
            self._carriers.pop(number, None)
            self._kept.pop(number, None)
            if carrier.owes_end:
                self._say(Gone(number))

    def _rewatch(self, carrier: Carrier, watched: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
        for descriptor, _ in watched:
            if self._ends.get(descriptor, (None, False))[0] is carrier:
                del self._ends[descriptor]
                with suppress(OSError, ValueError):  # one that is closed has left by itself
                    self._epoll.unregister(descriptor)
        for descriptor, events in wanted:
            self._ends[descriptor] = carrier, carrier.tunnel is not None and descriptor == carrier.tunnel.fileno()
            if events:  # else epoll would tell of its end without being asked, again and again
                self._epoll.register(descriptor, events)
        if wanted:
            self._watched[carrier.number] = wanted
        else:
            self._watched.pop(carrier.number, None)

    def _keep(self, carrier: Carrier) -> None:
        self._kept[carrier.number] = time.monotonic()
        if len(self._kept) > KEPT_MOST:
            oldest = self._carriers[next(iter(self._kept))]
            self._served(oldest, oldest.close)

    def _sweep(self) -> None:
        """What came is less than the kernel wakes for, and no more may be coming: fetch it. Close what was kept for too long."""
        now = time.monotonic()
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            for number, moved in list(self._swept.items()):
                carrier = self._carriers[number]
                if carrier.moved == moved:
                    self._served(carrier, carrier.from_origin)
                if number in self._swept:
                    self._swept[number] = carrier.moved
            while self._kept and now - next(iter(self._kept.values())) > KEPT_S:
                oldest = self._carriers[next(iter(self._kept))]
                self._served(oldest, oldest.close)

    # What it says

    def _say(self, frame: Frame) -> None:
        self._outbox.append(encode(frame))
        if len(self._outbox) == 1:
            self._send_outbox()

    def _send_outbox(self) -> None:
        try:
            while self._outbox:
                self._control.send(self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            return  # the loop is gone; the next look at the control socket says so
        if self._awaits_room != bool(self._outbox):
            self._awaits_room = bool(self._outbox)
            self._epoll.modify(self._control, select.EPOLLIN | (select.EPOLLOUT if self._awaits_room else 0))


def main(arguments: list[str]) -> int:
    """Serve the sidecar that started this process; the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    control, table, bell = (int(argument) for argument in arguments)
    return Mover(socket.socket(fileno=control), Watermarks(table, bell)).run()


if __name__ == "__main__":
    # No tidying up: what is open closes with the process, and a sidecar that is gone waits for nothing.
    os._exit(main(sys.argv[1:]))
