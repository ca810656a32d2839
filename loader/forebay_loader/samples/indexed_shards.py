"""``fb.IndexedShards(urls)``: the samples of many shards as one sequence, for a sampler of your own or a map-style data set.

It reads on demand and announces nothing: of a shard that is not in the cache only the segments that hold what is asked for are fetched.
"""

from __future__ import annotations

import bisect
import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from forebay_loader.base.argument_types import check_reading
from forebay_loader.base.errors import ShardChanged
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.samples.index_client import needed_index
from forebay_loader.samples.indexed_shard import IndexedShard, place, shard_source
from forebay_loader.samples.ranged_samples import Sample, Select
from forebay_proxy.wire.urls.patterns import expand

if TYPE_CHECKING:
    from forebay_loader.videos.clip_stage import ClipStage

__all__ = ["IndexedShards"]

OPEN_SHARDS = 8  # files and leases that one process keeps


class IndexedShards(Sequence[Sample]):
    """The samples of many shards as one sequence, in the order of ``urls``: ``len(samples)``, ``samples[k]``. It can be pickled.

    It asks for the index of each shard when it is made. ``forebay index`` makes indexes ahead.

    Args:
        urls: A brace pattern, several joined by ``::``, or a list of URLs.
        select_files: Gets a file's name and says whether it is wanted. Only these bytes are requested.
        video: ``fb.video(…)`` for samples with clips. Each sample then has ``frames``, ``mask``, ``video`` and ``audio`` instead of the
            clip. If the shard is not cached, only the bytes of the chosen frames are requested. With ``replace_corrupt`` the next sample
            replaces one whose clip cannot be decoded.
        limits: How long a reader waits for what, in seconds.

    Raises:
        fb.ShardReadError: A shard has no index. The text names the first.
        fb.ProxyUnreachable: There is no sidecar.
        fb.ShardChanged: While it is read: a shard was replaced.
        ValueError: The list is empty.
        TypeError: One of ``urls`` is no URL.

    Examples:
        >>> samples = fb.IndexedShards("s3://bucket/train-{000000..000002}.tar")
        >>> loader = DataLoader(samples, batch_size=5, shuffle=True, num_workers=0)
        >>> [len(batch["txt"]) for batch in loader]
        [5, 5, 5]
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str]],
        *,
        select_files: Optional[Select] = None,
        video: Optional[ClipStage] = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        check_reading(None, select_files, None, limits)
        self.urls = [one for url in _listed(urls) for one in expand(url)]
        if not self.urls:
            raise ValueError("the list of shards is empty")
        self._select = select_files
        self._video = video
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
        number = place(number, self._ends[-1])
        if self._video is not None:
            return self._video.by_number(self._in_parts, number, len(self))
        shard, at = self._place(number)
        return self._shard(shard)[at]

    def __iter__(self) -> Iterator[Sample]:
        if self._video is not None:
            yield from (self[number] for number in range(len(self)))
            return
        for at in range(len(self.urls)):
            yield from self._shard(at).samples()

    def close(self) -> None:
        """Let go of all files."""
        for shard in self._open.values():
            shard.close()
        self._open.clear()

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def _place(self, number: int) -> Tuple[int, int]:
        """The shard of sample ``number``, and its number in there."""
        shard = bisect.bisect_right(self._ends, number)
        return shard, number - (self._ends[shard - 1] if shard else 0)

    def _in_parts(self, number: int) -> Sample:
        assert self._video is not None
        shard, at = self._place(number)
        return self._shard(shard).in_parts(at, self._video.wants)

    def _known(self, url: str) -> Tuple[str, int]:
        """Version and number of samples; the index itself is asked for again when it is used: all of them need not fit into memory."""
        found = needed_index(shard_source(url), self._limits)
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
