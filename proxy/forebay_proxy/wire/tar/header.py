"""One tar header: its numbers, its checksum and its name. Pure, stdlib only.

The checksum is a sum of 512 bytes, which takes Python 2.4 us and zlib's adler32 0.2: the lower half of that is 1 + the sum modulo 65521.
What it ends in for a right header follows from the checksum field alone, and few fields occur.
"""

from __future__ import annotations

import re
import struct
import sys
from typing import Dict, Tuple

__all__ = ["BLOCK_BYTES", "ENCODING", "EXPECTED", "HEADER", "TIMES", "blocks", "decoded", "learn", "number", "sums"]

BLOCK_BYTES = 512
ENCODING = sys.getfilesystemencoding()  # tarfile.ENCODING
# name, the size's first 11 digits and what follows them, checksum, kind, first byte of the name's prefix
HEADER = struct.Struct("100s24x11sB12x8sB188xB")
# An extended header that says nothing of name or size: webdataset's own TarWriter puts one with the time before each member.
TIMES = re.compile(rb"(?:[1-9][0-9]* [acm]time=[0-9.]+\n)+(?=\0)")
EXPECTED: Dict[bytes, int] = {}  # checksum field -> the lower half of adler32 over a right header; see ``learn``
_ADLER = 65521
_KNOWN_MOST = 1 << 14


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
