"""The sample index of a shard, client side: how many samples, and each of them by its number.

The sidecar makes it of each complete, plain tar (``forebay index`` has that done ahead) and keeps it when the shard's bytes have left. A
process keeps those it has read, by shard and version, up to ``KEPT_BYTES``. What has no index (gzip, a shard that is not all here yet, no
sidecar) is told by ``None`` in ``counts_of`` and ``index_of``, and by an exception where samples are asked for by number.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Dict, Optional, Sequence

from forebay_loader.base.errors import ProxyUnreachable, ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.stream.range_reads import asked, patiently
from forebay_loader.stream.shard_request import VERSION, explain, shown
from forebay_loader.stream.webdataset_openers import source_of
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.hung_sidecar import Bearing
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.tar.sample_index import MAX_INDEX_BYTES, InvalidIndex, SampleIndex, decode

__all__ = ["INDEXES", "Indexed", "counts_of", "forget", "index_of", "needed_index", "source_in"]

KEPT_BYTES = 64 << 20  # each worker has its own: the shards of a few epochs of small ones, and no burden to a node with 64 workers
WITHOUT_S = 60.0  # before a shard without an index is asked about again by who can do without
MOST_WITHOUT = 4096
PREFIX = "/v1/index"


@dataclass(frozen=True)
class Indexed:
    """An index, and the ETag of the version that it is of."""

    index: SampleIndex
    etag: str


class Indexes:
    """Those this process has read, the longest unused forgotten first."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, "tuple[Indexed, int]"] = OrderedDict()
        self._bytes = 0
        self._without: Dict[str, float] = {}

    def renew_lock(self) -> None:
        self._lock = threading.Lock()  # after a fork the old one may be held by a thread that is not here

    def get(self, source: Source) -> Optional[Indexed]:
        with self._lock:
            found = self._kept.get(_name(source))
            if found is not None:
                self._kept.move_to_end(_name(source))
            return found[0] if found else None

    def without(self, source: Source, etag: str) -> bool:
        """Whether that version was without an index a short while ago."""
        return self._without.get(_name(source) + etag, 0.0) > time.monotonic()

    def note_without(self, source: Source, etag: str) -> None:
        if len(self._without) >= MOST_WITHOUT:
            self._without.clear()
        self._without[_name(source) + etag] = time.monotonic() + WITHOUT_S

    def put(self, source: Source, indexed: Indexed, size: int) -> None:
        with self._lock:
            _, before = self._kept.pop(_name(source), (None, 0))
            self._kept[_name(source)] = indexed, size
            self._bytes += size - before
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]


INDEXES = Indexes()
forget = INDEXES.forget
os.register_at_fork(after_in_child=INDEXES.renew_lock)


def counts_of(urls: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> "Optional[list[int]]":
    """How many samples each shard has; None as soon as one is not known. No shard is fetched for it, and no index comes over."""
    known: Dict[str, int] = {}
    for url in urls:
        if url not in known:
            count = _count(url, limits)
            if count is None:
                return None
            known[url] = count
    return [known[url] for url in urls]


def source_in(url: str) -> Optional[Source]:
    """The shard that ``url`` names for the sidecar; None where only webdataset knows. Raises ``InvalidShardUrl``.

    A ``file:`` URL too, which a pipeline reads by itself: its index comes from the sidecar, if that may read the file.
    """
    return parse_source(url) if url.startswith("file:") else source_of(url)


def index_of(source: Source, etag: str = "", limits: Limits = DEFAULT_LIMITS, *, only_kept: bool = False) -> Optional[Indexed]:
    """The index of the version ``etag`` of a shard ("": of the one it has now); None where there is none.

    ``only_kept``: also None where the sidecar would have to make it now; it makes it soon.
    """
    kept = INDEXES.get(source)
    if kept is not None and etag and kept.etag == etag:
        return kept
    if only_kept and INDEXES.without(source, etag):
        return None
    try:
        found = _fetched(source, kept, limits, etag, only_kept=only_kept)
    except (Unanswered, ShardReadError, InvalidIndex):
        INDEXES.note_without(source, etag)
        return None
    return found if not etag or found.etag == etag else None


def needed_index(source: Source, limits: Limits = DEFAULT_LIMITS, version: str = "") -> Indexed:
    """The index of the version that the shard has now, or of ``version`` (an ETag) while the sidecar has that. Raises ``ShardReadError``
    with the reason where there is none."""
    kept = INDEXES.get(source)
    try:
        return patiently(shown(source), limits, 0.0, lambda bearing: _fetched(source, kept, limits, version, bearing=bearing))
    except Unanswered as trouble:
        kind = ShardReadError if trouble.reached else ProxyUnreachable
        raise kind(f"shard {shown(source)}: {trouble}") from None
    except InvalidIndex as error:
        raise ShardReadError(f"shard {shown(source)}: the sidecar gave {error}; is it of another version than this package?") from None


def _count(url: str, limits: Limits) -> Optional[int]:
    try:
        source = source_in(url)
        if source is None:
            return None
        reply = asked(source, PREFIX, [("If-None-Match", "*")], limits)
        reply.explanation()
        text = reply.header("Forebay-Samples") if reply.status == 304 else ""
    except (Unanswered, ValueError):
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def _fetched(
    source: Source, kept: Optional[Indexed], limits: Limits, version: str, *, only_kept: bool = False, bearing: Optional[Bearing] = None
) -> Indexed:
    """Raises ``Unanswered``, ``ShardReadError``, ``InvalidIndex``."""
    headers = [("If-None-Match", kept.etag)] if kept else []
    headers += [("Cache-Control", "only-if-cached")] if only_kept else []
    headers += [(VERSION, version)] if version else []
    reply = asked(source, PREFIX, headers, limits, bearing)
    if reply.status == 304 and kept is not None:
        reply.body.close()
        return kept
    if reply.status != 200:
        raise ShardReadError(f"shard {shown(source)}: {explain(reply.explanation(), reply.status)}", reply.status)
    content = reply.content(2 * MAX_INDEX_BYTES)
    found = Indexed(decode(content), reply.header("ETag"))
    INDEXES.put(source, found, 2 * len(content))
    return found


def _name(source: Source) -> str:
    return source.url.text()
