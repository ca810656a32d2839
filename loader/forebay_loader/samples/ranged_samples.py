"""Samples of one shard by their numbers, of bytes that are asked for part by part: neighbours in one request, nothing that is not wanted.

A request brings files that lie ``MERGE_BYTES`` apart or less, and at most ``SPAN_BYTES``, unless one file is larger.
"""

from __future__ import annotations

import bisect
from operator import itemgetter
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from forebay_proxy.wire.tar.sample_index import SampleFile, SampleIndex

__all__ = ["RangedSamples", "Sample", "Select", "Span", "spans"]

MERGE_BYTES = 64 << 10  # a gap that costs less than another request
SPAN_BYTES = 4 << 20  # a request; what is in memory at a time

Sample = Dict[str, Any]
Select = Callable[[str], bool]


class Span(NamedTuple):
    """Bytes that one request brings."""

    first: int
    end: int


def spans(files: Iterable[SampleFile], *, merge: int = MERGE_BYTES, most: int = SPAN_BYTES) -> List[Span]:
    """The requests for ``files``: neighbours together."""
    found: List[Span] = []
    for file in sorted(files, key=itemgetter(1, 2)):  # a link's bytes lie before
        end = file.offset + file.size
        if found and file.offset - found[-1].end <= merge and end - found[-1].first <= most:
            found[-1] = Span(found[-1].first, max(end, found[-1].end))  # hostile headers let files overlap
        else:
            found.append(Span(file.offset, end))
    return found


class RangedSamples:
    """The samples of the shard ``url`` by its ``index``. ``read`` gives the bytes of a span; ``select`` (None: all) names the files."""

    def __init__(self, url: str, index: SampleIndex, read: Callable[[Span], bytes], select: Optional[Select] = None) -> None:
        self._url = url
        self._index = index
        self._read = read
        self._select = select

    def __repr__(self) -> str:
        return f"<RangedSamples {len(self._index)} of {self._url.partition('?')[0]}>"

    def one(self, number: int) -> Sample:
        """Sample ``number``; only its key where none of its files is wanted. Raises what ``read`` raises."""
        return self._samples([self.wanted(number)])[0]

    def wanted(self, number: int) -> Tuple[str, List[SampleFile]]:
        """Key and wanted files of sample ``number``."""
        key, files = self._index.key(number), self._index.files(number)
        select = self._select
        return key, files if select is None else [file for file in files if select(f"{key}.{file.suffix}")]

    def between(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples ``start`` to ``stop`` of which a file is wanted, as many at a time as one request may bring.

        Raises what ``read`` raises; ``ValueError`` where two files of one sample have one name.
        """
        together: List[Tuple[str, List[SampleFile]]] = []
        size = 0  # of links, whose bytes may lie anywhere
        for number in range(start, stop):
            key, files = self.wanted(number)
            if not files:
                continue
            if together and together[-1][0] == key:  # what stood between them is not wanted: one sample, however far apart
                together[-1] = key, _joined(key, together[-1][1], files)
                continue
            span = files[-1].offset + files[-1].size - together[0][1][0].offset if together else 0
            more = 0 if self._index.ordered else sum(file.size for file in files)
            if together and max(span, size + more) > SPAN_BYTES:
                yield from self._samples(together)
                together, size = [], 0
            size += more
            together.append((key, files))
        if together:
            yield from self._samples(together)

    def _samples(self, wanted: "List[Tuple[str, List[SampleFile]]]") -> List[Sample]:
        every = [file for _, files in wanted for file in files]
        parts = {span: self._read(span) for span in spans(every)}
        firsts = [span.first for span in parts]
        found = list(parts.items())

        def content(file: SampleFile) -> bytes:
            span, data = found[bisect.bisect_right(firsts, file.offset) - 1]
            return data[file.offset - span.first : file.offset - span.first + file.size]

        return [{"__key__": key, "__url__": self._url, **{file.suffix: content(file) for file in files}} for key, files in wanted]


def _joined(key: str, files: List[SampleFile], more: List[SampleFile]) -> List[SampleFile]:
    twice = {file.suffix for file in files} & {file.suffix for file in more}
    if twice:
        raise ValueError(f"{key}: duplicate file name in tar file {sorted(twice)}")
    return [*files, *more]
