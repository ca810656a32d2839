"""How a start takes a cache directory over: chosen, owned, read; from a predecessor that is just ending, and with what that has stored."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from forebay_proxy.app.shutdown import Shutdown
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import CacheRecovered
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import Shard, shown
from forebay_proxy.node import cache_location
from forebay_proxy.node.cache_location import CacheLocation, Capacity, Machine
from forebay_proxy.store.directory import DirectoryOwned
from forebay_proxy.store.store import StartReport, Store
from forebay_proxy.telemetry.access_log import AccessLog
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url

__all__ = ["NotBegun", "OwnedDirectory", "Start", "adopt", "begin_access_log", "own_directory"]

log = logging.getLogger("forebay")

# A predecessor has 20 s for its drain and 8 s to close; after that it has been ended by force, or is no predecessor.
HANDOVER_S = 30.0
HANDOVER_LOOK_S = 0.1


class NotBegun(Exception):
    """A signal asked for the end while a start waited for its predecessor: nothing was begun, and nothing went wrong."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a start is given, and each of its steps needs. ``life`` closes the parts, in the reverse of the order in which they came."""

    settings: Settings
    environ: Mapping[str, str]
    life: AsyncExitStack
    ending: Shutdown
    layout: SegmentLayout
    events: Events = field(default_factory=Events)
    clock: Callable[[], float] = time.monotonic
    instance: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class OwnedDirectory:
    """The cache directory of the settings, how much it may hold, its open store, and what the start found there."""

    place: CacheLocation
    capacity: Capacity
    store: Store
    found: StartReport

    @property
    def chosen(self) -> tuple[str, ...]:
        """What the start decided by itself, in words."""
        return *self.place.notices, *self.capacity.notices


async def own_directory(start: Start) -> OwnedDirectory:
    """Choose the directory, own and read it; ``start.life`` closes the store. Raises ``ConfigError``, ``NotBegun``."""
    settings, machine = start.settings, Machine.here(start.environ)
    place = cache_location.choose(settings, start.environ, machine)
    place = cache_location.prepare(place, settings, machine)
    store = await _open_store(place.path, start)
    start.life.push_async_callback(store.aclose)
    began_at = start.clock()
    found = await store.load()
    kept = sum(row.claimed for row in found.rows)
    start.events.emit(CacheRecovered(kept, found.segments_without_file, start.clock() - began_at))
    disk = cache_location.measure(place.path)
    if not disk.free_bytes and disk.total_bytes:
        full = f"cache directory {place.path}: the disk is full; shards pass through without being stored until there is room"
        place = replace(place, warnings=(*place.warnings, full))
    capacity = cache_location.decide_capacity(settings.cache_size, settings.free_floor, disk, container=machine.container)
    return OwnedDirectory(place, capacity, store, found)


async def _open_store(path: Path, start: Start) -> Store:
    """Own the directory; one whose owner is just ending is waited for, as warm bytes are worth some seconds."""
    until, said = start.clock() + HANDOVER_S, False
    while True:
        try:
            return await Store.open(path, who="forebay serve", events=start.events, layout=start.layout)
        except DirectoryOwned as owned:
            if not owned.ending or start.clock() > until:
                raise
            if start.ending.asked.is_set():
                raise NotBegun from None
            if not said:
                log.info("%s: waiting for it", owned)
            said = True
        await asyncio.sleep(HANDOVER_LOOK_S)


def adopt(loaded: StartReport, store: Store, resolver: VersionResolver, cache: ShardCache) -> None:
    """Take over what an earlier process stored: every claimed segment, and the ledger from what the disk says it holds."""
    for row in loaded.rows:
        try:
            shard = Shard.of(parse_origin_url(row.url))
        except InvalidShardUrl:
            store.disown(row.key, loaded.allocated[row.key])  # a scheme of an older or newer version
            continue
        if shard.name != row.url:  # a secret, as is known by now, stands in it: it leaves the disk
            store.disown(row.key, loaded.allocated[row.key])
            log.info("shard %s: its name held a query that is known as a secret now; it leaves, and is fetched anew", shown(row.url))
            continue
        entry = Entry.of_row(shard, row, store.boot_id, store.layout)
        resolver.versions.found(entry)
        cache.room.found(entry, loaded.allocated[row.key])


async def begin_access_log(start: Start, store: Store) -> None:
    """Write one where the settings name a file. Raises ``ConfigError``: it cannot be there, or cannot be written."""
    path = start.settings.access_log
    if path is None:
        return
    if path.resolve().is_relative_to(store.path.resolve()):
        step = "name a file elsewhere: what lies in the cache directory counts against --cache-size, and a log grows without a bound"
        raise ConfigError(f"--access-log {path} is in the cache directory", next_step=step)
    access_log = AccessLog(path, store.directory.hmac_key, start.events, clock=start.clock)
    await access_log.start()
    start.life.push_async_callback(access_log.aclose)
