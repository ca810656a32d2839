"""The order of a clip's frames among the keys of a table: that of the numbers in their names, with leading zeros or without."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Tuple

from forebay_loader.videos.errors import CorruptVideo

__all__ = ["in_order"]

_NUMBERS = re.compile(rb"([0-9]+)")
_SUFFIX = re.compile(rb"\.[A-Za-z][A-Za-z0-9]*$")

Name = Tuple[object, ...]


def in_order(keys: Iterable[bytes], prefix: bytes) -> List[bytes]:
    """``keys``, which begin with ``prefix``, as their frames follow each other; those with another ``/`` behind it are another clip's.

    A run of digits is a whole number, so ``9`` comes before ``10``, and ``0009`` is 9; the rest is compared as bytes; a suffix such as
    ``.jpg`` does not count. Raises ``CorruptVideo`` for two keys of the same frame: nobody could say which one it is.
    """
    found: Dict[Name, bytes] = {}
    for key in keys:
        name = key[len(prefix) :]
        if b"/" in name:
            continue
        other = found.setdefault(_name(name), key)
        if other is not key:
            raise CorruptVideo(f"keys {_shown(other)} and {_shown(key)} are of the same frame")
    return [found[name] for name in sorted(found)]  # text and number in turn, so like is compared with like


def _name(name: bytes) -> Name:
    parts = _NUMBERS.split(_SUFFIX.sub(b"", name))
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))
