"""Copies of shards in a ``cache_dir``, where a program asked for one: webdataset 1.x gives their paths, as ``__local_path__``.

A path into the sidecar's cache was rejected: a shard may leave there as soon as its reader has closed it, and samples outlive that, also in
other processes. So a copy is made when the shard is opened, under webdataset's name for it and in its bound (``cache_size``); the samples
come from the sidecar all the same.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import threading
from typing import Any

from forebay_loader.base.notices import notice_once
from forebay_loader.identity.reader_name import rank_of, worker_of

__all__ = ["copied", "tell_unused"]

_CHUNK_BYTES = 1 << 20
_NOTICE = (
    "cache_dir: a copy of each shard is kept there too, as webdataset does, for samples name its path; without cache_dir the sidecar's is "
    "the only one on this node, bounded and shared by all workers"
)

_UNUSED = (
    "cache_dir is not used for what comes through Forebay: the sidecar keeps the one copy of a shard on this node, bounded and shared by "
    "all workers"
)


def tell_unused() -> None:
    """No copy will be made. It is said where a pipeline is put together, before workers are forked, and once a program: by rank 0."""
    if rank_of(os.environ) == 0 and worker_of() == 0:
        notice_once("cache_dir", _UNUSED)


def copied(cache: Any, url: str, stream: Any) -> "tuple[Any, str]":
    """What to read the shard from, and the path of its copy in ``cache``, a ``FileCache`` of webdataset's; ``stream`` is at its start.

    A copy that is there is used, unless it is of another length. Raises ``ValueError`` for a name that is none and for what the cache's
    validator does not take, ``OSError``.
    """
    notice_once("cache_dir", _NOTICE)
    try:
        path = _place(cache, url)
        if os.path.isfile(path) and getattr(stream, "size", os.path.getsize(path)) == os.path.getsize(path):
            return stream, path
        if cache.cleaner is not None:
            cache.cleaner.cleanup()
        _write(stream, path, cache)
        if getattr(stream, "skip", None) is not None and stream.skip(0) == 0:
            return stream, path  # a file of the sidecar's: from its start again
        made = _Copy(path)
    except BaseException:
        stream.close()
        raise
    stream.close()
    return made, path


class _Copy(io.FileIO):
    """A copy that is read. Not every caller closes a stream: the file is closed with the last reference, without a warning."""

    def __del__(self) -> None:
        self.close()


def _place(cache: Any, url: str) -> str:
    name: str = cache.url_to_name(url)
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"bad cache name {name!r} for a shard: it must be a file's name in {cache.cache_dir}")
    os.makedirs(cache.cache_dir, exist_ok=True)
    return os.path.join(str(cache.cache_dir), name)


def _write(stream: Any, path: str, cache: Any) -> None:
    """All of ``stream``, into a file that appears as a whole; another worker may write the same one."""
    folder, name = os.path.split(path)
    made = os.path.join(folder, f"{name[:200]}.temp{os.getpid()}-{threading.get_ident()}")
    try:
        with open(made, "wb") as file:  # readable to whom the user's umask says, as webdataset's
            shutil.copyfileobj(stream, file, _CHUNK_BYTES)
        if cache.validator is not None and not cache.validator(made):
            raise ValueError(f"the shard named {os.path.basename(path)} is not a tar archive, says the cache's validator")
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise
