"""The end of a tar archive, found in a stream without reading the archive. Pure, stdlib only.

POSIX.1-1988 (ustar): an archive ends with two blocks of 512 zero bytes; writers pad to 10,240 with more zeros.
"""

from __future__ import annotations

__all__ = ["EndMarker"]

END_BYTES = 1024


class EndMarker:
    """Feed a body's chunks; ``seen`` tells whether what came so far ends with two zero blocks, on a block boundary."""

    def __init__(self) -> None:
        self._length = 0
        self._zeros = 0

    def feed(self, chunk: "bytes | memoryview") -> None:
        """Take the next bytes of the body."""
        data = bytes(chunk[-END_BYTES:])
        stripped = len(data.rstrip(b"\0"))
        zeros = len(data) - stripped
        self._zeros = min(END_BYTES, self._zeros + zeros) if stripped == 0 else zeros
        self._length += len(chunk)

    @property
    def seen(self) -> bool:
        return self._zeros >= END_BYTES and self._length % 512 == 0
