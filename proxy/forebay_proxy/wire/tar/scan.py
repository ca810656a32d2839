"""The regular files of an archive of which only the headers are read. Pure, stdlib only; ``read`` is the caller's.

The members that ``Walk`` finds, faster: the common header (plain, no prefix) is read without an object of its own, and so is the
extended header that only holds times, which webdataset's own writer puts before each file. All others go through ``Walk``.
"""

from __future__ import annotations

import zlib
from typing import Callable, Iterator, Tuple

from forebay_proxy.wire.tar.header import BLOCK_BYTES, EXPECTED, HEADER, TIMES, BadTar, learn
from forebay_proxy.wire.tar.members import Links, Walk

__all__ = ["scan"]

Read = Callable[[int, int], bytes]

_WINDOW_BYTES = 64 << 10  # of small members: one read for several headers
_HEADERS_BYTES = 4096  # of large ones: a page, as that is what a disk reads for one header anyway
_MOST_GLOBAL = 1 << 16  # characters: git's own archives have fifty; they are copied for each member
_PLAIN, _EXTENDED = 48, 120


def scan(read: Read, length: int) -> Iterator[Tuple[str, int, int, bool]]:
    """Name, offset and size of each regular file and link, and whether it is a link: the offset is -1 where it points to no earlier file.

    ``read(offset, n)`` gives n bytes, fewer only at the end of the ``length`` bytes.

    Raises ``BadTar`` for all but a whole, well-formed archive. Not faster than a step at a time is asked for: each ``next`` is one member.
    """
    walk, links, at, stride = Walk(read, _MOST_GLOBAL), Links(), 0, 0
    while True:
        base, limit = at, 0
        window = b""
        if not walk.globals:  # what a global header says holds for all behind it
            window = read(at, _WINDOW_BYTES if stride < _WINDOW_BYTES // 4 else _HEADERS_BYTES)
            limit = len(window)
        while at - base + BLOCK_BYTES <= limit:
            found = _plain(window, at - base, limit)
            if found is None:
                break
            name, data, size = found
            offset = base + data
            stride, at = size, (offset + size + BLOCK_BYTES - 1) & -BLOCK_BYTES
            if at > length:
                raise BadTar("cut", length, "unexpected end of data")
            links.note(name, offset, size)
            yield name, offset, size, False
        if at > base:
            continue  # behind the window: the next one begins there
        member = walk.member(at)
        if member is None:
            return
        if (member.regular and member.offset + member.size > length) or member.end > length:
            raise BadTar("cut", length, "unexpected end of data")
        if member.regular or member.target:
            yield (member.name, *(links.place(member) or (-1, 0)), not member.regular)
        stride, at = member.end - member.start, member.end


def _plain(window: bytes, at: int, limit: int) -> "Tuple[str, int, int] | None":
    """Name, place of the data in ``window``, and size, where the header at ``at`` is a common one, whole in the window."""
    data = at + BLOCK_BYTES
    field, digits, after, check, kind, prefix = HEADER.unpack_from(window, at)
    if kind == _EXTENDED and data + 2 * BLOCK_BYTES <= limit:
        times = TIMES.match(window, data, data + BLOCK_BYTES)
        if times is None or digits != b"%011o" % (times.end() - data) or not _sums_up(window[at:data], check):
            return None
        field, digits, after, check, kind, prefix = HEADER.unpack_from(window, data + BLOCK_BYTES)
        data += 2 * BLOCK_BYTES
    if kind != _PLAIN or prefix or (after and after != 32) or not _sums_up(window[data - BLOCK_BYTES : data], check):
        return None
    try:
        size = int(digits, 8)
        name = field.partition(b"\0")[0].decode("utf-8")
    except ValueError:  # base 256, or blank; another encoding
        return None
    return (name, data, size) if size >= 0 else None


def _sums_up(block: bytes, check: bytes) -> bool:
    """Whether the checksum in ``check`` is the header's; a wrong one may still be right as a sum of signed bytes."""
    total = zlib.adler32(block) & 0xFFFF
    return total == EXPECTED.get(check) or total == learn(check)
