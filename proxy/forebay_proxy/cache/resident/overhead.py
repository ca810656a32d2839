"""What the cache directory holds beyond stored segments: index, lock, directories, and the file system's own blocks of shard files.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from typing import Any

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.events import Fact
from forebay_proxy.policy.eviction.ledger import Ledger
from forebay_proxy.store.store import Store

__all__ = ["Overhead"]


class Overhead:
    """Tells the ledger. The store measures index and folders in the index's thread, after each commit: a disk may hang."""

    def __init__(self, ledger: Ledger[Any], store: Store) -> None:
        self._ledger = ledger
        self._store = store
        self._beyond_bytes = 0  # of all files together

    def __repr__(self) -> str:
        return f"<Overhead {self._ledger.overhead_bytes} bytes, {self._beyond_bytes} of them in shard files>"

    def weigh(self, entry: Entry, allocated_bytes: int) -> None:
        """``entry``'s file holds ``allocated_bytes``: beyond its segments there are blocks of the file system's own tree, and what could
        not be punched.
        """
        beyond = max(0, allocated_bytes - entry.stored.charged_bytes)
        self._beyond_bytes += beyond - entry.stored.beyond_bytes
        entry.stored.beyond_bytes = beyond

    def measure(self, _: Fact | None = None) -> None:
        """Tell the ledger what index, lock and directories held after the last commit, and what files hold beyond their segments."""
        self._ledger.measured_overhead(self._store.overhead_bytes + self._beyond_bytes, self._store.sweeping.garbage_bytes)
