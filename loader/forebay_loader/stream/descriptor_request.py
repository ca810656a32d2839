"""Open a shard by descriptor: ask the sidecar's door for it, and hold what came. Where that cannot be, the shard comes over HTTP.

Whatever goes wrong on the way (no door, another mount or pid namespace, an old sidecar, no descriptors left) is no error.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Optional

from forebay_loader.base.activity import PROXY, UNTOLD, here
from forebay_loader.base.counters import COUNTS
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.stream.shard_descriptor import Descriptor, GoOn
from forebay_loader.stream.shard_request import safe_headers, shown
from forebay_loader.stream.wait_notices import say_wait
from forebay_loader.transport.endpoint import INSTANCES
from forebay_loader.transport.fd_client import CONNECTIONS, Broken, FdClient, unforked
from forebay_loader.transport.fd_endpoint import DOORS
from forebay_loader.transport.hung_sidecar import HUNG, turns
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.protocol.fd import FdAnswer, InvalidFdAnswer, InvalidFdRequest, encode_request

__all__ = ["open_descriptor"]


def open_descriptor(
    source: Source, reader: str, go_on: Optional[GoOn] = None, version: str = "", *, parts: bool = False
) -> Optional[Descriptor]:
    """The shard, if the sidecar has all of it here; None: over HTTP. ``reader`` is ``job/rank/worker/opener``.

    ``go_on`` is asked for a stream where the file cannot be read any further; without it reading raises ``OSError`` then. ``version``: the
    ETag that is meant; the sidecar asks no origin about that, and what comes may be of another one where it has none of it.
    ``parts``: samples of it are read, and not all of it, so that what is read is counted.
    """
    path = None if HUNG.known() else DOORS.path()
    if path is None:
        return None
    activity = here()
    activity.wait(UNTOLD, shown(source), 0)  # for the origin's first answer too; where no descriptor comes, HTTP's answer tells
    try:
        found = _opened(path, source, reader, go_on, version, parts)
        activity.over()
        if found is not None:
            activity.tell(PROXY)
        return found
    except InvalidFdRequest:
        return None  # a header that HTTP may be able to say
    except (OSError, InvalidFdAnswer, ValueError) as error:
        COUNTS.add("door_failed")
        DOORS.failed(path, timed_out=isinstance(error, socket.timeout))
        return None
    finally:
        activity.over()


def _opened(path: str, source: Source, reader: str, go_on: Optional[GoOn], version: str, parts: bool) -> Optional[Descriptor]:
    text, headers = source.url.text(), safe_headers(source)
    began_s = time.monotonic()

    def turning() -> bool:
        """Whether the sidecar turns, asked each ``LOOK_S``; a person is told of the wait once it is long."""
        found, waited_s = turns(), time.monotonic() - began_s
        if not found:
            HUNG.found()
        elif waited_s >= DEFAULT_LIMITS.tell_s:
            say_wait(shown(source, text), reader, waited_s)
        return found

    while True:
        try:
            asking = CONNECTIONS.take(path)
        except socket.timeout:  # that nobody takes one in time is a silence as any other, so HTTP need not wait out another behind it
            turning()
            raise
        number = asking.number()
        line = encode_request(text, reader, headers, number, version, parts=parts)
        try:
            asking.ask(line, turning)
            with unforked():
                answer, file = asking.receive()
                opened = _held(asking, number, answer, file, shown(source, text), go_on) if file is not None else None
            break
        except Broken:
            continue  # until one is made anew
    CONNECTIONS.put(asking)
    INSTANCES.heard(reader, answer.instance)
    if opened is not None:
        opened.in_parts = parts
        COUNTS.by_descriptor(0 if parts else answer.size)
    return opened


def _held(asking: FdClient, number: int, answer: FdAnswer, file: int, name: str, go_on: Optional[GoOn]) -> Descriptor:
    """What came. Raises ``InvalidFdAnswer`` where the file is not as long as was said; it is closed then, and the lease ended."""
    try:
        found = os.lseek(file, 0, os.SEEK_END)  # as fstat, without an object of twenty fields
        if found != answer.size:
            raise InvalidFdAnswer(f"a descriptor of {found} bytes came for a shard of {answer.size}")
        return Descriptor(asking, number, file, answer, name, go_on)
    except BaseException:
        os.close(file)
        asking.end(number)
        raise
