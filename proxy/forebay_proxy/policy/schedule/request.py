"""What the scheduler asks for, and what it must know of the cache to ask. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import ReaderPlan

__all__ = ["CacheView", "PrefetchRequest"]


class CacheView(Protocol):
    """What must be known of the cache; ``layout``: how its shards are cut."""

    layout: SegmentLayout

    def capacity(self) -> int:
        """Bytes the cache may hold."""
        ...

    def length(self, name: str) -> int | None:
        """Bytes of the version in use; None: it must be opened first."""
        ...

    def has(self, name: str, index: int) -> bool:
        """Whether the segment is stored or in the air."""
        ...

    def fresh(self, name: str, job: str) -> bool:
        """Whether ``job`` may read what is stored without comparing it with the origin first."""
        ...

    def may_ask(self, origin: str) -> bool:
        """Whether more may be asked of ``origin`` ahead of need now."""
        ...


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """What to fetch: a segment, or with ``index`` None a shard's opening (where it is stored: its comparison with the origin)."""

    plan: ReaderPlan
    shard: Shard
    index: int | None
    need_at: float  # by the reader's own rate, as all that is stored is reckoned
    size: int  # bytes, as far as known
    due_at: float = 0.0  # by the rate its job's readers share: what is fetched first
