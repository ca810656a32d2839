"""The shards that a pass began, in order, and which ordinals their samples have."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections import Counter
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from forebay_loader.base.shown_text import shown_shard
from forebay_loader.plan.known_lists import passes_shards_on
from forebay_loader.resume.pass_state import PassState
from forebay_loader.samples.shard_name import VisitedShard, shard_name

__all__ = ["ITEM", "LISTED", "ROUNDS", "BegunShards", "Items", "left", "version_of"]

ITEM = "item"  # key of an opened shard: the item's number in the pass
LISTED = "listed"  # key of an opened shard: its number in the data set's list
_OURS = '"fb-'  # an ETag that the sidecar made, for an origin that gives none
ROUNDS = 20  # times the number of shards: the probability that one of them was never read is then e**-20


class Items(NamedTuple):
    """For each shard that was begun: its number in the list, the number of its first sample, and the ordinal of that sample."""

    shards: "array[int]"
    firsts: "array[int]"
    ordinals: "array[int]"

    def since(self, count: int) -> Items:
        return Items(self.shards[count:], self.firsts[count:], self.ordinals[count:])


class BegunShards:
    """The shards begun in one pass over the list ``urls``.

    ``began`` is the state that the pass resumes. ``etags`` are the versions of shards that other passes read in part, by number in the
    list.
    """

    def __init__(self, urls: Sequence[str], began: Optional[PassState], etags: Optional[Mapping[int, str]] = None) -> None:
        self.parted = dict(etags or {})
        self.items = Items(array("i"), array("i"), array("i"))
        self._etags: dict[int, str] = {}
        self._urls = urls
        self._numbers: dict[str, int] = {}
        self._unlisted: Counter[str] = Counter()  # shards that are not in the list: no state can name them
        if began is not None:
            self.items = Items(began.shards[:], began.firsts[:], began.ordinals[:])
            self._etags = dict(began.etags)

    def __repr__(self) -> str:
        return f"<{len(self)} shards begun>"

    def __len__(self) -> int:
        return len(self.items.shards)

    def are_all_empty(self) -> bool:
        """If no shard had a sample so far: whether enough were begun that every shard of the list must have been among them."""
        return 0 < ROUNDS * len(self._urls) < len(self)

    def begin(self, item: Any, ordinal: int) -> None:
        """``item`` is opened next. Its first sample will have ``ordinal``."""
        number = self.number(item)
        if number in self.parted:
            self._etags[len(self)] = self.parted[number]
        self.items.shards.append(number)
        self.items.firsts.append(item["samples"][0] if isinstance(item, dict) and "samples" in item else 0)
        self.items.ordinals.append(ordinal)

    def number(self, item: Any) -> int:
        """The number in the list: the one that the list gave it, else that of the last shard with this name; -1 if there is none."""
        if isinstance(item, dict) and LISTED in item:
            return int(item[LISTED])
        if not self._numbers:
            self._numbers = {url: at for at, url in enumerate(self._urls)}
        return self._numbers.get(str(item.get("url") if isinstance(item, dict) else item), -1)

    def place(self, ordinal: int) -> tuple[int, int]:
        """Return (item, number of the sample in its shard)."""
        _, firsts, ordinals = self.items
        item = bisect_right(ordinals, ordinal) - 1
        return item, ordinal - ordinals[item] + firsts[item]

    def url(self, item: int) -> str:
        found: str = self.visited(item, self._urls[self.items.shards[item]])
        return found

    def visited(self, item: int, url: Any) -> Any:
        """``url`` of ``item``, marked with its shard and how often the pass has visited that shard before.

        Random draws for samples use the mark. Parts of a shard that begin at different samples count as one visit.
        """
        shards, firsts, _ = self.items
        shard = shards[item]
        if not isinstance(url, str):
            return url
        if shard < 0:
            name = shard_name(url)
            self._unlisted[name] += 1
            return VisitedShard.of(url, name, self._unlisted[name] - 1)
        earlier = shards[:item]
        before = sum(one == shard and firsts[at] == firsts[item] for at, one in enumerate(earlier)) if shard in earlier else 0
        return VisitedShard.of(url, shard, before)

    def version(self, item: int) -> str:
        """The ETag of the version that was read; "" if there is none, as for a local file."""
        found = self._etags.get(item, "")
        return found if found.endswith('"') else ""

    def etags_since(self, count: int) -> dict[int, str]:
        """The known versions of the items after the first ``count``."""
        return {item: self._etags[item] for item in range(count, len(self)) if item in self._etags}

    def etags_from(self, ordinal: int) -> dict[str, str]:
        """The known versions of the item of ``ordinal`` and all later ones."""
        oldest = max(0, self.place(ordinal)[0]) if len(self) else 0
        return {str(item): etag for item, etag in self.etags_since(oldest).items()}

    def opened(self, opened: Mapping[str, Any]) -> None:
        """Record the version of ``opened``, which has a stream now. Raises ``ValueError`` as ``check_version``."""
        item, etag = opened[ITEM], version_of(opened["stream"])
        self.check_version(item, etag)
        if etag:
            self._etags[item] = etag

    def check_version(self, item: int, etag: str) -> None:
        """Raise ``ValueError`` if the shard of ``item`` had another version than ``etag`` when the state was taken."""
        was = self._etags.get(item, "")
        if was and etag and was != etag and was.startswith(_OURS) == etag.startswith(_OURS):
            raise ValueError(
                f"shard {shown_shard(self.url(item))} has changed: the state that was loaded was taken in its version {was}, and it is "
                f"{etag} now, so nobody can tell which of its samples are left. Bring that version back; or set_epoch(n) without a state "
                "begins epoch n from its start"
            )

    @property
    def strange(self) -> str:
        """Why the shards cannot be found again: one of them is not in the list; "" if all are."""
        at = next((at for at, shard in enumerate(self.items.shards) if shard < 0), -1)
        return f"shard {at + 1} of its pass is not in the list" if at >= 0 else ""


@passes_shards_on
def left(items: Iterator[Any], begun: BegunShards, count: int) -> Iterator[Any]:
    """Yield the last of the ``count`` ``items`` that were begun, and all after it. Raises ``ValueError`` if the first items are not those
    begun.
    """
    for at, was in enumerate(begun.items.shards[:count]):
        item = next(items, None)
        found = -1 if item is None else begun.number(item)
        if found != was:
            raise ValueError(
                f"the state that was loaded cannot be resumed: shard {at + 1} of its pass was number {was} of the list and is "
                f"{'none' if item is None else f'number {found}'} now; does a splitter of your own give others?"
            )
        if at == count - 1:
            yield item
    yield from items


def version_of(stream: Any) -> str:
    """What distinguishes versions of an opened shard: its ETag, or length and change time of a file; "" if unknown."""
    etag = getattr(stream, "etag", "")
    if isinstance(etag, str) and etag:
        return etag
    try:
        facts = os.fstat(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return ""
    return f"file-{facts.st_size}-{facts.st_mtime_ns}" if facts.st_size else ""
