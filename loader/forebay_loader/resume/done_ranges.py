"""Computes which samples a worker is done with: from the ordinals in its state to ranges of sample numbers in each shard. No I/O.

Ordinals number the samples that the tar reader yielded in one worker's pass. A state has the ordinal at which each shard was begun, and the
ordinals that wait in buffers. All others below ``read`` were handed out, or dropped by a stage that would drop them again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from forebay_loader.resume.pass_state import unpacked

__all__ = ["Consumed", "Range", "consumed", "held_refs", "joined"]

Range = tuple[int, int]


class Consumed(NamedTuple):
    """What one worker is done with.

    ``ranges``: the samples of each shard that are done. ``totals``: the lengths of shards that it has read to the end. ``begun``: the
    shards of which it reads all samples, from the first one on.
    """

    ranges: dict[int, list[Range]]
    totals: dict[int, int]
    begun: list[int]


class _Items(NamedTuple):
    """The shards of a pass in order: number, number of the first sample that is read, and its ordinal."""

    shards: list[int]
    firsts: list[int]
    ordinals: list[int]


def joined(ranges: Iterable[Sequence[int]]) -> list[Range]:
    """Sort ``ranges`` and join those that touch or overlap. Empty ones are left out."""
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
    """What the worker of ``state`` is done with, including what was handed out ``since`` that state.

    ``by_pieces``: workers read pieces of shards, so none of them knows where a shard ends.
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
    """Yield (shard, first sample, first ordinal, stop ordinal) for the samples that were read of each shard."""
    stops = [*items.ordinals[1:], read]
    for shard, first, start, stop in zip(*items, stops):  # noqa: B905  # strict= is not of 3.9
        yield shard, first, start, min(stop, read)


def _between(start: int, stop: int, left: Iterable[int]) -> Iterator[Range]:
    """The parts of ``start`` to ``stop`` that are not in ``left``."""
    for each in left:
        yield start, each
        start = each + 1
    yield start, stop


def _striped(start: int, stop: int, left: set[int], stripe: int, stripes: int) -> Iterator[Range]:
    first = start + (stripe - start) % stripes
    return ((each, each + 1) for each in range(first, stop, stripes) if each not in left)


def _ended(items: _Items, over: int | None) -> Iterator[Range]:
    """The samples of each shard that was read to its end: the next one has begun, or the pass was ``over`` at that ordinal."""
    stops: list[int | None] = [*items.ordinals[1:], over]
    for shard, first, start, stop in zip(*items, stops):  # noqa: B905  # strict= is not of 3.9
        if stop is not None:
            yield shard, first + stop - start
