"""``sizes.json``: how many samples each shard has, by file name, as OpenCLIP reads it. One file may be filled part by part."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from forebay_proxy.cli.output import write_whole
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["Conflict", "SizesJson", "file_name"]

_MOST_BYTES = 256 << 20  # of a file that is there: four million shards
_STEP = "name another file with --sizes"


class Conflict(Exception):
    """The file says otherwise of shards it already tells of; the message names the first."""


def file_name(shard: str) -> str:
    """What ``sizes.json`` calls the shard of this origin URL."""
    return unquote(parse_origin_url(shard).path.rpartition("/")[2])


class SizesJson:
    """The file at ``path``. Its counts of other shards stay as they are."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # a link stays one
        self._shown = path

    def check(self) -> None:
        """Raises ``ConfigError`` where nothing can be written, or what is there is no such table: before shards are fetched for it."""
        if not os.access(self._path.parent, os.W_OK | os.X_OK) or self._path.is_dir():
            raise self._unwritable("it is a folder" if self._path.is_dir() else f"{self._path.parent} is no folder you may write to")
        self._known()

    def counts(self) -> dict[str, int]:
        """Samples by file name. Raises ``ConfigError`` where there is no such table."""
        if not self._path.is_file():
            raise ConfigError(f"{self._shown} is not there", next_step="check --sizes; 'forebay index' writes one")
        try:
            return {name: _number(value) or 0 for name, value in self._known().items()}
        except ConfigError as error:
            raise ConfigError(f"{self._shown} is no table of samples by file name", next_step="check --sizes") from error

    def add(self, counts: Mapping[str, int]) -> int:
        """Write ``counts`` to what is there; returns how many other shards it tells of. Raises ``Conflict``, ``ConfigError``."""
        folder = -1
        try:
            with suppress(OSError):  # a file system without locks
                # Parts of a set are counted by several commands at once: what one adds while another has read the file would be lost.
                folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(folder, fcntl.LOCK_EX)
            known = self._known()
            other = {name: count for name, count in counts.items() if name in known and _number(known[name]) != count}
            if other:
                name, count = next(iter(other.items()))
                more = f", and {len(other) - 1} more differ" if len(other) > 1 else ""
                raise Conflict(f"it says {known[name]} samples for {name}, and its index has {count}{more}")
            write_whole({self._shown: json.dumps({**counts, **known}, indent=0, sort_keys=True) + "\n"}, _STEP)
            return len(known.keys() - counts.keys())
        finally:
            if folder >= 0:
                os.close(folder)

    def _known(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unwritable(f"what is there cannot be read: {error.strerror}") from error
        found: Any = None
        with suppress(ValueError, RecursionError):
            found = json.loads(content) if len(content) <= _MOST_BYTES else None
        if not isinstance(found, dict) or any(_number(value) is None for value in found.values()):
            raise self._unwritable("what is there is no table of samples by file name, and would be lost")
        return found

    def _unwritable(self, cause: str) -> ConfigError:
        return ConfigError(f"cannot write {self._shown}: {cause}", next_step=_STEP)


def _number(value: Any) -> int | None:
    """A count as OpenCLIP takes it: a number, or its digits."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    if isinstance(value, int):
        return value
    return int(value) if len(value) < 20 and value.isascii() and value.isdigit() else None
