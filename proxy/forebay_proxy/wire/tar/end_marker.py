"""The end of a tar archive, found in a stream by walking its headers. Pure, stdlib only.

POSIX.1-1988 (ustar): each member is a header block of 512 bytes and its data, padded to whole blocks; an archive ends with two blocks of
zeros where a header would be. Looking for zeros alone will not do: a member may hold a thousand of them, and a body cut there would look
whole.
"""

from __future__ import annotations

import re
from typing import Optional

from forebay_proxy.wire.tar.header import BLOCK_BYTES, ZEROS, BadTar, blocks, parsed

__all__ = ["EndMarker"]

_WITHOUT_DATA = frozenset(b"123456")  # links, devices, folders, pipes: whatever their size says
_ABOUT_THE_NEXT = frozenset(b"xgXLK")  # extended headers and long names, which come as members
_PAX = frozenset(b"xX")
_LENGTH = re.compile(rb"(\d{1,20}) ")
_MOST_RECORDS = 4096  # a megabyte of the shortest held up the event loop for half a second
_SIZE_MOST_BYTES = 64  # of a record's key and value that are looked at
_PAX_MOST_BYTES = 1 << 20  # of an extended header; longer ones are skipped, and a size in them is not found


class EndMarker:
    """Feed a body's chunks; ``seen`` tells whether what came so far is a whole archive. Not a tar: never."""

    def __init__(self) -> None:
        self._block = bytearray()
        self._data_left = 0  # of the member being passed over, padding included
        self._pax: Optional[bytearray] = None  # an extended header being gathered
        self._pax_size: Optional[int] = None  # what it says of the next member
        self._more_sparse = 0  # bytes of data to pass once the extra blocks of an old GNU sparse header are over
        self._in_sparse = False
        self._zero_blocks = 0
        self._broken = False

    def feed(self, chunk: "bytes | memoryview") -> None:
        """Take the next bytes of the body."""
        view = memoryview(chunk)
        while view and not self._broken:
            view = view[self._pass_over(view) if self._data_left else self._gather(view) :]

    @property
    def seen(self) -> bool:
        return not self._broken and self._zero_blocks >= 2 and not any(self._block)

    def _pass_over(self, view: memoryview) -> int:
        taken = min(self._data_left, len(view))
        if self._pax is not None:
            self._pax += view[:taken]
        self._data_left -= taken
        if not self._data_left and self._pax is not None:
            self._pax_size = _size_in_pax(bytes(self._pax))
            self._pax = None
        return taken

    def _gather(self, view: memoryview) -> int:
        taken = min(BLOCK_BYTES - len(self._block), len(view))
        self._block += view[:taken]
        if len(self._block) == BLOCK_BYTES:
            block = bytes(self._block)
            self._block.clear()
            if self._in_sparse:
                self._sparse(block[504])
            elif block == ZEROS:
                self._zero_blocks += 1
            else:
                self._header(block)
        return taken

    def _header(self, block: bytes) -> None:
        self._zero_blocks = 0
        try:
            _, size, kind = parsed(0, block)
        except BadTar:
            size, kind = -1, 0
        if size < 0:
            self._broken = True
            return
        if kind in _ABOUT_THE_NEXT:
            if kind in _PAX and size <= _PAX_MOST_BYTES:
                self._pax = bytearray()
        else:
            size, self._pax_size = size if self._pax_size is None else self._pax_size, None
        self._data_left = 0 if kind in _WITHOUT_DATA else blocks(size)
        if kind == ord("S"):
            self._more_sparse, self._data_left = self._data_left, 0
            self._sparse(block[482])

    def _sparse(self, is_extended: int) -> None:
        self._in_sparse = bool(is_extended)
        if not is_extended:
            self._data_left = self._more_sparse


def _size_in_pax(text: bytes) -> Optional[int]:
    """The ``size`` record of an extended header ("length key=value\\n" each), which stands above the header's own; None: it has none."""
    size, at = None, 0
    for _ in range(_MOST_RECORDS):
        found = _LENGTH.match(text, at)
        if found is None or int(found[1]) <= len(found[1]) + 1:
            return size
        key, _, value = text[found.end() : min(found.end() + _SIZE_MOST_BYTES, at + int(found[1]) - 1)].partition(b"=")
        if key == b"size" and value.isdigit():
            size = int(value)
        at += int(found[1])
    return size
