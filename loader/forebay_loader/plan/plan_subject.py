"""What a data set's plans are about: the set of its shards and the epoch, as far as its pipeline knows them."""

from __future__ import annotations

import hashlib
from typing import Any, Optional, Sequence

from forebay_loader.plan.plan_client import Subject
from forebay_proxy.wire.commands.sources import masked_parts
from forebay_proxy.wire.urls.patterns import InvalidPattern, check_parts, parse_pattern
from forebay_proxy.wire.urls.quoting import InvalidShardUrl

__all__ = ["set_of", "subject_of", "told_epoch"]

MAX_SET = 1 << 16  # characters; the sidecar takes no more
MAX_EPOCH = 1 << 53


def set_of(urls: Any) -> Optional[str]:
    """The set that the argument ``urls`` of a data set stands for: a pattern's text, or a name for a list; None for anything else."""
    if isinstance(urls, str):
        return urls if len(urls) <= MAX_SET else None
    if isinstance(urls, Sequence) and urls and all(isinstance(url, str) for url in urls):
        digest = hashlib.blake2b("\n".join(urls).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        return f"{len(urls)} shards {digest}"  # the same list is the same set, in every rank and job
    return None


def subject_of(name: Optional[str], epoch: Optional[int]) -> Subject:
    """``name`` as the sidecar knows it: a pattern of origin URLs where it is one, whatever command it was written with."""
    if name is None or not name or not name.isprintable():
        return Subject(None, None, epoch)
    try:
        check_parts(name)
        parts = masked_parts(name)
        urls = [unmask(source.url.text()) for source, unmask in parts or ()]
        pattern = parse_pattern(urls[0]) if len(urls) == 1 and urls[0] else None
    except (InvalidShardUrl, InvalidPattern):
        return Subject(None, None, epoch)  # webdataset will say so
    if not urls:  # a name; or what holds a command of another kind, which may hold a secret
        return Subject(None if "pipe:" in name else name, None, epoch)
    if None in urls:
        return Subject(None, None, epoch)
    return Subject("::".join(url for url in urls if url), pattern if pattern is not None and pattern.count > 1 else None, epoch)


def told_epoch(epoch: Any) -> Optional[int]:
    """The number that ``epoch`` stands for now; None where that is no number."""
    try:
        for name in ("get_value", "value"):
            epoch = getattr(epoch, name, epoch)
        found = epoch() if callable(epoch) else epoch
        return int(found) if found is not None and 0 <= int(found) < MAX_EPOCH else None
    except Exception:  # a user's own object: whatever it does, training goes on
        return None
