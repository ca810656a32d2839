"""Asks origins for the digests of whole shards, where they name digests only when they are asked: once a version, and not for ever.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from forebay_proxy.cache.resident.digest_state import DigestState
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import ShardError
from forebay_proxy.core.shard import Shard
from forebay_proxy.core.tasks import BackgroundTasks

__all__ = ["AskableOrigins", "DigestQuestions"]

log = logging.getLogger("forebay")

# Answers in a row without a digest after which an origin is asked no more: it keeps none (Ceph, older uploads), and each question is a
# request. A bucket that mixes both goes on being asked, as one answer with a digest begins the row anew.
SILENT_AFTER = 4
ORIGINS_MOST = 1024  # remembered; more only when clients make up buckets


class AskableOrigins(Protocol):
    """Can ask an origin for the digests of a version."""

    @property
    def asked_schemes(self) -> frozenset[str]:
        """Of the origins that name digests only when they are asked for them."""
        ...

    async def digests(self, shard: Shard, entry: Entry) -> tuple[Digest, ...]: ...


class DigestQuestions:
    """The questions in the air, and the origins that have no answers."""

    def __init__(
        self,
        origins: AskableOrigins,
        room: SpaceManager,
        tasks: BackgroundTasks,
        offered: Callable[[Entry, tuple[Digest, ...]], None],
        *,
        enabled: bool,
    ) -> None:
        """``offered`` is told each answer, without digests too."""
        self.schemes = origins.asked_schemes if enabled else frozenset[str]()
        self._origins = origins
        self._room = room
        self._tasks = tasks
        self._offered = offered
        self._asks: set[asyncio.Task[object]] = set()
        self._silent: dict[str, int] = {}  # by origin: answers in a row without a digest

    def __repr__(self) -> str:
        return f"<DigestQuestions {len(self._asks)} in the air, {len(self._silent)} origins silent>"

    def begun(self, entry: Entry, shard: Shard) -> None:
        """A fetch for ``entry`` begins, whose origin is one of ``schemes``: it is asked, once a version."""
        trust = entry.trust
        if trust.digest_state is not None or trust.no_digest or not entry.version.identity:
            return
        if self._silent.get(entry.origin, 0) < SILENT_AFTER:
            trust.digest_state = DigestState(None)
            self._tasks.spawn(self._ask(entry, trust.digest_state, shard), "digest")

    async def _ask(self, entry: Entry, digest_state: DigestState, shard: Shard) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._asks.add(task)
        try:
            offered = await self._origins.digests(shard, entry)
            self._heard(entry.origin, offered)
            self._offered(entry, offered)
        except ShardError as error:
            log.info("shard %s: its digest could not be asked for (%s)", entry.name, error.cause)
        finally:
            self._asks.discard(task)
            if digest_state.expected is None and entry.trust.digest_state is digest_state:
                entry.trust.digest_state, entry.trust.no_digest = None, True
                self._room.claim(entry)
            digest_state.changed.send()

    def _heard(self, origin: str, offered: tuple[Digest, ...]) -> None:
        before = self._silent.pop(origin, 0)
        if not offered:
            if len(self._silent) >= ORIGINS_MOST:
                self._silent.clear()
            self._silent[origin] = before + 1

    def stop(self) -> None:
        """Shutdown: no more is asked, and no answer waited for."""
        self.schemes = frozenset()
        for task in self._asks:
            task.cancel()
