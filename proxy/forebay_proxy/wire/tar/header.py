"""One tar header: its numbers, its checksum, its name, and what is wrong with it. Pure, stdlib only.

The checksum is a sum of 512 bytes, which takes Python 2.4 us and zlib's adler32 0.2: the lower half of that is 1 + the sum modulo 65521.
What it ends in for a right header follows from the checksum field alone, and few fields occur.
"""

from __future__ import annotations

import re
import struct
import sys
from typing import Dict, NamedTuple, Optional, Tuple

__all__ = [
    "BLOCK_BYTES", "ENCODING", "EXPECTED", "HEADER", "TIMES", "ZEROS", "BadTar", "Header", "at_start", "blocks", "decoded", "learn",
    "number", "parsed", "start_fault", "sums",
]  # fmt: skip

BLOCK_BYTES = 512
ZEROS = bytes(BLOCK_BYTES)  # two such blocks are the end marker
ENCODING = sys.getfilesystemencoding()  # tarfile.ENCODING
# name, the size's first 11 digits and what follows them, checksum, kind, first byte of the name's prefix
HEADER = struct.Struct("100s24x11sB12x8sB188xB")
# An extended header that says nothing of name or size: webdataset's own TarWriter puts one with the time before each member.
TIMES = re.compile(rb"(?:[1-9][0-9]* [acm]time=[0-9.]+\n)+(?=\0)")
EXPECTED: Dict[bytes, int] = {}  # checksum field -> the lower half of adler32 over a right header; see ``learn``
_ADLER = 65521
_KNOWN_MOST = 1 << 14


class BadTar(Exception):
    """An archive that is not whole, or not one. ``kind`` says which, ``at`` is the byte.

    ``start`` (not a tar, or empty), ``header`` (unreadable header), ``extended`` (one that an extended header or long name promised),
    ``cut`` (ends inside a member), ``no-end`` (ends where a header would be), ``after-end`` (data behind the marker), ``sparse``.
    """

    def __init__(self, kind: str, at: int, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.at = at


class Header(NamedTuple):
    """One header by itself, without what an extended one says about the same member. ``kind`` is its type flag."""

    name: str
    size: int
    kind: int


def learn(check: bytes) -> int:
    """What the lower half of adler32 over a header is if its checksum field ``check`` is right; -1: that is no number."""
    try:
        found = (number(check) - 256 + sum(check) + 1) % _ADLER  # the field counts as eight spaces
    except ValueError:
        return -1
    if len(EXPECTED) >= _KNOWN_MOST:
        EXPECTED.clear()
    EXPECTED[check] = found
    return found


def blocks(size: int) -> int:
    """``size`` rounded up to whole blocks, in bytes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def decoded(field: bytes) -> str:
    """A name as ``tarfile`` decodes it: up to the first zero, bytes that are no text kept as surrogates."""
    return field.partition(b"\0")[0].decode(ENCODING, "surrogateescape")


def number(field: bytes) -> int:
    """A header's number: octal digits, or base 256 behind a byte 0x80 (0xFF: negative). Raises ``ValueError``."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    return int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)


def sums(block: bytes) -> Tuple[int, int]:
    """Both checksums of a header: of unsigned bytes, and of signed ones, as some old writers summed them."""
    rest = block[:148] + block[156:]
    unsigned = sum(rest) + 256
    return unsigned, unsigned if rest.isascii() else unsigned - 256 * sum(byte > 127 for byte in rest)


def start_fault(beginning: bytes) -> Optional[BadTar]:
    """Why no archive begins with these bytes (one block, or all there are); None where one may.

    What a walk over its members finds, without reading on.
    """
    block = beginning[:BLOCK_BYTES]
    if block == ZEROS:
        return None
    try:
        parsed(0, block)
    except BadTar as bad:
        return at_start(bad, block)
    return None


def at_start(bad: BadTar, block: bytes) -> BadTar:
    """``bad`` of the very first ``block``: it is not that a header is bad there, it is no tar."""
    return BadTar("start", 0, str(bad) if block else "empty file")


def parsed(at: int, block: bytes) -> Header:
    """What the ``block`` at byte ``at`` says. Raises ``BadTar``, for a block of zeros too."""
    if len(block) < BLOCK_BYTES:
        raise BadTar("no-end", at + len(block), "truncated header" if block else "empty header")
    if block == ZEROS:
        raise BadTar("header", at, "end of file header")
    try:
        if number(block[148:156]) not in sums(block):
            raise BadTar("header", at, "bad checksum")
        size = number(block[124:136])
    except ValueError:
        raise BadTar("header", at, "invalid header") from None
    kind, name, prefix = block[156], decoded(block[:100]), decoded(block[345:500])
    if kind == 0 and name.endswith("/"):  # old writers' way to say folder; of the name alone, before the prefix is put in front
        kind = ord("5")
    if prefix and kind not in b"LKS":
        name = f"{prefix}/{name}"
    return Header(name, size, kind)
