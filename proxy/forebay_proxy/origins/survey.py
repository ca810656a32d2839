"""How long shards are, asked of their origins as the sidecar would ask: same settings, same guard, same credentials. No byte is fetched."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError, causes
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.registry import Origins

__all__ = ["SAMPLE", "Survey", "origins_for", "sample_of", "survey", "surveyed"]

# Shards of one set are written by one program with one target size: the mean of 32 is right to a few percent where sizes vary by a fifth.
SAMPLE = 32
AT_ONCE = 16  # small requests in the air: what an origin is asked before anything is known of it


@dataclass(frozen=True, slots=True)
class Survey:
    """``lengths`` of the shards that were asked for, by name; ``asked`` of ``total``."""

    lengths: Mapping[str, int]
    asked: int
    total: int

    @property
    def mean_bytes(self) -> int:
        return sum(self.lengths.values()) // max(1, len(self.lengths))

    @property
    def dataset_bytes(self) -> int:
        """Of all shards, as far as the sample tells."""
        return sum(self.lengths.values()) * self.total // max(1, self.asked)


def sample_of(shards: Sequence[Shard], count: int) -> list[Shard]:
    """``count`` of them, evenly spread: the last shard of a set is often a short one, and should weigh no more than it does."""
    if count >= len(shards):
        return list(shards)
    step = len(shards) / count
    return [shards[int((number + 0.5) * step)] for number in range(count)]


def origins_for(settings: Settings, environ: Mapping[str, str]) -> Origins:
    """All origins as a sidecar with ``settings`` would ask them; the caller's to close."""
    return Origins.of(settings, environ, Events(), Egress.of(environ, secrets.token_hex(8)))


def survey(shards: Sequence[Shard], settings: Settings, count: int = SAMPLE, environ: Mapping[str, str] = os.environ) -> Survey:
    """Ask for ``count`` of ``shards``. Raises ``ForebayError`` for the first that cannot be had, or tells no length."""
    return asyncio.run(surveyed(shards, settings, count, environ))


async def surveyed(shards: Sequence[Shard], settings: Settings, count: int, environ: Mapping[str, str]) -> Survey:
    """``survey``, for who has a loop already."""
    origins = origins_for(settings, environ)
    asked = sample_of(shards, count)
    turn, lengths = asyncio.Semaphore(AT_ONCE), dict[str, int]()

    async def ask(shard: Shard) -> None:
        async with turn:
            length = (await origins.by_scheme[shard.url.scheme].head(shard)).length
        if length is None:
            raise ConfigError(f"{shard.name}: its origin tells no length", next_step="give --shard-size")
        lengths[shard.name] = length

    try:
        async with asyncio.TaskGroup() as group:
            for shard in asked:
                group.create_task(ask(shard), name="length")
    except ExceptionGroup as errors:
        raise causes(errors)[0] from None
    finally:
        await origins.aclose()
    return Survey(lengths, len(asked), len(shards))
