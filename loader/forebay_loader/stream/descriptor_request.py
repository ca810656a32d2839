"""Asks the sidecar for a shard as a file descriptor, over its Unix socket. If that fails, the shard comes over HTTP.

No failure here is an error: there may be no socket, another mount or pid namespace, an old sidecar, or no descriptors left.
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
    """Return the shard as an open file if the sidecar has all of it; None to read it over HTTP. ``reader`` is ``job/rank/worker/opener``.

    ``go_on`` returns a stream if the file becomes unreadable; without it, reading then raises ``OSError``. ``version`` is the wanted ETag:
    the sidecar does not ask the origin about it. If the sidecar has nothing of that version, the shard may be of another one. ``parts``:
    only samples of the shard are read, so the bytes are counted when they are read.
    """
    path = None if HUNG.known() else DOORS.path()
    if path is None:
        return None
    activity = here()
    activity.wait(UNTOLD, shown(source), 0)  # the sidecar may wait for the origin; without a descriptor, HTTP tells the cause
    try:
        found = _opened(path, source, reader, go_on, version, parts)
        activity.over()
        if found is not None:
            activity.tell(PROXY)
        return found
    except InvalidFdRequest:
        return None  # a header that HTTP may be able to send
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
        """Whether the sidecar is alive; called every ``LOOK_S``. Logs the wait when it is long."""
        found, waited_s = turns(), time.monotonic() - began_s
        if not found:
            HUNG.found()
        elif waited_s >= DEFAULT_LIMITS.tell_s:
            say_wait(shown(source, text), reader, waited_s)
        return found

    while True:
        try:
            asking = CONNECTIONS.take(path)
        except socket.timeout:  # the sidecar accepted no connection in time: it may hang, and HTTP need not wait as long again
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
            continue  # the pool's connections were broken; try the next, at last a new one
    CONNECTIONS.put(asking)
    INSTANCES.heard(reader, answer.instance)
    if opened is not None:
        opened.in_parts = parts
        COUNTS.by_descriptor(0 if parts else answer.size)
    return opened


def _held(asking: FdClient, number: int, answer: FdAnswer, file: int, name: str, go_on: Optional[GoOn]) -> Descriptor:
    """Return the shard. If the file has the wrong length, close it, end the lease, and raise ``InvalidFdAnswer``."""
    try:
        found = os.lseek(file, 0, os.SEEK_END)  # cheaper than fstat, which makes an object of twenty fields
        if found != answer.size:
            raise InvalidFdAnswer(f"a descriptor of {found} bytes came for a shard of {answer.size}")
        return Descriptor(asking, number, file, answer, name, go_on)
    except BaseException:
        os.close(file)
        asking.end(number)
        raise
