"""What a count of samples has found, shard by shard, and the telling of it."""

from __future__ import annotations

from typing import Any

from forebay_proxy.cli.failures import Failures
from forebay_proxy.cli.output import notice
from forebay_proxy.cli.shards.warm_progress import WarmView

__all__ = ["CountTally"]

_NAMED = 3  # shards with something amiss; --json names all


class CountTally:
    """``counts`` are samples by shard, ``without`` why others have none; ``shards`` is how many there are. Each is told to ``view``."""

    def __init__(self, view: WarmView, shards: int) -> None:
        self.counts: dict[str, int] = {}
        self.without: dict[str, str] = {}
        self.amiss = 0  # shards
        self.failures = Failures()
        self.shards = shards
        self._view = view
        self._bytes = 0  # fetched for shards that are whole by now

    def __contains__(self, shard: str) -> bool:
        """Whether ``shard`` is counted, or refused for good."""
        return shard in self.counts or shard in self.without

    def progress(self, more_bytes: int = 0) -> None:
        """``more_bytes``: fetched by what is still going on."""
        self._view.progress(len(self.counts) + len(self.without), self.shards, self._bytes + more_bytes)

    def fetched(self, count_bytes: int) -> None:
        """So many bytes came, of shards that have been told."""
        self._bytes += count_bytes

    def count(self, shard: str, name: str, samples: int, amiss: str) -> None:
        """``shard``, which the sidecar calls ``name``, has so many ``samples``; ``amiss``: what is wrong with them."""
        self.counts[shard] = samples
        if amiss:
            self.amiss += 1
            if self.amiss <= _NAMED:
                notice(f"shard {name}: {amiss}")
        self._told({"event": "shard", "shard": name, "samples": samples, **({"amiss": amiss} if amiss else {})})

    def refuse(self, shard: str, name: str, why: str, cause: str | None = None, step: str = "") -> None:
        """``shard`` has no count. ``cause``: ``why`` without what is the shard's own; ``step``: what to do next."""
        self.without[shard] = why
        self.failures.add({"shard": name, "error": why, "cause": cause or why.removeprefix(f"shard {name}: "), "next_step": step})
        self._told({"event": "shard", "shard": name, "samples": None, "error": why})

    def _told(self, event: dict[str, Any]) -> None:
        self._view.event(event)
        self.progress()
