"""Where the fd door is, and who comes in by it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from forebay_proxy.server.net.listen import UnixListener

__all__ = ["FdListener"]

log = logging.getLogger("forebay")

ACCEPTED = 32  # connections a turn of the loop: a job's workers open their first shards in the same instant, and others want to be served
FULL_S = 1.0  # before the next try when this process has no descriptors left


class FdListener:
    """Takes connections and hands each to ``enter``. Not thread-safe: the event loop's only."""

    def __init__(self, enter: Callable[[socket.socket], None]) -> None:
        self._enter = enter
        self._loop = asyncio.get_running_loop()
        self._unix: UnixListener | None = None
        self._again: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<FdListener {self.path or 'closed'}>"

    @property
    def path(self) -> Path | None:
        """Where it is; None while it is closed."""
        return self._unix.path if self._unix else None

    def open(self, path: Path) -> None:
        """Listen at ``path``. Raises ``ConfigError``."""
        self._unix = UnixListener(path)
        self._loop.add_reader(self._unix.socket, self._accept)

    def close(self) -> None:
        """Let nobody in; the path is gone. Safe to repeat."""
        unix, self._unix = self._unix, None
        if unix is not None:
            if self._again is not None:
                self._again.cancel()
            self._loop.remove_reader(unix.socket)
            unix.remove()
            unix.socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            if self._unix is None:
                return
            try:
                client, _ = self._unix.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            client.setblocking(False)
            self._enter(client)

    def _pause(self, error: OSError) -> None:
        """No descriptors left (EMFILE): a listener that stays readable would turn the loop for nothing."""
        assert self._unix is not None
        log.warning("the fd door takes nobody for %g s: %s", FULL_S, error.strerror)
        self._loop.remove_reader(self._unix.socket)
        self._again = self._loop.call_later(FULL_S, self._reopen)

    def _reopen(self) -> None:
        if self._unix is not None:
            self._loop.add_reader(self._unix.socket, self._accept)
