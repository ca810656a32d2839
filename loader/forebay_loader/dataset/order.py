"""Which shards are read, in what order, by whom: the order of all first, f(seed, epoch), then a fair split. Pure.

Because every rank and worker computes the same order and takes its share of it, all of them together read each shard exactly once a
pass, and another order the next pass, without a word between them.
"""

from __future__ import annotations

import random
from hashlib import blake2b
from itertools import count
from typing import Iterator, NamedTuple, Sequence

__all__ = ["Part", "epoch_order", "resampled_order", "split", "worker_part"]


class Part(NamedTuple):
    """What one worker reads: these shards, of each every ``stripes``-th sample beginning with number ``stripe``."""

    shards: list[int]
    stripe: int = 0
    stripes: int = 1


def epoch_order(n: int, seed: int, epoch: int, turn: int = 0) -> list[int]:
    """A permutation of ``range(n)``; ``turn`` counts the passes within one epoch (``with_epoch`` may need several)."""
    order = list(range(n))
    random.Random(_key(seed, epoch, turn)).shuffle(order)  # noqa: S311  # a text as seed: the same on every machine, and no two alike
    return order


def resampled_order(n: int, seed: int, epoch: int, turn: int = 0, *, first: int = 0, step: int = 1) -> Iterator[int]:
    """Endless draws from ``range(n)``, with replacement: of one common sequence those at ``first``, ``first + step``, …

    Each draw is made from its place alone, so a worker makes its own and skips nobody else's.
    """
    key = _key(seed, epoch, turn).encode()
    for place in count(first, step):
        yield int.from_bytes(blake2b(b"%s/%d" % (key, place), digest_size=8).digest(), "big") % n  # uneven by n in 2**64


def split(order: Sequence[int], rank: int, size: int) -> list[int]:
    """Every ``size``-th beginning with ``rank``, as webdataset splits."""
    return list(order[rank::size])


def worker_part(shards: Sequence[int], worker: int, workers: int) -> Part:
    """The part of one worker in what its rank reads. Fewer shards than workers: they share one, sample by sample, so that none is idle."""
    if workers <= len(shards) or not shards:
        return Part(split(shards, worker, workers))
    at = worker % len(shards)
    return Part([shards[at]], worker // len(shards), len(range(at, workers, len(shards))))


def _key(seed: int, epoch: int, turn: int) -> str:
    return f"{seed}/{epoch}/{turn}" if turn else f"{seed}/{epoch}"
