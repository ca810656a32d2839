"""The buffer of ``.shuffle(n)``: the same draws as webdataset's, and the number of each sample in it.

Its state is the sample numbers and the state of its generator. After a resume, a sample of the old buffer is read again only when it is
drawn. So the first batch waits for its own samples, not for a whole buffer.
"""

from __future__ import annotations

import random
from array import array
from itertools import islice, repeat
from typing import Any, Iterable, Iterator, MutableSequence

from forebay_loader.resume.cursor import Cursor
from forebay_loader.resume.pass_state import drawn_by, draws_of, refs_of

__all__ = ["LOST", "SampleBuffer", "drawn_refs"]

LOST = object()  # stands for a sample that could not be read again and that a handler skipped
_NOTHING = object()
_UNTOLD = -1  # stands for a batch, which a buffer cannot read again: there is no state then
_LOOKED = 2  # predict twice as many draws as samples held; shards of later draws are opened when they are needed
_UNREAD = object()  # a slot whose sample is not read again yet


class SampleBuffer:
    """The buffer of one stage in one pass. ``rng`` draws; the other arguments are those of ``wds.shuffle``.

    ``samples`` are in the buffer; ``refs`` has the ordinal of each.
    """

    def __init__(self, rng: random.Random, cursor: Cursor, bufsize: int = 1000, initial: int = 100, handler: Any = None) -> None:
        self._rng = rng
        self._size = bufsize
        self._initial = min(initial, bufsize)
        self._again = cursor.again
        self._upstream = cursor.made
        held = cursor.hold("shuffle", self.state, self._made, self._held)
        self.refs = array("i") if held is None else refs_of(held)
        self.samples: list[Any] = [_UNREAD] * len(self.refs)
        self._last = -1
        self._ended = held is not None and bool(held["ended"])
        if held is not None:
            drawn_by(rng, held["rng"])

    def __repr__(self) -> str:
        return f"<SampleBuffer {len(self.samples)}/{self._size}>"

    def state(self) -> dict[str, Any]:
        found = {"kind": "shuffle", "refs": self.refs, "rng": draws_of(self._rng), "ended": self._ended}
        return {**found, "bufsize": self._size, "initial": self._initial}

    def _made(self) -> int:
        return self._last

    def _held(self) -> int:
        return -1 if self._ended else len(self.refs)

    def shuffled(self, data: Iterable[Any]) -> Iterator[Any]:
        """Yield ``data`` in the order of ``wds.shuffle``."""
        samples, refs, upstream, size, initial = self.samples, self.refs, self._upstream, self._size, self._initial
        given = iter(() if self._ended else data)
        if refs and self._again is not None:
            self._again.expect(self._coming())
        try:
            for sample in given:
                samples.append(sample)
                made = upstream()
                refs.append(made if type(made) is int else _UNTOLD)
                if len(samples) < size:
                    more = next(given, _NOTHING)
                    if more is not _NOTHING:
                        samples.append(more)
                        made = upstream()
                        refs.append(made if type(made) is int else _UNTOLD)
                if len(samples) >= initial:
                    found = self._drawn()
                    if found is not LOST:
                        yield found
            self._ended = True
            while samples:
                found = self._drawn()
                if found is not LOST:
                    yield found
        finally:
            samples.clear()  # free the samples of an abandoned pass: a state needs only the numbers

    def _coming(self) -> Iterator[int]:
        """Predict the order in which it will yield the samples it holds, if ``data`` does not end."""
        rng, held = random.Random(), [*self.refs]  # noqa: S311
        rng.setstate(self._rng.getstate())
        arriving = iter(()) if self._ended else repeat(_UNTOLD)
        draws = islice(drawn_refs(rng, held, self._size, self._initial, arriving), _LOOKED * len(held) + self._initial)
        return (ref for ref in draws if ref >= 0)

    def _drawn(self) -> Any:
        samples, refs = self.samples, self.refs
        at = self._rng.randint(0, len(samples) - 1)
        found, self._last = samples[at], refs[at]
        samples[at], refs[at] = samples[-1], refs[-1]
        samples.pop()
        refs.pop()
        if found is _UNREAD:
            return LOST if self._again is None else self._again.one(self._last)
        return found


def drawn_refs(rng: random.Random, held: MutableSequence[int], size: int, initial: int, arriving: Iterator[int]) -> Iterator[int]:
    """Yield what such a buffer yields, with numbers instead of samples. ``held`` and ``rng`` change as the buffer's would."""
    for ref in arriving:
        held.append(ref)
        if len(held) < size:
            held.extend(islice(arriving, 1))
        if len(held) >= initial:
            yield _popped(rng, held)
    while held:
        yield _popped(rng, held)


def _popped(rng: random.Random, held: MutableSequence[int]) -> int:
    at = rng.randint(0, len(held) - 1)
    found, held[at] = held[at], held[-1]
    held.pop()
    return found
