"""Running fetches, single: one for a segment however many want it.

A fetch is followed by its watermark, ``position``: every byte below it is readable in its ``place``, the shard's file or a segment of
memory. Readers subscribe; one that leaves cancels nothing. A fetch ends by landing, by failing, or at shutdown. One that failed tells its
subscribers and is forgotten: the table loses it before they wake, or a newcomer would follow a dying one.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

from forebay_proxy.core.errors import ForebayError, bare
from forebay_proxy.core.tasks import Broadcast, cancel_soon
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.transfer.limiter import AHEAD, Slot

__all__ = ["WHOLE", "Answer", "Fetch", "FetchTable", "error_for_subscribers"]

log = logging.getLogger("forebay")
WHOLE = -1  # in place of a segment's index: one body brings the whole shard
# Turns of a busy loop between an opening's answer and its reader's first step; only a segment of memory waits for it.
SUBSCRIBE_S = 2.0


class Fetch:
    """One running fetch of bytes ``first`` to ``end`` (exclusive) of a shard version."""

    def __init__(self, first: int, end: int, need: float, began_at: float = 0.0, *, in_part: bool = False) -> None:
        """``need`` is how soon its bytes are needed, see ``limiter``; ``in_part``: by a reader that does not read to the shard's end."""
        self.first = first
        self.end = end
        self.need = need
        self.began_at = began_at
        self.in_part = in_part
        self.prefetch = need >= AHEAD  # no reader was waiting
        self.position = first
        self.place: object = None  # what holds the bytes below the watermark
        self.bypass = False  # that is memory, and nothing is stored
        self.stored: set[int] = set()  # segments: such a one may have left again while the fetch goes on
        self.subscribers = 0
        self.followed = False  # somebody subscribed, and may have gone on before the landing
        self.error: BaseException | None = None
        self.done = False
        self._grown = Broadcast()
        self._changed = asyncio.Event()
        self.kept = ExitStack()  # closed once it has ended and its last subscriber has left

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "running"
        return f"<Fetch {self.first}-{self.end} at {self.position}, {self.subscribers} subscribers, {state}>"

    # Readers

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        """One more reader follows this fetch, for the length of the ``with``."""
        self.subscribers += 1
        self.followed = True
        self._changed.set()
        try:
            yield
        finally:
            self.subscribers -= 1
            if self.done:
                self._let_go()

    async def grown_beyond(self, position: int) -> bool:
        """Wait until the byte at ``position`` is readable; False if the fetch ended before it. Raises the fetch's error."""
        while self.position <= position:
            if self.error is not None:
                raise bare(self.error)
            if self.done:
                return False
            await self._grown.wait()
        return True

    # Its sink

    def advanced(self, position: int) -> None:
        """Everything below ``position`` is readable."""
        self.position = position
        self._grown.send()

    async def first_subscriber(self) -> None:
        """Wait until somebody has subscribed, ``SUBSCRIBE_S`` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_S):
                await self._changed.wait()

    def ended(self, error: BaseException | None = None) -> None:
        """Stored, or failed with ``error``; every waiting reader is told."""
        self.error = None if error is None else bare(error)
        self.done = True
        self._grown.send()
        self._let_go()

    def _let_go(self) -> None:
        if not self.subscribers:
            self.kept.close()


class Answer:
    """An origin's answer that an opening has begun, and whose bytes are somebody else's."""

    def __init__(self, body: OriginBody, slot: Slot, held: AsyncExitStack) -> None:
        """``held``: connection and slot; whoever takes the answer closes them."""
        self.body = body
        self._slot = slot
        self._held = held
        self._claimed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Answer from byte {self.body.first} on, {'taken' if self._claimed.is_set() else 'waiting'}>"

    def claim(self, first: int, end: int | None) -> bool:
        """Whether it has bytes ``first`` to ``end`` (exclusive; None: to the shard's end), and is the caller's from now on; once."""
        body = self.body
        has_end = not body.ranged or (end is not None and body.length is not None and end <= body.first + body.length)
        if self._claimed.is_set() or first < body.first or not has_end:
            return False
        self._claimed.set()
        return True

    async def claimed(self) -> None:
        """Wait until somebody has claimed it, ``SUBSCRIBE_S`` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_S):
                await self._claimed.wait()

    async def drop(self) -> None:
        """Close it, unless somebody has claimed it; nobody can any more."""
        if not self._claimed.is_set():
            self._claimed.set()
            await self._held.aclose()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[tuple[OriginBody, Slot]]:
        """As ``Fetcher.ask``."""
        async with self._held:
            yield self.body, self._slot


class FetchTable:
    """Which fetch brings which segment. Tasks belong to ``group``, which waits for them."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._fetches: dict[tuple[str, int], Fetch] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._ending = False

    def __len__(self) -> int:
        """How many fetches are running."""
        return len(self._fetches)

    def find(self, key: str, index: int) -> Fetch | None:
        """The fetch that brings segment ``index``, alone or with all of its shard; None without one."""
        return self._fetches.get((key, WHOLE)) or self._fetches.get((key, index))

    def all(self) -> list[Fetch]:
        return list(self._fetches.values())

    def add(self, key: str, index: int, fetch: Fetch) -> None:
        """List a fetch, before its first step; ``run`` takes it off."""
        self._fetches[key, index] = fetch

    def start(self, key: str, index: int, way: Coroutine[Any, Any, None]) -> None:
        """Run ``way`` of a listed fetch as a task of its own."""
        task = self._group.create_task(self._told(way), name=f"fetch {key[:8]}/{index}")
        self._tasks[task] = key
        task.add_done_callback(self._tasks.pop)
        if self._ending:
            cancel_soon(task)

    @staticmethod
    async def _told(way: Coroutine[Any, Any, None]) -> None:
        try:
            await way
        except ForebayError:
            pass  # its subscribers have heard it
        except Exception:  # a fault of ours: they were told all the same, and the log keeps it
            log.exception("a fetch failed unexpectedly")

    def remove(self, key: str, index: int, fetch: Fetch, error: BaseException | None = None) -> None:
        """Take the fetch off the table, then tell its subscribers."""
        if self._fetches.get((key, index)) is fetch:
            del self._fetches[key, index]
        fetch.ended(error)

    def cancel(self) -> None:
        """Shutdown: every fetch ends now, and every later one at once; the task group waits for them."""
        self._ending = True
        self.drop(lambda key: False)

    def drop(self, wanted: Callable[[str], bool]) -> None:
        """A drain: every fetch ends now but those of a ``wanted`` key."""
        for task, key in self._tasks.items():
            if self._ending or not wanted(key):
                cancel_soon(task)


def error_for_subscribers(error: BaseException) -> BaseException:
    """The error that readers get for ``error``: a cancellation is the fetch's own, and would end their tasks."""
    return ForebayError("the sidecar is shutting down") if isinstance(error, asyncio.CancelledError) else error
