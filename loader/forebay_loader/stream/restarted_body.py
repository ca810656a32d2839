"""Bodies that start again at byte 0: webdataset's own streams, and bodies that must be compared with bytes already delivered."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Optional

from forebay_loader.base.errors import ShardChanged, ShardReadError
from forebay_loader.transport.body import Progress, new_sum

__all__ = ["Foreign", "Skipping", "foreign_failure"]

END_S = 60.0  # between a command's last byte and its end; curl and aws need milliseconds
_EXIT = re.compile(r"\bexit (\d+)", re.ASCII)


def foreign_failure(error: Exception, shown: str) -> ShardReadError:
    """The error for a failure of webdataset's own opener. Its text is left out: it holds the whole command, tokens included."""
    found = _EXIT.search(str(error))
    how = f"its command ended with exit code {found[1]}" if found else type(error).__name__
    return ShardReadError(f"shard {shown}: webdataset's own opener failed: {how}")


class Foreign:
    """A file-like object of webdataset's own, read like a ``Body``. Its errors are final: it has its own retries."""

    left: Optional[int] = None

    def __init__(self, stream: Any, shown: str) -> None:
        self._stream = stream
        self._shown = shown

    def read(self, size: int) -> bytes:
        try:
            data = bytes(self._stream.read(size))
            if not data and size:
                self._ended()
        except Exception as error:  # a user's opener may raise anything
            raise foreign_failure(error, self._shown) from None
        return data

    def _ended(self) -> None:
        """Wait for the command's exit code. webdataset only polls, so a command that fails just after its last byte
        would seem successful.
        """
        wait, command = getattr(self._stream, "wait_for_child", None), getattr(self._stream, "proc", None)
        if wait is None or command is None:
            return
        try:
            command.wait(END_S)
        except Exception:  # it does not end: the shard may not be whole, and close() could wait for hours
            command.kill()
            raise
        wait()

    def close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):  # a curl that is stopped half-way exits with an error; webdataset ignores it too
                close()


class Skipping:
    """A body that starts again at byte 0. Bytes that were already delivered are skipped, and must be the same.

    Later bytes are of this body's version: ``progress`` is pinned to its ``etag`` ("" if it has none).
    """

    def __init__(self, body: Any, progress: Progress, shown: str, etag: str = "") -> None:
        self._body = body
        self._progress = progress
        self._etag = etag
        self._skip = progress.position
        self._expected = progress.sum.intdigest()
        self._sum = new_sum()
        self._shown = shown

    @property
    def left(self) -> Optional[int]:
        left = self._body.left
        return None if left is None else max(left - self._skip, 0)

    def read(self, size: int) -> bytes:
        while self._skip:
            self._skip_some(size)
        return bytes(self._body.read(size))

    def close(self) -> None:
        self._body.close()

    def _skip_some(self, size: int) -> None:
        data = self._body.read(min(size, self._skip))
        if not data:
            raise ShardChanged(f"shard {self._shown}: ends {self._skip} bytes before what was already delivered")
        self._sum.update(data)
        self._skip -= len(data)
        if self._skip:
            return
        if self._sum.intdigest() != self._expected:
            raise ShardChanged(f"shard {self._shown}: its first bytes are not those already delivered; it was replaced on the origin")
        self._progress.etag = self._etag
