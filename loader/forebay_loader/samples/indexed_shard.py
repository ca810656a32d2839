"""Samples of one shard by number: from the file where all of it is here, else by ranges of the version that its index is of."""

from __future__ import annotations

import os
from functools import partial
from typing import Callable, Iterator, Optional, Sequence, Tuple

from forebay_loader.base.argument_types import check_reading
from forebay_loader.base.errors import ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.identity.reader_name import reader_name
from forebay_loader.samples.byte_window import Flowing
from forebay_loader.samples.faults import tell_faults
from forebay_loader.samples.index_client import Indexed, index_of, needed_index, source_in
from forebay_loader.samples.index_samples import samples_in, starts_at
from forebay_loader.samples.ranged_samples import RangedSamples, Sample, Select, Span
from forebay_loader.stream.descriptor_request import open_descriptor
from forebay_loader.stream.range_reads import SEGMENT_BYTES, SPANS_AT_ONCE, are_sparse, read_range
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.shard_request import shown
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.tar.sample_index import SampleIndex

__all__ = ["IndexedShard", "MemberBytes", "place", "shard_source"]


ReadShard = Callable[..., bytes]  # (at, size, *, sparse=False): ``size`` bytes from ``at``; little is wanted of what lies around them


class MemberBytes:
    """``size`` bytes from ``offset`` of a shard, of which ``read`` gives bytes. It ends with its shard.

    A file that is smaller than a segment has neighbours in it, which the same epoch mostly wants as well: there the segment is best fetched
    once, whole. Of a larger one only what is wanted is asked for, where that is little.
    """

    def __init__(self, read: ReadShard, offset: int, size: int, here: bool = False, of: Tuple[str, str] = ("", "")) -> None:
        """``here``: all of the shard is, as a file. ``of``: the shard's URL, and its ETag."""
        self.size, self.offset = size, offset
        self.here, self.of = here, of
        self._read = read
        self._sparse: Optional[bool] = None  # of what was said to be read next; None: nothing was

    def __repr__(self) -> str:
        return f"<MemberBytes {self.size} from byte {self.offset}>"

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` of the member, fewer only at its end. Raises what reading the shard raises."""
        size = min(size, self.size - at)
        if size <= 0:
            return b""
        sparse = self._lie_sparse([(at, at + size)]) if self._sparse is None else self._sparse
        return self._read(self.offset + at, size, sparse=sparse)

    def expect(self, spans: Sequence[Tuple[int, int]]) -> int:
        """``spans`` of the member, each (offset, end), ascending, are read next, and no others before it is told anew. How many of them to
        ask for at a time."""
        self._sparse = self._lie_sparse(spans)
        return 1 if self.here else SPANS_AT_ONCE

    def _lie_sparse(self, spans: Sequence[Tuple[int, int]]) -> bool:
        return self.size >= SEGMENT_BYTES and are_sparse(spans, self.size)


class IndexedShard:
    """One shard's samples by number: ``len(shard)``, ``shard[k]``, ``shard.samples(start, stop)``. Close it, or use ``with``.

    Args:
        url: The URL of one shard, or the command that prints it. No pattern.
        select_files: Gets a file's name and says whether it is wanted. If no file of a sample is wanted, ``shard[k]`` has only its key, and
            ``samples`` leaves it out.
        limits: How long a reader waits for what, in seconds.
        version: The ETag of a version that the sidecar may still have. It is opened without asking the origin. The default is the present
            version.

    Raises:
        fb.ShardReadError: The shard has no index, with the reason.
        fb.ProxyUnreachable: There is no sidecar.
        fb.ShardChanged: While it is read: the shard was replaced.
        IndexError: There is no sample of that number.

    Examples:
        >>> with fb.IndexedShard("s3://bucket/train-000000.tar") as shard:
        ...     print(len(shard), shard.key(0), sorted(shard[-1]))
        5 000-000 ['__key__', '__url__', 'bin', 'txt']
    """

    def __init__(self, url: str, *, select_files: Optional[Select] = None, limits: Limits = DEFAULT_LIMITS, version: str = "") -> None:
        """As the class says."""
        check_reading(None, select_files, None, limits)
        self.url = url
        self._source = source = shard_source(url)
        self._limits = limits
        self._pid = os.getpid()
        self._opened: Optional[Descriptor] = (
            open_descriptor(source, reader_name(), version=version, parts=True) if select_files is None else None
        )
        try:
            self._indexed = self._index(source, version)
        except BaseException:
            self.close()
            raise
        if select_files is not None and not self._indexed.index.spelled:
            self.close()
            raise ShardReadError(f"{self!r}: names in its tar have suffixes with capitals, which the index does not keep; read it whole")
        if self.index.again or self.index.left_out:
            tell_faults(shown(source), self.index.again, self.index.left_out)
        read = partial(_read_span, source, self.etag, limits)
        self._ranges = RangedSamples(url, self.index, read, select_files)

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
        return self._indexed.index.key(place(number, len(self)))

    def __getitem__(self, number: int) -> Sample:
        index = self._indexed.index
        number = place(number, len(index))
        opened = self._held()
        if opened is not None:  # no object for a file; whoever selects files has opened none
            sample: Sample = {"__key__": index.key(number), "__url__": self.url}
            suffixes, offsets, files = index.suffixes, index.offsets, slice(index.firsts[number], index.firsts[number + 1])
            try:
                found = opened.parts(list(zip(offsets[files], index.sizes[files])))  # noqa: B905  # strict= is not of 3.9
            except OSError as error:
                opened.give_up(offsets[files.start], error)
            else:
                for suffix, data in zip(index.suffix_ids[files], found):  # noqa: B905
                    sample[suffixes[suffix]] = data
                return sample
        return self._ranges.one(number)

    def in_parts(self, number: int, wants: Callable[[str], bool]) -> Sample:
        """Sample ``number``, with ``MemberBytes`` for each file whose suffix ``wants`` names: of these nothing is read yet."""
        key, files = self._ranges.wanted(place(number, len(self)))
        sample: Sample = {"__key__": key, "__url__": self.url}
        of = self._source.url.text(), self.etag
        for suffix, offset, size in files:
            sample[suffix] = MemberBytes(self.read, offset, size, self.mapped, of) if wants(suffix) else self.read(offset, size)
        return sample

    def read(self, at: int, size: int, *, sparse: bool = False) -> bytes:
        """``size`` bytes from ``at``, all of which the shard has: from its file while that is here and can be read, else by ranges.

        ``sparse``: little is wanted of what lies around them.
        """
        opened = self._held()
        if opened is not None:
            try:
                return opened.at(at, size)
            except OSError as error:
                opened.give_up(at, error)
        return read_range(self._source, at, size, self.etag, self._limits, sparse=sparse)

    def samples(self, start: int = 0, stop: Optional[int] = None) -> Iterator[Sample]:
        """Samples ``start`` to ``stop``, in the order of the tar; both as in a slice, from behind where they are negative."""
        start, stop, _ = slice(start, stop).indices(len(self))
        opened = self._held()
        if opened is not None and not self.index.ordered:
            return map(self.__getitem__, range(start, stop))
        if opened is not None:
            first = starts_at(self.index, start)
            return samples_in(Flowing(_Cursor(self, first), first, lone=opened.lone), self.index.length, self.index, self.url, start, stop)
        return self._ranges.between(start, stop)

    def close(self) -> None:
        """Let go of the file. Safe to repeat."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> IndexedShard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self, source: Source, version: str) -> Indexed:
        opened = self._opened
        found = index_of(source, opened.etag, self._limits) if opened is not None else None
        if found is not None and opened is not None and found.index.length == opened.size:
            return found
        self.close()  # the file is of a version whose index is not to be had
        return needed_index(source, self._limits, version)

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
        data = _read_span(self._source, self.etag, self._limits, Span(at, min(at + len(room), self.index.length)))
        room[: len(data)] = data
        return len(data)


class _Cursor:
    """A place in a shard: fills room, and moves on."""

    def __init__(self, shard: IndexedShard, at: int) -> None:
        self._shard = shard
        self._at = at

    def __call__(self, room: memoryview) -> int:
        got = self._shard.into(room, self._at)
        self._at += got
        return got


def shard_source(url: str) -> Source:
    """The shard that ``url`` names. Raises ``ShardReadError`` where the sidecar does not read it."""
    found = source_in(url)
    if found is None:
        raise ShardReadError("only shards that the sidecar reads have an index; this URL or command is left to webdataset")
    return found


def place(number: int, count: int) -> int:
    """``number`` as counted from the front, of ``count``. Raises ``IndexError`` for one that is none."""
    found = number + count if number < 0 else number
    if not 0 <= found < count:
        raise IndexError(f"sample {number} of {count}")
    return found


def _read_span(source: Source, etag: str, limits: Limits, span: Span) -> bytes:
    return read_range(source, span.first, span.end - span.first, etag, limits)
