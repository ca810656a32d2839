"""The stores that are open in this process: one object a folder, opened when first used, and anew in a forked child."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any, Dict, List, Optional

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.kept_folders import note_folder
from forebay_loader.base.notices import warn_node
from forebay_loader.memos.entry import EntryDamaged, MemoStore, packed
from forebay_loader.memos.kept_value import KeptValue
from forebay_loader.memos.memo_writer import MemoWriter
from forebay_loader.memos.stores.choice import opened_store
from forebay_loader.memos.stores.held import held_bytes

__all__ = ["MemoPlace", "OpenedMemo"]

_PATIENCE_S = 3.0  # a DataLoader waits 5 s for its workers to end
_IF_WELL = "If its disk has room and works, remove the folder"


@dataclass(frozen=True)
class MemoPlace:
    """Which store lies where, and how many bytes it may take. Pickles. ``folder``: its real path."""

    store: str
    folder: str
    size_bytes: int

    def __post_init__(self) -> None:
        note_folder("memo", self.folder, self.size_bytes, held_bytes)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def opened(self) -> "OpenedMemo":
        """The one of this process. Raises ``MemoError`` where the folder is of something else."""
        found = _OPEN.get(self.folder)
        if found is None:
            with _OPENING[0]:
                found = _OPEN.get(self.folder) or _OPEN.setdefault(self.folder, OpenedMemo(self))
        return found


class OpenedMemo:
    """Answers at once: what cannot be read is made again, and what cannot be written now is not kept."""

    def __init__(self, place: MemoPlace) -> None:
        self._place = place
        self._reads = True
        try:
            self._store: MemoStore = opened_store(place.store, place.folder, place.size_bytes)
        except OSError as error:
            self._reads = False
            COUNTS.add("memo_off")
            warn_node(
                f"forebay: the memo in {place.folder} cannot be opened ({error}): all is made again, and nothing kept. Training goes on. "
                f"{_IF_WELL}"
            )
        self.writer = MemoWriter(place.folder, self._store if self._reads else None)
        Finalize(self, self.writer.end, (_PATIENCE_S,), exitpriority=10)  # a worker of torch's ends without atexit

    def __repr__(self) -> str:
        return f"<OpenedMemo {self._place}>"

    def get(self, key: bytes) -> Optional[KeptValue]:
        """What is kept; None for what is not, or is damaged."""
        if not self._reads:
            return None
        try:
            return self._store.get(key)
        except EntryDamaged:
            COUNTS.add("memo_damaged")
            self.writer.forget(key)
            return None
        except OSError as error:
            self._reads = False
            COUNTS.add("memo_off")
            warn_node(
                f"forebay: the memo in {self._place.folder} cannot be read ({error}), so all is made again. Training goes on. {_IF_WELL}"
            )
            return None

    def keep(self, key: bytes, kept: KeptValue) -> None:
        """Have it written, unless there is no room in the queue. Copies, for the values are the trainer's from now on."""
        fits = self.writer.has_room(len(kept.text) + sum(one.nbytes for one in kept.arrays))  # else a copy for nothing
        if not fits or not self.writer.keep(packed(key, kept)):
            COUNTS.add("memo_dropped")


_OPEN: Dict[str, OpenedMemo] = {}
_PARENTS: List[OpenedMemo] = []  # kept alive: what is theirs must not be closed here
_OPENING = [threading.Lock()]  # another one in a child: a thread that is not there may hold it


def _forked() -> None:
    _PARENTS.extend(_OPEN.values())
    _OPEN.clear()
    _OPENING[0] = threading.Lock()


os.register_at_fork(after_in_child=_forked)
