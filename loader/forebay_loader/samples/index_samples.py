"""Samples of a shard by its index: no header is looked at. The hot loops of the loader: local names, no object for a file.

Bytes come through a window that one ``preadv`` fills for some 25 samples of 10 KB. That costs a second copy; a call for each file costs
more, up to ``LARGE_BYTES``. A map needs neither, but a page of it that the disk cannot read is SIGBUS. With its pages and the file's length
checked for each group of samples just before they are copied, a map was hardly faster: 3.1 us for a sample of 10 KB and its class against
3.4 here, 17.6 us for one of 100 KB against 18.7 (2.0 and 9.2 us unchecked). And time would be left between the check and the copy.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Optional

from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.samples.byte_window import Flowing, Lone
from forebay_loader.samples.index_client import index_of, source_in
from forebay_loader.samples.ranged_samples import Sample
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_proxy.wire.tar.sample_index import SampleIndex

__all__ = ["indexed_samples", "samples_in", "starts_at"]

LARGE_BYTES = 24 << 10  # files of this mean size are read one by one: a call each costs less than a second copy

Samples = Iterator[Dict[str, Any]]


def samples_in(window: Flowing, length: int, index: SampleIndex, url: Any, start: int = 0, stop: Optional[int] = None) -> Samples:
    """Samples ``start`` to ``stop`` of a shard of ``length`` bytes under ``window``: ``bytes``. Raises ``ValueError``.

    ``window`` begins where ``starts_at`` says, or before. The same as reading the tar from its start gives, without looking at a header.
    """
    if length != index.length:
        raise ValueError(f"an index of a shard of {index.length} bytes, and this one has {length}")
    stop = len(index) if stop is None else min(stop, len(index))
    if start >= stop:
        return
    if index.offsets[-1] + index.sizes[-1] > length:
        raise ValueError(f"the index tells of bytes beyond the {length} of the shard")
    first, last = index.firsts[start], index.firsts[stop]
    spanned = index.offsets[last - 1] + index.sizes[last - 1] - index.offsets[first]  # a sum of all sizes costs 0.3 ms a shard
    if window.lone is not None and spanned >= LARGE_BYTES * (last - first):
        yield from _large(window, window.lone, index, url, start, stop)
    else:
        yield from _together(window, index, url, start, stop)


def starts_at(index: SampleIndex, number: int) -> int:
    """The first byte that samples from ``number`` on need."""
    return index.offsets[index.firsts[number]] if number < len(index) else index.length


def _together(window: Flowing, index: SampleIndex, url: Any, start: int, stop: int) -> Samples:
    firsts, offsets, sizes, ids, suffixes = index.firsts, index.offsets, index.sizes, index.suffix_ids, index.suffixes
    key, member = _keys(index, start), firsts[start]
    buffer, base, limit = window.buffer, window.base, window.end
    for number in range(start, stop):
        sample = {"__key__": key(number), "__url__": url}
        end = firsts[number + 1]
        while member < end:
            at = offsets[member]
            until = at + sizes[member]
            if until > limit:
                _bring(window, at, until)
                buffer, base, limit = window.buffer, window.base, window.end
            sample[suffixes[ids[member]]] = buffer[at - base : until - base]
            member += 1
        yield sample


def _large(window: Flowing, lone: Lone, index: SampleIndex, url: Any, start: int, stop: int) -> Samples:
    """Each file by a call of its own, while that can be."""
    firsts, offsets, sizes, ids, suffixes = index.firsts, index.offsets, index.sizes, index.suffix_ids, index.suffixes
    key, member = _keys(index, start), firsts[start]
    for number in range(start, stop):
        sample = {"__key__": key(number), "__url__": url}
        end = firsts[number + 1]
        while member < end:
            at, size = offsets[member], sizes[member]
            value = lone(at, size)
            if value is None:
                _bring(window, at, at + size)
                value = window.read(at, size)
            sample[suffixes[ids[member]]] = value
            member += 1
        yield sample


def _bring(window: Flowing, at: int, until: int) -> None:
    """Have bytes ``at`` to ``until`` in the window. Raises ``ValueError`` where the shard ends before."""
    if until > window.end:
        window.more(at, until - at)
    if until > window.end:
        raise ValueError(f"the index tells of bytes {at} to {until}, and only {max(window.end - at, 0)} of them came")


def _keys(index: SampleIndex, start: int) -> "Callable[[int], str]":
    """Gives the keys of samples from ``start`` on, in turn; of plain text they are cut from one."""
    keys, ends = index.keys, index.key_ends
    at = ends[start - 1] if start else 0
    plain = keys.isascii()
    text: Any = keys.decode("ascii") if plain else keys

    def key(number: int) -> str:
        nonlocal at
        begin, at = at, ends[number]
        found: Any = text[begin:at]
        return str(found) if plain else str(found, "utf-8", "surrogateescape")

    return key


def indexed_samples(
    opened: Dict[str, Any], start: int = 0, stop: Optional[int] = None, limits: Limits = DEFAULT_LIMITS, *, only_kept: bool = False
) -> Optional[Iterator[Sample]]:
    """Samples ``start`` to ``stop`` of what an opener gave (``{"url", "stream"}``), without reading what comes before.

    None where that cannot be: it is a stream, or its index is not to be had (``only_kept``: or not made yet, or tells of what must be told
    to who reads), or links lead back in the shard. The stream stays the caller's to close.
    """
    stream, url = opened["stream"], opened["url"]
    source = source_in(url) if isinstance(stream, Descriptor) and isinstance(url, str) else None
    found = index_of(source, stream.etag, limits, only_kept=only_kept) if source is not None else None
    if found is None or found.index.length != stream.size or not found.index.ordered:
        return None
    if only_kept and (found.index.again or found.index.left_out):
        return None
    window = Flowing(stream.readinto1, stream.skip(starts_at(found.index, start)), stream.skip, stream.lone)
    return samples_in(window, stream.size, found.index, url, start, stop)
