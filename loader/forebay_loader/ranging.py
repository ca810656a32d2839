"""Parts of a shard through the sidecar, by Range, of the version that is meant and no other.

For what needs no whole shard: a sample by its number, the files that are wanted of a cold one. Only the segments that hold them are
fetched. There is no way past the sidecar here: whoever reads whole shards has one.
"""

from __future__ import annotations

import re
import time

from forebay_loader.body import Unanswered
from forebay_loader.connection import Reply, ask
from forebay_loader.counts import COUNTS
from forebay_loader.endpoint import find_endpoint, unnamed
from forebay_loader.errors import LoaderError, ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.limits import Limits
from forebay_loader.patience import Patience
from forebay_loader.reader import reader_name
from forebay_loader.ways import RETRYABLE, explain, retry_after, safe_headers, shown
from forebay_proxy.wire.urls import Source

__all__ = ["asked", "read_range"]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/\d+", re.ASCII)


def read_range(source: Source, first: int, size: int, etag: str, limits: Limits) -> bytes:
    """``size`` bytes from ``first`` of the version ``etag``. Raises ``ShardChanged``, ``ShardReadError``, ``ProxyUnreachable``."""
    if not size:
        return b""
    patience = Patience(limits)
    while True:
        try:
            return _range(source, first, size, etag, limits)
        except Unanswered as trouble:
            pause_s = patience.pause(trouble, limits.resume_s)
            if pause_s is None:
                COUNTS.add("failed")
                raise ProxyUnreachable(f"shard {shown(source)}: {trouble}; parts of a shard are read through the sidecar only") from None
            time.sleep(pause_s)
        except LoaderError as error:
            COUNTS.add("changed" if isinstance(error, ShardChanged) else "failed")
            raise


def asked(source: Source, prefix: str, headers: "list[tuple[str, str]]", limits: Limits) -> Reply:
    """The sidecar's answer about ``source``, below ``prefix``. Raises ``Unanswered``."""
    endpoint = find_endpoint()
    if endpoint is None:
        raise Unanswered(unnamed())
    carried = [*safe_headers(source), ("Accept-Encoding", "identity"), ("Forebay-Reader", reader_name()), *headers]
    return ask(endpoint, prefix + source.url.proxy_path(), carried, connect_s=limits.connect_s, silence_s=limits.silence_s)


def _range(source: Source, first: int, size: int, etag: str, limits: Limits) -> bytes:
    last = first + size - 1
    reply = asked(source, "", [("Range", f"bytes={first}-{last}"), ("If-Match", etag)], limits)
    if reply.status != 206:
        _refused(source, reply)
    found = _CONTENT_RANGE.fullmatch(reply.header("Content-Range"))
    if found is None or (int(found[1]), int(found[2])) != (first, last) or reply.header("ETag") != etag:
        reply.body.close()
        raise ShardChanged(f"shard {shown(source)}: asked for bytes {first}-{last}, answered {reply.header('Content-Range') or 'others'}")
    content = whole(reply, size)
    COUNTS.add("bytes_proxy", len(content))
    return content


def whole(reply: Reply, most: int) -> bytes:
    """All of an answer of at most ``most`` bytes. Raises ``Unanswered``."""
    parts, left = [], most
    try:
        while left and (data := reply.body.read(left)):
            parts.append(data)
            left -= len(data)
    finally:
        reply.body.close()
    return b"".join(parts)


def _refused(source: Source, reply: Reply) -> None:
    """Raises what a status means."""
    text = explain(reply.explanation(), reply.status)
    if reply.status in (412, 416):
        raise ShardChanged(f"shard {shown(source)}: {text}", reply.status)
    if reply.status >= 500 or reply.status in RETRYABLE:
        raise Unanswered(text, reached=True, retry_after_s=retry_after(reply.header("Retry-After")))
    raise ShardReadError(f"shard {shown(source)}: {text}", reply.status)
