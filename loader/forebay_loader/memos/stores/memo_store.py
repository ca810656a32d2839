"""What a store is: four verbs."""

from __future__ import annotations

from typing import Iterator, Optional, Protocol, Sequence, Tuple

from forebay_loader.memos.kept_value import KeptValue

__all__ = ["MemoStore", "StoreFull"]


class StoreFull(OSError):
    """There is no room for what is to be put: the disk is full, or the store has grown to its limit."""


class MemoStore(Protocol):
    """Entries by their keys. Any process may ``get`` and look at ``entries``; one at a time may ``put`` and ``drop``.

    All raise ``OSError`` where the disk fails, and what they leave is readable, whenever the process is killed.
    """

    def get(self, key: bytes) -> Optional[KeptValue]:
        """What is kept under ``key``, in arrays of its own; None without it. Raises ``EntryDamaged``."""

    def put(self, entries: Sequence[bytes]) -> None:
        """Keep packed entries. Raises ``StoreFull``; then some of them may be there."""

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget entries, those that are not there too."""

    def entries(self) -> Iterator[Tuple[bytes, int]]:
        """The key of each, and the bytes it takes on the disk, the oldest first where that is known."""

    def close(self) -> None:
        """Give back what is open."""
