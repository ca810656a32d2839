"""Which samples a worker is done with, by shard: from the ordinals of its state to ranges of sample numbers. Pure.

An ordinal counts what the tar reader gave in one worker's pass. A state says at which ordinal each shard was begun, and which ordinals wait
in buffers; all others below ``read`` were handed out, or dropped by a stage, which would drop them again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from forebay_loader.resume.pass_state import unpacked

__all__ = ["Consumed", "Range", "consumed", "held_refs", "joined"]

Range = tuple[int, int]


class Consumed(NamedTuple):
    """Of one worker: by shard the ``ranges`` of samples that it is done with, and the ``totals`` of the shards it has read to their end.

    ``begun`` are the shards that it read from their first sample on, all of their samples.
    """

    ranges: dict[int, list[Range]]
    totals: dict[int, int]
    begun: list[int]


class _Items(NamedTuple):
    """The shards of a pass, in order: which, the number of the first sample that is read, and its ordinal."""

    shards: list[int]
    firsts: list[int]
    ordinals: list[int]


def joined(ranges: Iterable[Sequence[int]]) -> list[Range]:
    """``ranges`` in order, those that touch or overlap as one; empty ones left out."""
    found: list[Range] = []
    for start, stop in sorted((one[0], one[1]) for one in ranges):
        if start >= stop:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


def held_refs(state: Mapping[str, Any]) -> set[int]:
    """The ordinals that wait in the buffers of a worker's ``state``."""
    return {ref for buffer in state.get("buffers", ()) for ref in unpacked(buffer.get("refs", ""))}


def consumed(state: Mapping[str, Any], since: Mapping[str, Any], *, by_pieces: bool = False) -> Consumed:
    """What the worker of ``state`` is done with, and what was ``handed`` out ``since``, of shards that were begun since too.

    ``by_pieces``: workers read pieces of shards, so that none knows where a shard ends.
    """
    items = _Items(*([*unpacked(state[name]), *unpacked(since.get(name, ""))] for name in _Items._fields))
    stripe, stripes = state.get("stripe", (0, 1))
    handed = sorted(set(unpacked(since.get("handed", ""))))
    held = sorted(held_refs(state).difference(handed))
    read = int(state["read"])
    ranges: dict[int, list[Range]] = {}
    for shard, first, start, stop in _read(items, read):
        moved = first - start
        left = held[bisect_left(held, start) : bisect_left(held, stop)]
        each = _between(start, stop, left) if stripes == 1 else _striped(start, stop, set(left), stripe, stripes)
        ranges.setdefault(shard, []).extend((one + moved, end + moved) for one, end in each)
    for ordinal in handed[bisect_left(handed, read) :]:
        at = bisect_right(items.ordinals, ordinal) - 1
        number = ordinal - items.ordinals[at] + items.firsts[at]
        ranges.setdefault(items.shards[at], []).append((number, number + 1))
    totals = {} if by_pieces else dict(_ended(items, read if state.get("over") else None))
    whole = not by_pieces and stripes == 1
    begun = [shard for shard, first in zip(items.shards, items.firsts) if whole and not first]  # noqa: B905  # strict= is not of 3.9
    return Consumed({shard: joined(each) for shard, each in ranges.items()}, totals, begun)


def _read(items: _Items, read: int) -> Iterator[tuple[int, int, int, int]]:
    """Shard, first sample, first ordinal and the ordinal behind the last, of what was read of each shard."""
    stops = [*items.ordinals[1:], read]
    for shard, first, start, stop in zip(*items, stops):  # noqa: B905  # strict= is not of 3.9
        yield shard, first, start, min(stop, read)


def _between(start: int, stop: int, left: Iterable[int]) -> Iterator[Range]:
    """What of ``start`` to ``stop`` is not ``left``."""
    for each in left:
        yield start, each
        start = each + 1
    yield start, stop


def _striped(start: int, stop: int, left: set[int], stripe: int, stripes: int) -> Iterator[Range]:
    first = start + (stripe - start) % stripes
    return ((each, each + 1) for each in range(first, stop, stripes) if each not in left)


def _ended(items: _Items, over: int | None) -> Iterator[Range]:
    """The samples of each shard behind whose end the worker is: the next one has begun, or the pass was ``over`` at that ordinal."""
    stops: list[int | None] = [*items.ordinals[1:], over]
    for shard, first, start, stop in zip(*items, stops):  # noqa: B905  # strict= is not of 3.9
        if stop is not None:
            yield shard, first + stop - start
