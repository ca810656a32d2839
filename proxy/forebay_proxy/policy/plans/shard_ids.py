"""Shards by number: every name that a plan or a set mentions has one, whatever way it came. Pure.

A list brings its shards with it. A *template* (a brace pattern and indices into it; LAION-5B is 585,270 URLs in one nested brace string)
brings none: for each of its shards the catalog keeps eight bytes, the template and the index in it, and makes the name or the shard on
request. A plan or set retains a number once for each mention; the number is freed with the last one.

Numbers come from a table of 64-bit hashes in arrays (``NameTable``), 16 bytes a name and half a dozen of slack. They are dense, start at 1
and are used again after they were given back, so that whatever is known by number can live in arrays too.

*Linear hashing* (Litwin 1980): the table grows by one bucket at a time, when a name comes in. A dict was tried: of 585,270 names it takes
107 bytes each where this takes 16, and one insertion holds the event loop for 30 ms where the longest here takes 1. An entry of a plan
then takes 181 bytes instead of 58, of the 150 that ``benchmarks/registration.py`` allows; it would be registered in two thirds of the
processor time.

Two names with one hash would share a number. The hash is Python's own (SipHash under a key of this process: nobody outside can aim at
it), and among two million names one run in eight million meets one such pair. It would cost a wrong guess of need: the one is fetched
ahead where the other was meant. Never a wrong byte: what a reader gets goes by the name itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from weakref import WeakValueDictionary

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.sets.templates import Block, Entries, PatternBlock, Picked, Template
from forebay_proxy.wire.urls.quoting import InvalidShardUrl

__all__ = ["NameTable", "ShardIds"]

_FIRST_BUCKETS = 8


class ShardIds:
    """Every name with a number. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._table = NameTable()
        self._mentions = array("I", [0])  # by number: how often it is mentioned
        self._block = array("I", [0])  # by number: where among the blocks; 0 for a shard of a list
        self._index = array("I", [0])  # by number: which text of its block
        self._shards: dict[int, Shard] = {}  # by number: those of lists
        self._blocks: list[Block | None] = [None]
        self._vacant: list[int] = []  # places among the blocks
        self.held_bytes = 0  # of names and patterns, roughly what they take in memory beside the arrays
        self._texts: WeakValueDictionary[str, PatternBlock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<ShardIds {len(self)} names, {len(self._shards)} of them from lists>"

    def __len__(self) -> int:
        return len(self._table)

    # What is there

    def number(self, name: str) -> int | None:
        """The number of the shard named so; None if nothing mentions it."""
        return self._table.find(hash(name)) or None

    def name(self, number: int) -> str:
        """The name of a number that is retained."""
        block = self._blocks[self._block[number]]
        return self._shards[number].name if block is None else block.name(self._index[number])

    def shard(self, number: int) -> Shard:
        """The shard of a number that is retained, as it was first mentioned; made on demand for a template, then without headers."""
        block = self._blocks[self._block[number]]
        return self._shards[number] if block is None else block.shard(self._index[number])

    def hash_of(self, number: int) -> int:
        """``hash`` of the name of a number that is retained."""
        return self._table.hash_of(number)

    def strangers(self, numbers: Sequence[int], entries: Entries, start: int) -> dict[int, Shard]:
        """Those of ``entries[start:]``, whose ``numbers`` these are, that ``shard`` would give otherwise: another credential, or URL."""
        if isinstance(entries, Picked):
            return self._strangers_of(entries.template, numbers, entries.indices[start : start + len(numbers)])
        return {
            number: shard
            for number, shard in zip(numbers, entries[start : start + len(numbers)], strict=True)
            if self._shards.get(number) is not shard and shard != self.shard(number)
        }

    def _strangers_of(self, template: Template, numbers: Sequence[int], indices: Sequence[int]) -> dict[int, Shard]:
        found, block, place = dict[int, Shard](), template.block, template.block.place
        for number, index in zip(numbers, indices, strict=True):
            if place and self._block[number] == place:
                continue
            other = self._blocks[self._block[number]]
            same = other is not None and other.text(self._index[number]) == block.text(index)
            if not same and block.shard(index) != self.shard(number):
                found[number] = template.shard(index)
            block.drop(index)  # it is known by another text
        return found

    def template(self, text: str, headers: tuple[tuple[str, str], ...] = (), first: int = 0) -> Template:
        """The shards that a brace pattern stands for; ``headers`` are for the host of the one at ``first``.

        Raises ``InvalidPattern``, and ``InvalidShardUrl`` where the headers would have no host.
        """
        block = self._texts.get(text)
        if block is None:
            block = self._texts[text] = PatternBlock(text)
        return Template(block, headers, first)

    # Who mentions it

    def ids(self, entries: Entries) -> array[int]:
        """The numbers of ``entries``, retained once more for each time it is there. Raises ``InvalidShardUrl``, and retains none then."""
        return self.retain(entries, 0, len(entries))

    def retain(self, entries: Entries, start: int, stop: int) -> array[int]:
        """The same for a slice of ``entries``."""
        numbers = array("I")
        try:
            if isinstance(entries, Picked):
                block = entries.template.block
                for index in entries.indices[start:stop]:
                    numbers.append(self._retain_text(block, index))
            else:
                for shard in entries[start:stop]:
                    numbers.append(self._retain_shard(shard))
        except InvalidShardUrl as error:
            place = start + len(numbers)
            self.release(numbers)
            raise InvalidShardUrl(f"entry {place}: {error}") from None
        return numbers

    def retain_again(self, numbers: Iterable[int]) -> None:
        """Numbers that are retained already are mentioned once more."""
        for number in numbers:
            self._mentions[number] += 1

    def _retain_text(self, block: Block, index: int) -> int:
        hashed = hash(block.name(index))
        number = self._table.find(hashed)
        if number:
            self._mentions[number] += 1
            return number
        number = self._new(hashed)
        if not block.place:
            self._place(block)
        block.owned += 1
        self._block[number], self._index[number] = block.place, index
        return number

    def _retain_shard(self, shard: Shard) -> int:
        hashed = hash(shard.name)
        number = self._table.find(hashed)
        if number:
            self._mentions[number] += 1
            return number
        number = self._new(hashed)
        self._shards[number] = shard
        self.held_bytes += len(shard.name)
        return number

    def _new(self, hashed: int) -> int:
        number = self._table.add(hashed)
        if number < len(self._mentions):
            self._mentions[number] = 1
        else:
            self._mentions.append(1)
            self._block.append(0)
            self._index.append(0)
        return number

    def _place(self, block: Block) -> None:
        """``block`` owns its first number: from now on it stays as long as it owns any."""
        if self._vacant:
            block.place = self._vacant.pop()
            self._blocks[block.place] = block
        else:
            block.place = len(self._blocks)
            self._blocks.append(block)
        self.held_bytes += block.weight

    def release(self, numbers: Iterable[int]) -> None:
        """Each of ``numbers`` is mentioned once less; what nothing mentions any more is forgotten."""
        for number in numbers:
            self._mentions[number] -= 1
            if not self._mentions[number]:
                self._forget(number)

    def _forget(self, number: int) -> None:
        block = self._blocks[self._block[number]]
        if block is None:
            self.held_bytes -= len(self._shards.pop(number).name)
        else:
            self._block[number] = 0
            block.owned -= 1
            block.drop(self._index[number])
            if not block.owned:
                self._vacant.append(block.place)
                self._blocks[block.place], block.place = None, 0
                self.held_bytes -= block.weight
        self._table.remove(number)
        if not len(self):
            self._mentions, self._block, self._index = array("I", [0]), array("I", [0]), array("I", [0])
            self._blocks, self._vacant = [None], []


class NameTable:
    """Hash -> number. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._hashes = array("q", [0])  # by number; number 0 is nobody
        self._next = array("I", [0])  # by number: the next one in its bucket
        self._free = array("I")
        self._begin()

    def _begin(self) -> None:
        self._heads = array("I", [0]) * _FIRST_BUCKETS
        self._mask = _FIRST_BUCKETS - 1  # of the buckets that are not split yet in this round
        self._split = 0  # the bucket to be split next

    def __len__(self) -> int:
        return len(self._hashes) - 1 - len(self._free)

    def _bucket(self, hashed: int) -> int:
        bucket = hashed & self._mask
        return bucket if bucket >= self._split else hashed & (2 * self._mask + 1)

    def find(self, hashed: int) -> int:
        """The number of the name with this hash; 0 if it has none."""
        bucket = hashed & self._mask
        if bucket < self._split:
            bucket = hashed & (2 * self._mask + 1)
        number, hashes = self._heads[bucket], self._hashes
        while number and hashes[number] != hashed:
            number = self._next[number]
        return number

    def hash_of(self, number: int) -> int:
        return self._hashes[number]

    def add(self, hashed: int) -> int:
        """A number for a name that has none."""
        if self._free:
            number = self._free.pop()
            self._hashes[number] = hashed
        else:
            number = len(self._hashes)
            self._hashes.append(hashed)
            self._next.append(0)
        bucket = self._bucket(hashed)
        self._next[number], self._heads[bucket] = self._heads[bucket], number
        if len(self._hashes) > len(self._heads):
            self._grow()
        return number

    def _grow(self) -> None:
        """One bucket more: part of the bucket whose turn it is moves there."""
        number = self._heads[self._split]
        wide, beside = 2 * self._mask + 1, self._split + self._mask + 1
        self._heads[self._split] = 0
        self._heads.append(0)
        while number:
            after = self._next[number]
            bucket = self._hashes[number] & wide
            assert bucket in (self._split, beside)
            self._next[number], self._heads[bucket] = self._heads[bucket], number
            number = after
        self._split += 1
        if self._split > self._mask:
            self._mask, self._split = wide, 0

    def remove(self, number: int) -> None:
        """Give ``number`` back."""
        bucket = self._bucket(self._hashes[number])
        before, at = 0, self._heads[bucket]
        while at != number:
            before, at = at, self._next[at]
        if before:
            self._next[before] = self._next[number]
        else:
            self._heads[bucket] = self._next[number]
        self._next[number] = 0
        self._free.append(number)
        if not len(self):
            self._hashes, self._next, self._free = array("q", [0]), array("I", [0]), array("I")
            self._begin()
