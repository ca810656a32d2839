"""Samples by number, and only the files that are wanted: from the file where all of it is here, else by ranges.

``fb.IndexedShards(urls)`` is a sequence of samples over many shards, for a sampler of your own or a map-style data set. It reads on demand
and announces nothing: of a shard that is not in the cache only the segments that hold what is asked for are fetched, in requests of
neighbours (``MERGE_BYTES`` apart or less), each of at most ``SPAN_BYTES``.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from forebay_loader.base.argument_types import check_reading
from forebay_loader.base.errors import ShardChanged, ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.identity.reader_name import reader_name
from forebay_loader.samples.byte_window import Flowing
from forebay_loader.samples.index_client import (
    Indexed,
    index_of,
    needed_index,
    samples_in,
    source_in,
    starts_at,
)
from forebay_loader.stream.range_reads import read_range
from forebay_loader.stream.shard_descriptor import Descriptor, open_descriptor
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.tar.sample_index import SampleFile, SampleIndex
from forebay_proxy.wire.urls.patterns import expand

__all__ = ["IndexedShard", "IndexedShards", "ranged", "spans"]

MERGE_BYTES = 64 << 10  # a gap that costs less than another request
SPAN_BYTES = 4 << 20  # a request; what is in memory at a time
OPEN_SHARDS = 8  # files and leases that one process keeps

Sample = Dict[str, Any]
Select = Callable[[str], bool]


class Span(NamedTuple):
    """Bytes that one request brings."""

    first: int
    end: int


def spans(files: Iterable[SampleFile], *, merge: int = MERGE_BYTES, most: int = SPAN_BYTES) -> List[Span]:
    """The requests for ``files``, which are in the order of the shard: neighbours together."""
    found: List[Span] = []
    for file in files:
        end = file.offset + file.size
        if found and file.offset - found[-1].end <= merge and end - found[-1].first <= most:
            found[-1] = Span(found[-1].first, max(end, found[-1].end))  # hostile headers let files overlap
        else:
            found.append(Span(file.offset, end))
    return found


class IndexedShard:
    """One shard's samples by number: ``len(shard)``, ``shard[k]``, ``shard.samples(start, stop)``. Close it, or use ``with``.

    Example::

        with fb.IndexedShard("s3://bucket/train-000000.tar") as shard:
            print(len(shard), shard.key(0), shard[-1].keys())

    - ``url``: of one shard, or the command that prints it; no pattern.
    - ``select_files``: gets a file's name, says whether it is wanted; a sample of which none is wanted has only its key in ``shard[k]``,
      and is left out of ``samples``.
    - ``limits``: how long to wait for what, a ``fb.Limits``.

    Raises ``fb.ShardReadError`` with the reason where the shard has no index (now), ``fb.ProxyUnreachable`` without a sidecar,
    ``fb.ShardChanged`` while it is read, ``IndexError`` for a number that is none.
    """

    def __init__(self, url: str, *, select_files: Optional[Select] = None, limits: Limits = DEFAULT_LIMITS) -> None:
        """As the class says."""
        check_reading(None, select_files, None, limits)
        self.url = url
        self._source = source = _source(url)
        self._select = select_files
        self._limits = limits
        self._pid = os.getpid()
        self._opened: Optional[Descriptor] = open_descriptor(source, reader_name()) if select_files is None else None
        try:
            self._indexed = self._index(source)
        except BaseException:
            self.close()
            raise
        if select_files is not None and not self._indexed.index.spelled:
            self.close()
            raise ShardReadError(f"{self!r}: names in its tar have suffixes with capitals, which the index does not keep; read it whole")

    def __repr__(self) -> str:
        return f"<IndexedShard {self._source.url.text().partition('?')[0]}, {'mapped' if self.mapped else 'by ranges'}>"

    def __len__(self) -> int:
        return len(self._indexed.index)

    @property
    def forked(self) -> bool:
        """Whether another process opened it."""
        return self._pid != os.getpid()

    @property
    def mapped(self) -> bool:
        """Whether all of it is here as a file. A process that was forked since has no part in that, and reads it by ranges."""
        return self._opened is not None and not self._opened.closed

    @property
    def index(self) -> SampleIndex:
        return self._indexed.index

    @property
    def etag(self) -> str:
        """Of the version its index is of."""
        return self._indexed.etag

    def key(self, number: int) -> str:
        """The ``__key__`` of sample ``number``."""
        return self._indexed.index.key(_place(number, len(self)))

    def __getitem__(self, number: int) -> Sample:
        index = self._indexed.index
        number = _place(number, len(index))
        opened = self._held()
        if opened is not None:  # no object for a file; whoever selects files has opened none
            sample: Sample = {"__key__": index.key(number), "__url__": self.url}
            suffixes, ids, offsets, sizes, first = index.suffixes, index.suffix_ids, index.offsets, index.sizes, index.firsts[number]
            try:
                for at in range(first, index.firsts[number + 1]):
                    sample[suffixes[ids[at]]] = opened.at(offsets[at], sizes[at])
            except OSError as error:
                opened.give_up(offsets[first], error)
            else:
                return sample
        return self._read([self._wanted(number)])[0]

    def samples(self, start: int = 0, stop: Optional[int] = None) -> Iterator[Sample]:
        """Samples ``start`` to ``stop``, in the order of the tar; both as in a slice, from behind where they are negative."""
        start, stop, _ = slice(start, stop).indices(len(self))
        if self.mapped:
            first = starts_at(self.index, start)
            return samples_in(Flowing(_Cursor(self, first), first, lone=self.lone), self.index.length, self.index, self.url, start, stop)
        return self._ranged(start, stop)

    def close(self) -> None:
        """Let go of the file. Safe to repeat."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> IndexedShard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self, source: Source) -> Indexed:
        opened = self._opened
        found = index_of(source, opened.etag, self._limits) if opened is not None else None
        if found is not None and opened is not None and found.index.length == opened.size:
            return found
        self.close()  # the file is of a version whose index is not to be had
        return needed_index(source, self._limits)

    def _held(self) -> Optional[Descriptor]:
        return self._opened if self.mapped else None

    def into(self, room: memoryview, at: int) -> int:
        """Bytes from ``at``, into ``room``: how many, 0 at the end. From the file while that is here and can be read, else by ranges."""
        opened = self._held()
        if opened is not None:
            try:
                return opened.into(room, at)
            except OSError as error:
                opened.give_up(at, error)
        data = self._bytes(Span(at, min(at + len(room), self.index.length)))
        room[: len(data)] = data
        return len(data)

    def lone(self, at: int, size: int) -> Optional[bytes]:
        """``size`` bytes from ``at`` of the file; None where that is not here, or cannot be read."""
        opened = self._held()
        return None if opened is None else opened.lone(at, size)

    def _wanted(self, number: int) -> Tuple[str, List[SampleFile]]:
        key, files = self.index.key(number), self.index.files(number)
        select = self._select
        return key, files if select is None else [file for file in files if select(f"{key}.{file.suffix}")]

    def _ranged(self, start: int, stop: int) -> Iterator[Sample]:
        """As many samples at a time as one request may bring."""
        together: List[Tuple[str, List[SampleFile]]] = []
        for number in range(start, stop):
            key, files = self._wanted(number)
            if not files:
                continue
            if together and together[-1][0] == key:  # what stood between them is not wanted: one sample, however far apart
                together[-1] = key, _joined(key, together[-1][1], files)
                continue
            if together and files[-1].offset + files[-1].size - together[0][1][0].offset > SPAN_BYTES:
                yield from self._read(together)
                together = []
            together.append((key, files))
        if together:
            yield from self._read(together)

    def _read(self, wanted: "List[Tuple[str, List[SampleFile]]]") -> List[Sample]:
        every = [file for _, files in wanted for file in files]
        parts = {span: self._bytes(span) for span in spans(every)}
        firsts = [span.first for span in parts]
        found = list(parts.items())

        def content(file: SampleFile) -> bytes:
            span, data = found[bisect.bisect_right(firsts, file.offset) - 1]
            return data[file.offset - span.first : file.offset - span.first + file.size]

        return [{"__key__": key, "__url__": self.url, **{file.suffix: content(file) for file in files}} for key, files in wanted]

    def _bytes(self, span: Span) -> bytes:
        return read_range(self._source, span.first, span.end - span.first, self._indexed.etag, self._limits)


class _Cursor:
    """A place in a shard: fills room, and moves on."""

    def __init__(self, shard: IndexedShard, at: int) -> None:
        self._shard = shard
        self._at = at

    def __call__(self, room: memoryview) -> int:
        got = self._shard.into(room, self._at)
        self._at += got
        return got


def ranged(
    opened: Dict[str, Any], start: int = 0, stop: Optional[int] = None, limits: Limits = DEFAULT_LIMITS, *, only_kept: bool = False
) -> Optional[Iterator[Sample]]:
    """Samples ``start`` to ``stop`` of what an opener gave (``{"url", "stream"[, "local_path"]}``), without reading what comes before.

    None where that cannot be: it is a stream, or its index is not to be had (``only_kept``: or not made yet). The stream stays the
    caller's to close.
    """
    stream, url = opened["stream"], opened["url"]
    source = source_in(url) if isinstance(stream, Descriptor) and isinstance(url, str) else None
    found = index_of(source, stream.etag, limits, only_kept=only_kept) if source is not None else None
    if found is None or found.index.length != stream.size:
        return None
    window = Flowing(stream.readinto1, stream.skip(starts_at(found.index, start)), stream.skip, stream.lone)
    return samples_in(window, stream.size, found.index, url, start, stop, opened.get("local_path"))


class IndexedShards(Sequence[Sample]):
    """The samples of many shards as one sequence, in the order of ``urls``. Pickles; opens what it needs.

    Example::

        samples = fb.IndexedShards("s3://bucket/train-{000000..000999}.tar")    # forebay index makes what it needs, ahead
        loader = DataLoader(samples, batch_size=64, shuffle=True, num_workers=8)

    - ``urls``: a brace pattern, several joined by ``::``, or a list of them.
    - ``select_files``: gets a file's name, says whether it is wanted; only these bytes are asked for.
    - ``limits``: how long to wait for what, a ``fb.Limits``.

    Building it asks for the index of each shard. Raises ``fb.ShardReadError`` naming the first that has none, ``ValueError`` for an empty
    list, ``TypeError`` for what is no URL, ``fb.ProxyUnreachable`` without a sidecar; ``fb.ShardChanged`` when a shard is replaced later.
    """

    def __init__(self, urls: Union[str, Sequence[str]], *, select_files: Optional[Select] = None, limits: Limits = DEFAULT_LIMITS) -> None:
        check_reading(None, select_files, None, limits)
        self.urls = [one for url in _listed(urls) for one in expand(url)]
        if not self.urls:
            raise ValueError("the list of shards is empty")
        self._select = select_files
        self._limits = limits
        self._open: OrderedDict[int, IndexedShard] = OrderedDict()
        known = [self._known(url) for url in self.urls]
        self._etags = [etag for etag, _ in known]
        self._ends = list(itertools.accumulate(count for _, count in known))

    def __repr__(self) -> str:
        return f"<IndexedShards {len(self)} samples in {len(self.urls)} shards>"

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        number = _place(number, self._ends[-1])
        shard = bisect.bisect_right(self._ends, number)
        return self._shard(shard)[number - (self._ends[shard - 1] if shard else 0)]

    def __iter__(self) -> Iterator[Sample]:
        for at in range(len(self.urls)):
            yield from self._shard(at).samples()

    def close(self) -> None:
        """Let go of all files."""
        for shard in self._open.values():
            shard.close()
        self._open.clear()

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def _known(self, url: str) -> Tuple[str, int]:
        """Version and number of samples; the index itself is asked for again when it is used: all of them need not fit into memory."""
        found = needed_index(_source(url), self._limits)
        return found.etag, len(found.index)

    def _shard(self, at: int) -> IndexedShard:
        found = self._open.get(at)
        if found is not None and (found.mapped or not found.forked):
            self._open.move_to_end(at)
            return found
        found = IndexedShard(self.urls[at], select_files=self._select, limits=self._limits)
        if found.etag != self._etags[at]:
            found.close()
            raise ShardChanged(f"{found!r} was replaced since this sequence was built: build it anew")
        self._open[at] = found
        while len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)[1].close()
        return found


def _listed(urls: Any) -> List[str]:
    """Patterns, one by one; a string may join some with ``::``, as webdataset takes it. Raises ``TypeError``."""
    found = (
        urls.split("::") if isinstance(urls, str) else list(urls) if isinstance(urls, Iterable) and not isinstance(urls, bytes) else [urls]
    )
    for at, url in enumerate(found):
        if not isinstance(url, str):
            raise TypeError(f"a shard is named by a string; entry {at} of {len(found)} is {type(url).__name__}")
    return found


def _source(url: str) -> Source:
    found = source_in(url)
    if found is None:
        raise ShardReadError("only shards that the sidecar reads have an index; this URL or command is left to webdataset")
    return found


def _place(number: int, count: int) -> int:
    place = number + count if number < 0 else number
    if not 0 <= place < count:
        raise IndexError(f"sample {number} of {count}")
    return place


def _joined(key: str, files: List[SampleFile], more: List[SampleFile]) -> List[SampleFile]:
    twice = {file.suffix for file in files} & {file.suffix for file in more}
    if twice:
        raise ValueError(f"{key}: duplicate file name in tar file {sorted(twice)}")
    return [*files, *more]
