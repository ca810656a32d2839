"""Which sample a file of a tar belongs to, and as what: webdataset's rule. Pure, stdlib only.

The reader of samples and the index of samples share it, so that both count and name alike.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

__all__ = ["RESERVED", "is_meta", "split_name"]

RESERVED = frozenset(("__key__", "__url__", "__local_path__", "__bad__"))  # what a sample says of itself; as suffixes they collide
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # webdataset's base_plus_ext
_META = re.compile(r"__[^/]*__($|/)")  # members that are about the shard


def split_name(name: str) -> Tuple[Optional[str], str]:
    """``base_plus_ext`` and lower case: a member's key and suffix; no key where it belongs to no sample."""
    found = _NAME.match(name)
    return (found[1], found[2].lower()) if found else (None, "")


def is_meta(name: str) -> bool:
    """Whether the member is about the shard, and left out."""
    return ("/" not in name and name.startswith("__") and name.endswith("__")) or _META.match(name) is not None
