"""How many bytes a memo holds, and which entries leave for a new one. Pure; one thread's only.

Training comes to each sample once a pass. So what was used in this pass or the last is wanted again, and to give it up for a newcomer,
which is wanted just as late, would win nothing; with the oldest use leaving first, as caches have it, a memo smaller than the data set
would hold what was just used and never what comes next. Whatever nobody used since the pass before the last began leaves, the oldest use
first; if that is not enough, the newcomer is not kept. A pass has begun anew when an entry is used that the pass has used already.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Dict, Iterable, List, Optional, Tuple

from forebay_loader.memos.entry import KEY_BYTES
from forebay_loader.memos.sample_name import SAMPLE_BYTES

__all__ = ["MemoRoom"]

_OF = KEY_BYTES - SAMPLE_BYTES  # the first bytes of a key: the transform's


class MemoRoom:
    """``bound_bytes``: what all entries may take together."""

    def __init__(self, bound_bytes: int, entries: Iterable[Tuple[bytes, int]] = ()) -> None:
        self.bound_bytes = bound_bytes
        self._entries: OrderedDict[bytes, Tuple[int, int]] = OrderedDict()  # key -> bytes, when it was used; the oldest use first
        self._passes: Dict[bytes, Tuple[int, int]] = {}  # by transform: when its last two passes began
        self._now = 0
        for key, size in entries:
            self._entries[key] = size, 0
        self.held_bytes = sum(size for size, _ in self._entries.values())

    def __repr__(self) -> str:
        return f"<MemoRoom {len(self._entries)} entries, {self.held_bytes} of {self.bound_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._entries)

    def excess(self) -> List[bytes]:
        """What leaves a store that is larger than it may be, as that of an earlier run with another ``size``."""
        leaving = []
        for key, (size, _) in self._entries.items():
            if self.held_bytes <= self.bound_bytes:
                break
            leaving.append(key)
            self.held_bytes -= size
        for key in leaving:
            del self._entries[key]
        return leaving

    def used(self, key: bytes) -> None:
        """A reader was given the entry."""
        found = self._entries.get(key)
        self._now += 1
        _, began = self._passes.setdefault(key[:_OF], (0, 0))
        if found is None:
            return
        if found[1] > began:
            self._passes[key[:_OF]] = began, self._now - 1
        self._entries[key] = found[0], self._now
        self._entries.move_to_end(key)

    def admit(self, key: bytes, size: int) -> Optional[List[bytes]]:
        """Who leaves, so that the entry may be kept, which counts from then on; None where it may not."""
        self._now += 1
        before, _ = self._passes.setdefault(key[:_OF], (0, 0))
        old = self._entries.get(key, (0, 0))[0]
        missing = self.held_bytes - old + size - self.bound_bytes
        leaving = self._leaving(missing, before, key) if missing > 0 else []
        if leaving is None:
            return None
        for one in leaving:
            self.forget(one)
        self.forget(key)
        self._entries[key] = size, self._now
        self.held_bytes += size
        return leaving

    def forget(self, key: bytes) -> None:
        """The entry is gone."""
        size, _ = self._entries.pop(key, (0, 0))
        self.held_bytes -= size

    def _leaving(self, missing: int, before: int, newcomer: bytes) -> Optional[List[bytes]]:
        leaving: List[bytes] = []
        for key, (size, used) in self._entries.items():
            if missing <= 0:
                return leaving
            if key == newcomer:
                continue
            asked = key[:_OF] in self._passes  # of transforms that nobody asks for, all may go
            if used > before or (used == before == 0 and asked):
                break
            leaving.append(key)
            missing -= size
        return leaving if missing <= 0 else None
