"""Which shards a person means: names, and patterns with ``*`` and ``?``, against thousands of shards, a slice at a time."""

from __future__ import annotations

import asyncio
import fnmatch
import re
import time
from collections.abc import AsyncIterator, Iterable

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core import secret_parameters

__all__ = ["SLICE_S", "Slices", "selected"]

# A tenth of what a reader could notice of the loop's lag. Ten thousand patterns against ten thousand shards take a minute all the same.
SLICE_S = 0.005
_AT_A_TIME = 64  # patterns between two looks at the clock

_Wild = tuple[str, re.Pattern[str]]  # what a name must begin with, and all of it


class Slices:
    """Lets the others have their turn whenever its owner has worked for ``SLICE_S`` on end."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def turn(self) -> None:
        if time.perf_counter() - self._since >= SLICE_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


async def selected(entries: Iterable[Entry], patterns: list[str] | None) -> AsyncIterator[Entry]:
    """The ``entries`` whose names match one of ``patterns`` (None: all entries), in their order."""
    slices = Slices()
    # Plain names, which long lists are made of, cost nothing each.
    asked = [_less_proof(pattern) for pattern in patterns or ()]
    names = frozenset(asked)
    wild = [compiled async for compiled in _compiled(asked, slices)]
    for entry in entries:
        await slices.turn()
        if patterns is None or entry.name in names or await _matches(entry.name, wild, slices):
            yield entry


def _less_proof(pattern: str) -> str:
    """As names are: people paste the URL they read, signature and all."""
    if not pattern.startswith(("http:", "https:")) or "?" not in pattern:
        return pattern
    place, _, query = pattern.rpartition("?")  # an earlier one stands for any character
    kept, proof, _ = secret_parameters.cut(query)
    return f"{place}?{kept}" if kept else place if proof else pattern


async def _compiled(patterns: Iterable[str], slices: Slices) -> AsyncIterator[_Wild]:
    for pattern in patterns:
        begin = re.split(r"[*?]", pattern, maxsplit=1)[0]
        if begin != pattern:
            await slices.turn()
            # ``[`` stands for itself: URLs hold it more often than people mean a character class. Not kept by fnmatch, which keeps few.
            yield begin, re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


async def _matches(name: str, wild: list[_Wild], slices: Slices) -> bool:
    for at in range(0, len(wild), _AT_A_TIME):
        await slices.turn()
        if any(name.startswith(begin) and whole.match(name) for begin, whole in wild[at : at + _AT_A_TIME]):
            return True
    return False
