"""The file of one shard version in the cache directory: whether there is one, what the ledger counts for it, what is being written."""

from __future__ import annotations

import asyncio

from forebay_proxy.store.files.shard_file import ShardFile

__all__ = ["VersionFile"]


class VersionFile:
    """A shard version on the disk. Its bytes' checksums are in ``Entry.segments``. Not thread-safe: the event loop's only."""

    __slots__ = (
        "beyond_bytes",
        "charged_bytes",
        "claimed",
        "file",
        "filed",
        "lock",
        "misplaced",
        "stored_at",
        "transient",
        "writing"
    )  # fmt: skip

    def __init__(self, *, transient: bool = False) -> None:
        """``transient``: it must not outlive this process, because nothing could recognise the version again."""
        self.transient = transient
        self.file: ShardFile | None = None  # the open one
        self.filed = False  # a file of the version exists on the disk
        self.misplaced = False  # something has the file's name that cannot be removed now
        self.lock = asyncio.Lock()  # held while the file is made or removed
        self.claimed = False  # the index has a row of the version
        self.charged_bytes = 0  # of the file: what the ledger counts for its segments
        self.beyond_bytes = 0  # of the file: what it holds beyond that
        self.writing: set[int] = set()  # segments allocated in the file, and not stored yet
        self.stored_at: dict[int, float] = {}  # segment -> monotonic seconds

    def __repr__(self) -> str:
        state = "open" if self.file is not None else "closed" if self.filed else "none"
        return f"<VersionFile {state}, {self.charged_bytes} bytes, {len(self.writing)} being written{', claimed' if self.claimed else ''}>"

    def made(self, file: ShardFile) -> None:
        """The version has a new, empty ``file``."""
        self.file, self.filed = file, True

    def removed(self) -> None:
        """There is no file any more; what was closed or never opened is gone too."""
        self.file, self.filed = None, False
        self.charged_bytes = 0
        self.writing.clear()
