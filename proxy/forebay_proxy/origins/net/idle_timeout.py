"""Ends a body that stays silent. One timer a body, not one a piece: pieces come thousands of times a second.

The HTTP client's own limit does not do: it ends with the connection, and after a chunk header that cannot be read the client neither ends
the body nor fails it (tried). Time that the body's taker needs for itself (a disk, a slow reader) is not silence.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import aiohttp

__all__ = ["IdleTimeout"]


class IdleTimeout:
    """Watches one body for the length of the ``with``; ``next`` raises ``TimeoutError`` after ``limit_s`` without a piece."""

    def __init__(self, content: aiohttp.StreamReader, limit_s: float) -> None:
        self._content = content
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # when the wait began that is going on
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> IdleTimeout:
        self._look_in(self._limit_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def next(self) -> bytes:
        """What was received, in the pieces it came in (``readany`` would copy what has gathered into one); b"" at an end."""
        self._since = self._loop.time()
        try:
            chunk, _ = await self._content.readchunk()
        finally:
            self._since = None
        return chunk

    def _look_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited >= self._limit_s:
            self._content.set_exception(TimeoutError())
        else:
            self._look_in(self._limit_s - waited)
