"""Whole numbers as a text: thousands of references to samples in a state of JSON values, at 5.3 bytes each."""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from typing import Any, Iterable

__all__ = ["NUMBER_BYTES", "packed", "unpacked"]

NUMBER_BYTES = 4
MOST = 2**31 - 1


def packed(numbers: Iterable[int]) -> str:
    """The base64 text of ``numbers`` as little-endian int32. Raises ``ValueError`` for one that is too large."""
    try:
        held = array("i", numbers)
    except OverflowError:
        raise ValueError(f"a state counts samples and shards up to {MOST:,} in each worker's pass, and this one counts further") from None
    return b64encode(_little(held).tobytes()).decode("ascii")


def unpacked(text: Any, what: str) -> array[int]:
    """The numbers that ``packed`` made ``text`` of. Raises ``ValueError`` that names ``what`` for any other value."""
    held = array("i")
    try:
        held.frombytes(b64decode(text.encode("ascii"), validate=True))
    except (AttributeError, ValueError):  # UnicodeEncodeError and binascii.Error are ValueErrors; frombytes raises one for half a number
        raise ValueError(f"the state is damaged: its {what!r} holds no base64 text of int32 numbers but {_shown(text)}") from None
    return _little(held)


def _little(held: array[int]) -> array[int]:
    if sys.byteorder == "big":
        held.byteswap()
    return held


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
