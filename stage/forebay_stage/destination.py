"""Where a stage writes to: a folder, or a prefix of an S3 bucket. Both keep the same few promises.

An object appears whole or not at all. ``put_file`` returns only when reading back gave the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url
from forebay_stage.file_destination import FileDestination
from forebay_stage.stage_lock import StageLock

__all__ = ["Destination", "destination_of"]

_OPTIONS = frozenset(("endpoint", "profile", "region"))


class Destination(Protocol):
    """Every call blocks, and raises ``DestinationFailed``. Picklable; ``str`` is its place, without options.

    Names are relative, with slashes. ``names`` gives all objects below a prefix, also those of others.
    """

    def put_file(self, name: str, path: Path) -> int:
        """Store the file under the name, replacing what is there; read it back and compare. Returns its size."""

    def put(self, name: str, data: bytes, *, only_new: bool = False) -> bool:
        """Store a small object. False: ``only_new``, and there is one, which stays."""

    def get(self, name: str) -> bytes | None:
        """All of a small object; None: it is not there."""

    def size(self, name: str) -> int | None:
        """None: it is not there."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly these bytes."""

    def names(self, below: str = "") -> Iterator[str]:
        """The names that begin with ``below``."""

    def delete(self, name: str) -> None:
        """Also without an object of this name."""

    def lock(self) -> StageLock:
        """This destination's lock, not taken yet. A stage that takes it deletes what a killed one left half-written."""


def destination_of(text: str) -> Destination:
    """The destination that a person wrote: ``s3://bucket/prefix[?endpoint=…&profile=…&region=…]``, ``file:///…``, or a path.

    Asks no storage. Raises ``ConfigError``.
    """
    scheme, colon, _ = text.partition("://")
    if not colon:
        if not text or "\0" in text:
            raise ConfigError("the destination is no path", next_step="write a folder, or s3://bucket/prefix")
        return FileDestination(Path(text).absolute())
    try:
        url = parse_origin_url(text)
    except InvalidShardUrl as error:
        raise ConfigError(f"the destination is no URL of a folder: {error}", next_step="write a folder, or s3://bucket/prefix") from error
    if url.scheme == "file":
        return FileDestination(Path("/" + url.key()))
    if url.scheme != "s3":
        raise ConfigError(f"a stage cannot write to {scheme}://", next_step="write to a folder, or to s3://bucket/prefix")
    options = url.options()
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ConfigError(f"a destination has no s3 option {unknown[0]}", next_step=f"known are {', '.join(sorted(_OPTIONS))}")
    from forebay_stage.s3_destination import S3Destination  # noqa: PLC0415  # the SDK takes longer to import than all else of a task

    return S3Destination(url.authority, url.key().rstrip("/") + "/", **options)
