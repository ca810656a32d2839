"""What the store reports to listeners. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.events import Fact

__all__ = ["CommitFailed", "FileTidied", "GarbageRemoved", "IndexCommitted", "SpaceRefused"]


@dataclass(frozen=True, slots=True)
class IndexCommitted(Fact):
    """A batch of index changes is on the disk."""


@dataclass(frozen=True, slots=True)
class CommitFailed(Fact):
    """A batch of index changes could not be written; it goes with the next one."""

    error: DiskFailed


@dataclass(frozen=True, slots=True)
class GarbageRemoved(Fact):
    """Files without an index row were removed; reported for several files at a time."""


@dataclass(frozen=True, slots=True)
class FileTidied(Fact):
    """The unclaimed ranges of a kept file were freed: it holds ``allocated_bytes`` now."""

    key: str
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class SpaceRefused(Fact):
    """The file system had no bytes, or no inode, for us (ENOSPC, EDQUOT)."""

    error: DiskFailed
