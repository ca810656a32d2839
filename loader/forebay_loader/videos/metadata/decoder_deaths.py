"""Clips by which a decoder died: a scan that goes on, or comes again, passes over them until somebody asks for them.

``PATH.deaths``: JSON lines, one a clip, for people too. A line that is none, which a kill may leave, is passed over: its clip is tried
again. A clip of another length or version is another clip.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Iterator, Union

__all__ = ["DecoderDeaths"]


class DecoderDeaths:
    """Those of the table at ``path``. Nothing is created before something is added. Raises ``OSError`` where it cannot be read."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(f"{os.fspath(path)}.deaths")
        self._known = dict(self._read())

    def of(self, name: str, clip_bytes: int, version: str) -> str:
        """What was said of the clip, "" of one that killed nothing."""
        return self._known.get((name, clip_bytes, version), "")

    def add(self, name: str, clip_bytes: int, version: str, error: str) -> None:
        """Raises ``OSError``."""
        self._known[name, clip_bytes, version] = error
        line = json.dumps({"name": name, "clip_bytes": clip_bytes, "version": version, "error": error})
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def _read(self) -> "Iterator[tuple[tuple[str, int, str], str]]":
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                said = json.loads(line)
                yield (said["name"], said["clip_bytes"], said["version"]), str(said["error"])
            except (ValueError, TypeError, KeyError):
                continue
