"""Failures of many shards, told so that a person reads them: each cause once as it happens, and at the end how many shards it had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_proxy.cli.output import notice

__all__ = ["Failures"]

_NAMED = 3  # shards of each cause; --json names all


class Failures:
    """Equal causes are one failure, whichever shards have it."""

    def __init__(self) -> None:
        self._shards: dict[tuple[str, str], list[str]] = {}  # (cause, next step) -> shards

    def __len__(self) -> int:
        return sum(map(len, self._shards.values()))

    @property
    def alike(self) -> int:
        """How many shards the most frequent cause has."""
        return max(map(len, self._shards.values()), default=0)

    def add(self, event: Mapping[str, Any]) -> None:
        """An event of a shard that failed; the first one of its cause is told now."""
        shard, error, step = str(event["shard"]), str(event.get("error", "")), str(event.get("next_step", ""))
        key = str(event.get("cause", error)), step
        same = self._shards.setdefault(key, [])
        same.append(shard)
        if len(same) == 1:
            line = error if shard in error else f"{shard}: {error}"  # the sidecar's own messages begin with the shard
            notice(f"failed: {line}{f'; {step}' if step else ''}")

    def summary(self) -> None:
        """The end: of each cause that more than one shard had, how many and the first of them."""
        for (cause, step), shards in self._shards.items():
            if len(shards) > 1:
                more = f" and {len(shards) - _NAMED} more (--json names each)" if len(shards) > _NAMED else ""
                notice(f"{len(shards)} shards failed alike ({', '.join(shards[:_NAMED])}{more}): {cause}{f'; {step}' if step else ''}")
