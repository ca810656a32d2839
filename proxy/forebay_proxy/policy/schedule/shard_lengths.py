"""How long the shards of each job are, by those that were opened ahead lately. Pure."""

from __future__ import annotations

__all__ = ["ShardLengths"]

LENGTH_WEIGHT = 0.3  # of the newest shard's length in the running mean


class ShardLengths:
    """A running mean per job. Not thread-safe."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<ShardLengths of {len(self._means)} jobs>"

    def learn(self, job: str, length: int) -> None:
        """A shard that ``job`` will read has ``length`` bytes."""
        before = self._means.get(job, length)
        self._means[job] = before + LENGTH_WEIGHT * (length - before)

    def expected(self, job: str, otherwise: int) -> int:
        """Bytes of the next shard of ``job``; ``otherwise`` where none of its shards is known."""
        return int(self._means.get(job, otherwise))

    def __contains__(self, job: str) -> bool:
        return job in self._means

    def clear(self) -> None:
        """Nobody reads."""
        self._means.clear()
