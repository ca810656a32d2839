"""How a start takes a cache directory over: chosen, owned, read; from a predecessor that is just ending, and with what that has stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from forebay_proxy.app.shutdown import Shutdown
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import Shard, shown
from forebay_proxy.node import cache_location
from forebay_proxy.node.cache_location import CacheLocation, Capacity, Machine
from forebay_proxy.store.lock import DirectoryOwned
from forebay_proxy.store.store import StartReport, Store
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["NotBegun", "adopt", "own_directory"]

log = logging.getLogger("forebay")

# A predecessor has 20 s for its drain and 8 s to close; after that it has been ended by force, or is no predecessor.
HANDOVER_S = 30.0
HANDOVER_LOOK_S = 0.1


class NotBegun(Exception):
    """A signal asked for the end while a start waited for its predecessor: nothing was begun, and nothing went wrong."""


async def own_directory(
    settings: Settings,
    environ: Mapping[str, str],
    life: AsyncExitStack,
    ending: Shutdown,
    clock: Callable[[], float],
    events: Events,
    layout: SegmentLayout,
) -> tuple[CacheLocation, Capacity, Store, StartReport]:
    """(the cache directory of the settings, its capacity, its open store, what the start found there); ``life`` closes the store.

    Raises ``ConfigError``, ``NotBegun``.
    """
    machine = Machine.here(environ)
    place = cache_location.choose(settings, environ, machine)
    place = cache_location.prepare(place, settings, machine)
    store = await _open_store(place.path, ending, clock, events, layout)
    life.push_async_callback(store.aclose)
    loaded = await store.load()
    disk = cache_location.measure(place.path)
    capacity = cache_location.decide_capacity(settings.cache_size, settings.free_floor, disk, container=machine.container)
    return place, capacity, store, loaded


async def _open_store(path: Path, ending: Shutdown, clock: Callable[[], float], events: Events, layout: SegmentLayout) -> Store:
    """Own the directory; one whose owner is just ending is waited for, as warm bytes are worth some seconds."""
    until, said = clock() + HANDOVER_S, False
    while True:
        try:
            return await Store.open(path, who="forebay serve", events=events, layout=layout)
        except DirectoryOwned as owned:
            if not owned.ending or clock() > until:
                raise
            if ending.asked.is_set():
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
        cache.readers.optimum.found(entry.key, entry.segments.stored())
