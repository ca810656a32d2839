"""Shards that are being opened or compared ahead of need, and those that cannot be: no cursor waits for one. Pure."""

from __future__ import annotations

from forebay_proxy.policy.schedule.queues.revalidations import RevalidationQueue

__all__ = ["PendingShards"]


class PendingShards:
    """By shard name. Not thread-safe: the event loop's only."""

    def __init__(self, revalidations: RevalidationQueue) -> None:
        self.opening: set[str] = set()
        self.failed: set[str] = set()
        self.revalidations = revalidations

    def __repr__(self) -> str:
        return f"<PendingShards {len(self.opening)} being opened, {len(self.failed)} cannot be>"

    def ended(self, name: str) -> None:
        """Its opening, or its comparison with the origin, is over."""
        self.opening.discard(name)
        self.revalidations.ended(name)

    def fail(self, name: str) -> None:
        """It cannot be opened, or fetched, ahead of need."""
        self.ended(name)
        self.failed.add(name)

    def forgive(self, name: str) -> None:
        """It may be tried again."""
        self.failed.discard(name)
