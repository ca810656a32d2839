"""How far one iteration of a loader is: what was handed out, and the state to continue from there.

Batches pass four points. They come from torch's loader (``batches``) and out of the last stage (``outputs``). Then they pass the vote of
the ranks, which takes one more than is handed out (``pulled``). Last, the trainer gets them (``handed_out``), and may fetch some in
advance.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Deque, Iterable, Iterator, NamedTuple, Optional

from forebay_loader.base.errors import NotResumable
from forebay_loader.loading.loader_start import LoaderStart
from forebay_loader.loading.main_stages import HeldRows
from forebay_loader.loading.pass_books import PassBooks

__all__ = ["SEEN", "LoaderProgress"]

SEEN = 8  # batches that a trainer may have fetched but not trained on


class _Position(NamedTuple):
    """The position after ``given`` batches, which hold ``made`` outputs.

    ``books`` are the records of the current pass, after ``passes`` others; they had ``at`` batches then. Stages in the training process may
    have ``held`` some rows back. Workers restart after batch ``behind``.
    """

    given: int
    made: int
    books: Optional[PassBooks] = None
    at: int = 0
    passes: int = 0
    held: Optional[HeldRows] = None

    @property
    def behind(self) -> int:
        return self.at if self.held is None else self.held.snapshot.at


class LoaderProgress:
    """The progress of an iteration over a DataLoader with ``workers``, which continues from ``start``."""

    def __init__(self, workers: int, start: LoaderStart) -> None:
        self.start = start
        self.passes = start.passes  # number of passes before the next one
        self.over = False
        self.counted = start.counted  # ranks have shares of samples
        self._workers = workers
        self._books: Optional[PassBooks] = None
        self._made = self._pulled = start.made
        self._ahead: Deque[_Position] = deque()  # of outputs that were not handed out yet
        self._handed: Deque[_Position] = deque([_Position(start.given, start.made)], SEEN + 1)
        self._why = ""
        self._lock = threading.Lock()  # a trainer's thread may fetch while another one saves

    def __repr__(self) -> str:
        return f"<LoaderProgress of epoch {self.start.epoch}, {self._handed[-1].given} batches handed out>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled copy starts with nothing handed out."""
        return LoaderProgress, (self._workers, self.start)

    @property
    def begun(self) -> bool:
        """Whether this iteration has begun a pass."""
        return self._books is not None

    def batches(self, carried: Iterable[Any], epoch: int) -> Iterator[Any]:
        """The batches of one pass over torch's loader, as the workers made them. ``epoch`` is the expected epoch, until the first batch
        tells.
        """
        books = PassBooks(self._workers, epoch, None if self.begun else self.start)
        self._books, self.passes = books, self.passes + 1
        return self._noted(carried, books)

    def _noted(self, carried: Iterable[Any], books: PassBooks) -> Iterator[Any]:
        for one in carried:
            with self._lock:
                oldest = self._handed[0]
                books.took(one, oldest.behind if oldest.books is books else 0)
            batch = one.batch
            del one
            yield batch
            del batch  # free it after its step

    @property
    def at(self) -> int:
        """How many batches of this pass have come from torch's loader."""
        return 0 if self._books is None else self._books.at

    @property
    def epoch(self) -> int:
        """The epoch of this pass."""
        return self.start.epoch if self._books is None else self._books.epoch

    def outputs(self, batches: Iterable[Any], held: Optional[Callable[[], HeldRows]] = None, why: str = "") -> Iterator[Any]:
        """Yield the outputs of the last stage in one pass. ``held()`` returns what the stages hold; ``why`` is the reason if that is not
        known.
        """
        self._why = why
        with _closed(batches) as source:
            for batch in source:
                with self._lock:
                    self._made += 1
                    kept = None if held is None else held()
                    self._ahead.append(_Position(0, self._made, self._books, self.at, self.passes - 1, kept))
                yield batch
                del batch

    def pulled(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield outputs on their way to the trainer. A batch ladder may join several of them."""
        with _closed(batches) as source:
            for batch in source:
                self._pulled += 1
                yield batch
                del batch

    def handed_out(self, batches: Iterable[Any], waiting: Callable[[], int] = lambda: 0) -> Iterator[Any]:
        """Yield what the trainer gets. ``waiting()`` returns how many pulled batches are not handed out yet."""
        with _closed(batches) as source:
            for batch in source:
                self._hand(self._pulled - waiting())
                yield batch
                del batch
            self.over = True

    def position(self, seen: Optional[int]) -> dict[str, Any]:
        """The state after ``seen`` batches of the epoch; by default after all that were handed out, and after the end of the epoch.

        Raises ``ValueError`` if ``seen`` is not among the last batches, ``NotResumable`` if the data set has no state.
        """
        with self._lock:
            given = self._handed[-1].given if seen is None else seen
            found = next((one for one in self._handed if one.given == given), None)
            if found is None:
                raise ValueError(
                    f"seen={seen}, and {self._handed[-1].given} batches of this epoch were handed out: only the states after the last "
                    f"{SEEN} are kept, here from seen={self._handed[0].given} on"
                )
            why = self._why or ("" if found.books is None else found.books.why)
            if why and found.books is not None:
                raise NotResumable(f"this loader cannot go on exactly: {why}" if self._why else why)
            return {"over": self.over and seen is None, **self._said(found)}

    def _said(self, found: _Position) -> dict[str, Any]:
        start, books = self.start, found.books
        said: dict[str, Any] = {"given": found.given, "made": found.made, "first": start.first, "counted": self.counted}
        if books is None:
            said |= {"epoch": start.epoch, "passes": start.passes, "next": start.next, "states": list(start.states)}
            return said if start.stages is None else {**said, "unstated": list(start.unstated), "stages": start.stages}
        handed = None if found.held is None else found.held.handed
        said |= {"epoch": books.epoch, "passes": found.passes, "next": books.turn(found.behind)}
        said["states"] = books.states(found.behind, found.at, handed)
        if found.held is None:
            return said
        return {**said, "unstated": books.unstated(found.behind, found.at, handed), "stages": found.held.state()}

    def _hand(self, made: int) -> None:
        with self._lock:
            found, given = None, self._handed[-1].given + 1
            while self._ahead and self._ahead[0].made <= made:
                found = self._ahead.popleft()
            self._handed.append(_Position(given, made) if found is None else _Position(given, *found[1:]))


@contextmanager
def _closed(batches: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Close ``batches`` together with their reader: this tells other ranks that this one has left."""
    source = iter(batches)
    try:
        yield source
    finally:
        if hasattr(source, "close"):
            source.close()
