"""The bytes of one body on their way into a file: where they go, their sum, and how rarely the kernel may wake for them."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress

import xxhash

from forebay_proxy.movers.frames import Land

__all__ = ["LOW_BYTES", "Landing"]

# Wake only when so much has come: a tenth of the processor time (measured). What is less is fetched by the sweep of ``process``.
LOW_BYTES = 128 * 1024
RECORD_BYTES = 32 * 1024  # of a TLS record, which may lie in the library while the kernel says that nothing has come


class Landing:
    """``file`` is its own. ``moved`` of the bytes that were ``asked`` for are there."""

    def __init__(self, asked: Land, file: int) -> None:
        self.asked = asked
        self.file = file
        self.moved = 0
        self.hasher = xxhash.xxh3_64()
        self._low = 1

    def __repr__(self) -> str:
        return f"<Landing {self.moved}/{self.asked.count} bytes>"

    @property
    def left(self) -> int:
        return self.asked.count - self.moved

    def put(self, data: memoryview) -> None:
        """Write ``data`` at its place and sum it up. Raises ``OSError``, and then it counts for nothing."""
        written = 0
        while written < len(data):
            written += os.pwrite(self.file, data[written:], self.asked.offset + self.moved + written)
        self.hasher.update(data)
        self.moved += len(data)

    def wake_rarely(self, origin: socket.socket) -> None:
        """Have the kernel wake for ``LOW_BYTES``, or for what is left: all of it, where none of that can lie in the TLS library."""
        low = LOW_BYTES
        if self.left < LOW_BYTES + RECORD_BYTES:
            low = 1 if isinstance(origin, ssl.SSLSocket) else min(LOW_BYTES, max(1, self.left))
        self._wake_for(origin, low)

    def _wake_for(self, origin: socket.socket, low: int) -> None:
        if low != self._low:
            self._low = low
            with suppress(OSError):  # the connection is gone: its end wakes in any case
                origin.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)

    def close(self, origin: socket.socket) -> None:
        """Close the file; ``origin`` wakes for every byte again."""
        os.close(self.file)
        self._wake_for(origin, 1)
