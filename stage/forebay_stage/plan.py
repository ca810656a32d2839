"""Which samples come into which output shard. Pure: numbers in, pieces of parts out.

The parts of phase 1 have their samples in the order of SRC; ``ends`` says where each sample ends in the part's tar, and the next begins. So
a piece of a part is the tar of some neighbouring samples, and an output shard is a list of pieces. A shuffle is a permutation that is
computed for each number by itself: no list of all samples is kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from tarfile import BLOCKSIZE, RECORDSIZE
from typing import NamedTuple

from forebay_proxy.wire.tar.sample_index import SampleIndex
from forebay_stage.spec import StageSpec

__all__ = ["Part", "Piece", "estimated_outputs", "outputs", "permuted", "sample_ends"]

PIECE_BYTES = 4 << 20  # neighbours that are read by one request: its latency no longer counts, and sixteen in memory are little
_ROUNDS = 6


@dataclass(frozen=True)
class Part:
    """What phase 1 made of one shard of SRC; ``ends[n]``: where sample n ends, in bytes."""

    name: str
    ends: array[int]


class Piece(NamedTuple):
    """``size`` bytes at ``offset`` of the part ``name``: whole samples."""

    name: str
    offset: int
    size: int


def sample_ends(index: SampleIndex) -> array[int]:
    """Where each sample of a tar without gaps ends."""
    lasts = (first - 1 for first in index.firsts[1:])
    return array("Q", (index.offsets[last] + index.sizes[last] + 511 & -512 for last in lasts))


def outputs(parts: Sequence[Part], spec: StageSpec) -> Iterator[list[Piece]]:
    """The pieces of each output shard, in order. Neither count nor size asked for: as many shards as there are parts."""
    before = [0, *accumulate(len(part.ends) for part in parts)]  # samples before each part
    total = before[-1]
    numbers: Iterable[int] = range(total) if spec.shuffle is None else map(partial(permuted, total=total, seed=spec.shuffle), range(total))
    spans = (_span(parts, before, number) for number in numbers)
    if spec.bytes_per_shard is not None:
        yield from _cut(spans, _by_size(spec.bytes_per_shard))
    elif total:
        count = spec.samples_per_shard or -(-total // len(parts))
        yield from _cut(spans, lambda samples, _: samples >= count)


def estimated_outputs(parts: Sequence[Part], spec: StageSpec) -> int:
    """How many ``outputs`` gives: exactly, unless they go by size."""
    total = sum(len(part.ends) for part in parts)
    if spec.bytes_per_shard is not None:
        return -(-sum(part.ends[-1] for part in parts if part.ends) // spec.bytes_per_shard)
    return -(-total // (spec.samples_per_shard or max(1, -(-total // len(parts)))))


def permuted(number: int, total: int, seed: int) -> int:
    """Where the permutation ``seed`` of ``range(total)`` has ``number``: a Feistel network, walked until it is in range."""
    bits = max(1, (total - 1).bit_length() + 1 >> 1)
    mask = (1 << bits) - 1
    while True:
        left, right = number >> bits, number & mask
        for turn in range(_ROUNDS):
            mixed = blake2b(b"%d %d %d" % (seed, turn, right), digest_size=8).digest()
            left, right = right, left ^ int.from_bytes(mixed, "little") & mask
        number = left << bits | right
        if number < total:
            return number


def _span(parts: Sequence[Part], before: Sequence[int], number: int) -> Piece:
    at = bisect_right(before, number) - 1  # of parts without samples the last: the one behind them has it
    part, inside = parts[at], number - before[at]
    start = part.ends[inside - 1] if inside else 0
    return Piece(part.name, start, part.ends[inside] - start)


def _by_size(limit: int) -> Callable[[int, int], bool]:
    """A sample that is larger than ``limit`` has a shard of its own."""
    return lambda samples, size: samples > 0 and -(-(size + 2 * BLOCKSIZE) // RECORDSIZE) * RECORDSIZE > limit  # as a tar ends


def _cut(spans: Iterable[Piece], is_full: Callable[[int, int], bool]) -> Iterator[list[Piece]]:
    """``is_full(samples, bytes)``: of the shard before the next sample, and its size with that one."""
    pieces: list[Piece] = []
    samples = size = 0
    for span in spans:
        if is_full(samples, size + span.size):
            yield pieces
            pieces, samples, size = [], 0, 0
        last = pieces[-1] if pieces else None
        if last and last.name == span.name and last.offset + last.size == span.offset and last.size + span.size <= PIECE_BYTES:
            pieces[-1] = Piece(last.name, last.offset, last.size + span.size)
        else:
            pieces.append(span)
        samples, size = samples + 1, size + span.size
    if pieces:
        yield pieces
