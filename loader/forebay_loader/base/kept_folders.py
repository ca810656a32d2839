"""In which folders this process and its workers keep derived results, and how much lies there: the sidecar is told."""

from __future__ import annotations

import os
from typing import Callable, Dict, Tuple

from forebay_proxy.wire.protocol.meter import MAX_FOLDERS

__all__ = ["folders_now", "note_folder"]

_NAME = 32
_KNOWN: Dict[Tuple[str, str], Tuple[int, Callable[[str], int]]] = {}  # by kind and path: its limit, and what measures it


def note_folder(kind: str, path: str, limit_bytes: int, held: Callable[[str], int]) -> None:
    """``kind``: one of ``DERIVED``. ``held(path)``: the bytes on the disk; it is asked every few seconds, and may raise ``OSError``."""
    _KNOWN[kind, path] = limit_bytes, held


def folders_now() -> Dict[str, Dict[str, Tuple[int, int]]]:
    """Bytes and limit of each folder that is there, by kind and name, as the sidecar is told them. No path is in a name."""
    found: Dict[str, Dict[str, Tuple[int, int]]] = {}
    for (kind, path), (limit, held) in list(_KNOWN.items()):
        of_kind = found.get(kind, {})
        try:
            state = os.stat(path)
            size = held(path)
        except OSError:  # it is not there yet; of one that fails the cache itself warns
            continue
        if len(of_kind) < MAX_FOLDERS:
            name = "".join(one if one.isprintable() else "?" for one in os.path.basename(path)[:_NAME])
            found[kind] = {**of_kind, f"{name}@{state.st_dev:x}.{state.st_ino:x}": (size, limit)}
    return found
