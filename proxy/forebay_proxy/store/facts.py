"""What the store reports beside its answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.events import Fact

__all__ = ["CommitFailed", "FileTidied", "GarbageRemoved", "IndexCommitted", "SpaceRefused"]


@dataclass(frozen=True, slots=True)
class IndexCommitted(Fact):
    """A batch of changes of the index is on the disk."""


@dataclass(frozen=True, slots=True)
class CommitFailed(Fact):
    """A batch of changes could not be written; it goes with the next one."""

    error: DiskFailed


@dataclass(frozen=True, slots=True)
class GarbageRemoved(Fact):
    """Files that nothing claims have left; told some of them at a time."""


@dataclass(frozen=True, slots=True)
class FileTidied(Fact):
    """The ranges of a kept file that nothing claims are gone: it holds ``allocated_bytes`` now."""

    key: str
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class SpaceRefused(Fact):
    """The file system had no bytes, or no inode, for us (ENOSPC, EDQUOT)."""

    error: DiskFailed
