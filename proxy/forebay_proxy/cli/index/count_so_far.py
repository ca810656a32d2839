"""What a count of a large set has found so far, beside the file it is for: the next run goes on from there.

One line a shard, appended as it is counted: its URL without a query, its ETag, its samples. A run that goes on asks for each ETag again, so
a shard that was replaced is counted again. A line that a kill tore is passed over.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from forebay_proxy.core.errors import ConfigError

__all__ = ["CountSoFar"]


class CountSoFar:
    """The file ``PATH.partial``; without a path nothing is kept."""

    def __init__(self, sizes: str) -> None:
        self._path = Path(f"{sizes}.partial") if sizes else None
        self._known: dict[str, tuple[str, int]] = {}
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._read(self._path)

    def find(self, shard: str) -> tuple[str, int] | None:
        """(ETag, samples) that were noted of ``shard``."""
        return self._known.get(_shown(shard))

    def record(self, shard: str, etag: str, samples: int) -> None:
        """``shard`` is counted. Raises ``ConfigError`` where that cannot be written."""
        if self._path is None or not etag or self._known.get(_shown(shard)) == (etag, samples):
            return
        self._known[_shown(shard)] = etag, samples
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"shard": _shown(shard), "etag": etag, "samples": samples}) + "\n")
        except OSError as error:
            raise self._unusable(self._path, error) from error

    def end(self) -> None:
        """All of it stands in its own file now."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unusable(path, error) from error
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                self._take(json.loads(line))

    def _take(self, found: Any) -> None:
        shard, etag, samples = found["shard"], found["etag"], found["samples"]
        if isinstance(shard, str) and isinstance(etag, str) and isinstance(samples, int) and samples >= 0:
            self._known[shard] = etag, samples

    def _unusable(self, path: Path, error: OSError) -> ConfigError:
        return ConfigError(f"cannot keep what is counted in {path}: {error.strerror}", next_step="name another file with --sizes")


def _shown(shard: str) -> str:
    return shard.partition("?")[0]
