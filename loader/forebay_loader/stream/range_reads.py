"""Reads parts of a shard through the sidecar, by HTTP range requests, always of one given version.

It serves readers that need no whole shard: one sample by its number, or some files of a shard that is not cached. The sidecar fetches only
the segments that hold them. There is no other source for parts, so a sidecar that hangs is waited for. Readers of whole shards have other
sources.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

from forebay_loader.base.activity import ORIGIN, PROXY, UNTOLD, here
from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import LoaderError, ProxyUnreachable, ShardChanged, ShardReadError, check_descriptors
from forebay_loader.base.timeouts import Limits
from forebay_loader.identity.reader_name import reader_name
from forebay_loader.stream.shard_request import VERSION, ask_shard, refusal, shown, waited_for
from forebay_loader.stream.wait_notices import say_wait
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.http import Reply
from forebay_loader.transport.hung_sidecar import HUNG, Bearing, hung, turns
from forebay_loader.transport.source_timeout import SourceTimeout
from forebay_proxy.wire.commands.sources import Source

__all__ = [
    "SEGMENT_BYTES",
    "SPANS_AT_ONCE",
    "ShardVersion",
    "are_sparse",
    "asked",
    "open_range",
    "patiently",
    "read_range",
    "shard_version",
    "sparse_header",
]

SEGMENT_BYTES = 8 << 20  # as in the sidecar; with other segments, are_sparse only guesses less well
REQUEST_BYTES = 64 << 10  # a request to a near origin takes as long as sending so many bytes: to save fewer is not worth one

SPANS_AT_ONCE = 4  # of a clip that is not cached: eight groups of pictures then take two round trips; each may need 4 MiB of memory


def are_sparse(spans: Sequence[Tuple[int, int]], length: int) -> bool:
    """Whether ``spans`` are less than half of the segments that they touch, in an object of ``length`` bytes.

    Each span is (offset, end); they are in ascending order.
    """
    touched: Dict[int, int] = {}
    for begin, end in spans:
        for index in range(begin // SEGMENT_BYTES, -(-end // SEGMENT_BYTES)):
            touched[index] = min(SEGMENT_BYTES, length - index * SEGMENT_BYTES)
    wanted = sum(end - begin for begin, end in spans)
    return 2 * wanted < sum(touched.values()) and sum(touched.values()) - wanted > REQUEST_BYTES * len(spans)


def sparse_header(sparse: bool) -> List[Tuple[str, str]]:
    """The header that tells the sidecar that little of each segment is wanted."""
    return [("Forebay-Sparse", "1")] if sparse else []


T = TypeVar("T")

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/\d+", re.ASCII)


class ShardVersion(NamedTuple):
    """The version of a shard that the sidecar has now.

    ``length`` is in bytes. ``modified`` is an HTTP date, or "" if the origin gave none.
    """

    etag: str
    length: int
    modified: str = ""


def shard_version(source: Source, limits: Limits) -> ShardVersion:
    """Return the version that the sidecar has now. Raises the errors of ``read_range``, and ``ShardReadError`` if the origin gives no
    length.
    """

    def ask_once(bearing: Bearing) -> ShardVersion:
        # As a reader that announced nothing: a reader that announced the shard opens it only once, for its bytes.
        reply = ask_shard(source, reader_name(), [], limits, method="HEAD", bearing=bearing)
        reply.body.close()
        if reply.status != 200:
            _refused(source, reply)
        length = reply.header("Content-Length")
        if not length.isdigit():
            raise ShardReadError(f"shard {shown(source)}: its origin tells no length, without which parts of it cannot be read")
        return ShardVersion(reply.header("ETag"), int(length), reply.header("Last-Modified"))

    return _patient(source, limits, limits.open_s, ask_once)


def read_range(source: Source, first: int, size: int, etag: str, limits: Limits, *, sparse: bool = False, reader: str = "") -> bytes:
    """Return ``size`` bytes from ``first`` of the version ``etag``.

    ``sparse``: little else is wanted of the segments around them. ``reader``: who announced the shard; "" if nobody did. Raises
    ``ShardChanged``, ``ShardReadError``, ``ProxyUnreachable``.
    """
    if not size:
        return b""
    return _patient(source, limits, limits.resume_s, partial(_range, source, first, size, etag, limits, sparse, reader))


def _patient(source: Source, limits: Limits, within_s: float, ask_once: Callable[[Bearing], T]) -> T:
    try:
        return patiently(shown(source), limits, within_s, ask_once)
    except Unanswered as trouble:
        COUNTS.add("failed")
        kind = ShardReadError if trouble.reached else ProxyUnreachable
        raise kind(f"shard {shown(source)}: {trouble}; parts of a shard are read through the sidecar only") from None
    except LoaderError as error:
        COUNTS.add("changed" if isinstance(error, ShardChanged) else "failed")
        raise


def patiently(shard: str, limits: Limits, within_s: float, ask_once: Callable[[Bearing], T], *, alone: bool = True) -> T:
    """Call ``ask_once`` until it succeeds, or until ``within_s`` seconds have passed since its first ``Unanswered``. Then raise the last
    one.

    ``alone``: there is no other source, so a sidecar that hangs is waited for. Otherwise a hang is raised at once.
    """
    source_timeout = SourceTimeout(limits)
    bearing = Bearing(shard, source_timeout, alone=alone)
    while True:
        try:
            return ask_once(bearing)
        except Unanswered as trouble:
            check_descriptors(shard, trouble)
            if trouble.silent and not trouble.hung and source_timeout.bears_silence():
                if turns():
                    continue
                trouble = hung()
            if trouble.hung:
                HUNG.found()
                if not bearing():
                    raise _waited(trouble, source_timeout) from None
            limit_s = source_timeout.troubled_s + source_timeout.left_s if bearing.began else within_s
            pause_s = source_timeout.pause(trouble, limit_s)
            if pause_s is None:
                raise _waited(trouble, source_timeout) from None
            time.sleep(pause_s)


def _waited(trouble: Unanswered, source_timeout: SourceTimeout) -> Unanswered:
    return Unanswered(f"{trouble}; waited {source_timeout.waited_s:.0f} s", hung=trouble.hung, reached=trouble.reached)


def asked(
    source: Source, prefix: str, headers: "list[tuple[str, str]]", limits: Limits, bearing: Optional[Bearing] = None, reader: str = ""
) -> Reply:
    """Return the sidecar's answer about ``source``, below the path ``prefix``. Raises ``Unanswered``.

    ``bearing`` says how long a sidecar that hangs is waited for.
    """
    reader, activity, cause = reader or reader_name(), here(), PROXY
    activity.wait(UNTOLD, shown(source), 0)
    try:
        reply = ask_shard(source, reader, headers, limits, prefix=prefix, tell=partial(say_wait, shown(source), reader), bearing=bearing)
        cause = waited_for(reply)
        return reply
    except Unanswered as trouble:
        cause = ORIGIN if trouble.reached else PROXY
        raise
    finally:
        activity.over()
        activity.tell(cause)


def open_range(
    source: Source,
    first: int,
    size: int,
    etag: str,
    limits: Limits,
    *,
    sparse: bool = False,
    bearing: Optional[Bearing] = None,
    reader: str = "",
) -> Reply:
    """Ask once for ``size`` bytes from ``first`` of the version ``etag``, and return the answer. Raises ``Unanswered`` too."""
    last = first + size - 1
    headers = [("Range", f"bytes={first}-{last}"), ("If-Match", etag), (VERSION, etag), *sparse_header(sparse)]
    reply = asked(source, "", headers, limits, bearing, reader)
    if reply.status != 206:
        _refused(source, reply)
    found = _CONTENT_RANGE.fullmatch(reply.header("Content-Range"))
    if found is None or (int(found[1]), int(found[2])) != (first, last) or reply.header("ETag") != etag:
        reply.body.close()
        raise ShardChanged(f"shard {shown(source)}: asked for bytes {first}-{last}, answered {reply.header('Content-Range') or 'others'}")
    return reply


def _range(source: Source, first: int, size: int, etag: str, limits: Limits, sparse: bool, reader: str, bearing: Bearing) -> bytes:
    reply = open_range(source, first, size, etag, limits, sparse=sparse, bearing=bearing, reader=reader)
    activity = here()
    activity.wait(waited_for(reply), shown(source), first)
    try:
        content = reply.content(size)
    finally:
        activity.over()
    COUNTS.add("bytes_proxy", len(content))
    return content


def _refused(source: Source, reply: Reply) -> None:
    """Raise the error for a status."""
    text = refusal(reply)
    if reply.status in (412, 416):
        raise ShardChanged(f"shard {shown(source)}: {text}", reply.status)
    raise ShardReadError(f"shard {shown(source)}: {text}", reply.status)
