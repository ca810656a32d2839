"""What a store is: three verbs."""

from __future__ import annotations

from typing import Optional, Protocol, Sequence

from forebay_loader.memos.kept_value import KeptValue

__all__ = ["MemoStore"]


class MemoStore(Protocol):
    """Entries by their keys, for any number of processes at once; ``put`` and ``drop`` of one process are called by one thread.

    All raise ``OSError`` where the disk fails, and what they leave is readable, whenever the process is killed.
    """

    def get(self, key: bytes) -> Optional[KeptValue]:
        """What is kept under ``key``, in arrays of its own; None without it. Raises ``EntryDamaged``."""

    def put(self, entries: Sequence[bytes]) -> None:
        """Keep packed entries. Raises ``StoreFull``; then some of them may be there."""

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget entries, those that are not there too."""

    def close(self) -> None:
        """Give back what is open."""
