"""The sample index of one shard: which samples it holds, and where their files lie. Pure, stdlib only.

Encoded, in little-endian:

    magic (8 bytes, with the format's number) | crc32 of all that follows
    flags, samples, members, suffixes, samples whose key came before, links left out (4 bytes each)
    key bytes, suffix bytes, the shard's length (8 bytes each)
    offset of each member's data (8) | its size (8) | first member of each sample, and one past the last (4)
    end of each sample's key (4) | suffix of each member (2) | length of each suffix (2) | keys | suffixes

Arrays, because this is read by each worker for each shard: 6,000 samples decode in a tenth of a millisecond; as JSON they took ten. The
checksum finds what a disk or a wire did to it; its maker walked the whole archive before. Names are UTF-8, odd bytes as surrogates. Flag 1:
suffixes are in lower case in the tar too, so that ``key.suffix`` is the name of the file. Flag 2: no file is a link, so that files lie in
the order of the samples.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from array import array
from dataclasses import dataclass
from typing import Dict, Iterator, NamedTuple, Optional, Set, Tuple, Union

__all__ = [
    "MAX_INDEX_BYTES", "MAX_MEMBERS", "RESERVED", "IndexBuilder", "InvalidIndex", "NotIndexable", "SampleFile", "SampleIndex",
    "counts_in", "decode", "encode", "faults_text", "is_meta", "is_twin", "split_name",
]  # fmt: skip


RESERVED = frozenset(("__key__", "__url__", "__local_path__", "__bad__"))  # what a sample says of itself; as suffixes they collide
_META = re.compile(r"__[^/]*__($|/)")  # members that are about the shard
_TWINS = ("__MACOSX/", "./__MACOSX/")  # folders of them


def split_name(name: str) -> Tuple[Optional[str], str]:
    """``base_plus_ext`` and lower case: a member's key and suffix; no key where it belongs to no sample.

    What ``^((?:.*/|)[^.]+)[.]([^/]*)$`` finds, in one pass: over a name of a hostile tar, 40 KB of "a/", the expression took 4 s, four
    times as long over twice as much, and let no other thread run.
    """
    try:
        key, _, suffix = name.partition(".")
    except (AttributeError, TypeError):  # a rename_files gave something else: told as webdataset's expression tells it
        re.match("", name)
        raise
    if key and suffix and "/" not in suffix:  # nearly every name
        return key, suffix.lower()
    dot = name.find(".", name.rfind("/") + 1)
    if dot < 1:
        return None, ""
    before = name.rfind(".", 0, dot)
    if before >= 0:  # a folder's, or a suffix follows right on a "/": something without a dot must stand between, behind a "/"
        slash = name.find("/", before + 1, dot - 1)
        if slash < 0 or "\n" in name[:slash]:
            return None, ""
    return name[:dot], name[dot + 1 :].lower()


def is_meta(name: str) -> bool:
    """Whether the member is about the shard, or a Mac's about another, and left out."""
    return ("/" not in name and name.startswith("__") and name.endswith("__")) or _META.match(name) is not None or is_twin(name)


def is_twin(name: str) -> bool:
    """Whether a Mac put it beside a file, for that one's attributes (AppleDouble): ``._NAME``, or in a folder ``__MACOSX``."""
    return name.startswith("._", name.rfind("/") + 1) or name.startswith(_TWINS)


# A shard has some ten thousand members. These are for hostile ones, and for what it costs to keep and to send an index: a shard of a
# million members of 1 KB is read faster from its start to its end.
MAX_MEMBERS = 1 << 20
MAX_INDEX_BYTES = 32 << 20
_MAX_NAME_BYTES = 16 << 10
_MAX_SUFFIXES = 1 << 16  # what two bytes tell apart

_MAGIC = b"fbsamp2\n"
_HEAD = struct.Struct("<8sIIIIIIIQQQ")
_CRC_END = 12
_MEMBER_BYTES = 8 + 8 + 2
_SAMPLE_BYTES = 4 + 4
_SPELLED, _ORDERED = 1, 2
_MOST_KEYS = 1 << 18  # that are compared with those behind them


class NotIndexable(ValueError):
    """The shard has no index that tells the same samples as reading it does; the message says why."""


class InvalidIndex(ValueError):
    """The bytes are no index of a version that is known here, or not as they were written."""


class SampleFile(NamedTuple):
    """One file of a sample: ``size`` bytes at ``offset`` of the shard."""

    suffix: str
    offset: int
    size: int


@dataclass(eq=False)
class SampleIndex:
    """The samples of one shard version, by number: from 0, in the order of the tar. ``length`` is the shard's, in bytes.

    The columns are for code that reads all of them fast, and are not to be changed: the members of sample n are those from ``firsts[n]`` to
    ``firsts[n + 1]``, its key ends in ``keys`` at ``key_ends[n]``, a member's suffix is ``suffixes[suffix_ids[member]]``. ``spelled`` says
    whether ``key.suffix`` is how the tar names the file; else the tar has suffixes with capitals. ``ordered``: no file lies before one of
    an earlier sample. ``again``: samples whose key came before, so that they are parts of samples; ``left_out``: links to no earlier file.
    """

    length: int
    firsts: "array[int]"
    keys: bytes
    key_ends: "array[int]"
    offsets: "array[int]"
    sizes: "array[int]"
    suffix_ids: "array[int]"
    suffixes: "list[str]"
    spelled: bool
    ordered: bool = True
    again: int = 0
    left_out: int = 0

    def __repr__(self) -> str:
        return f"<SampleIndex {len(self)} samples, {self.members} members, shard of {self.length} bytes>"

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.key_ends)

    @property
    def members(self) -> int:
        """How many files of samples there are."""
        return len(self.offsets)

    def key(self, number: int) -> str:
        """Raises ``IndexError``."""
        number = self._checked(number)
        start = self.key_ends[number - 1] if number else 0
        return self.keys[start : self.key_ends[number]].decode("utf-8", "surrogateescape")

    def files(self, number: int) -> "list[SampleFile]":
        """The files of sample ``number``, in the order of the tar. Raises ``IndexError``."""
        number = self._checked(number)
        offsets, sizes, ids, suffixes = self.offsets, self.sizes, self.suffix_ids, self.suffixes
        return [SampleFile(suffixes[ids[at]], offsets[at], sizes[at]) for at in range(self.firsts[number], self.firsts[number + 1])]

    def __iter__(self) -> "Iterator[tuple[str, list[SampleFile]]]":
        """Key and files of each sample."""
        return ((self.key(number), self.files(number)) for number in range(len(self)))

    def _checked(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} of a shard that has {len(self)}")
        return number


class IndexBuilder:
    """Takes the members of a whole archive in their order; ``finished`` gives the index.

    Bounded: what would not fit an index is refused with ``NotIndexable`` as soon as that is known.
    """

    def __init__(self) -> None:
        self._offsets, self._sizes = array("Q"), array("Q")
        self._firsts, self._key_ends = array("I", [0]), array("I")
        self._suffix_ids = array("H")
        self._ids: Dict[str, int] = {}
        self._keys = bytearray()
        self._suffix_bytes = 0
        self._key: Optional[str] = None
        self._seen: Set[int] = set()
        self._spelled = self._ordered = True
        self._before: Set[str] = set()  # keys
        self._again = self._left_out = 0

    def __len__(self) -> int:
        """How many members were taken."""
        return len(self._offsets)

    def add(self, name: str, offset: int, size: int, link: bool = False) -> None:
        """One regular file of the archive, or a ``link`` that has the bytes there; -1: it has none. Raises ``NotIndexable``."""
        if is_meta(name):
            return
        key, suffix = split_name(name)
        if key is None or (link and key == self._key and self._ids.get(suffix) in self._seen):  # the sample has that file
            return
        if offset < 0:
            self._left_out += 1
            return
        if key != self._key:
            self._begin(key)
        self._ordered = self._ordered and not link
        self._spelled = self._spelled and name.endswith(suffix)
        number = self._ids.get(suffix)
        if number is None:
            number = self._new_suffix(suffix, key)
        if number in self._seen:
            raise NotIndexable(f"sample {key[:200]!r} has two files {suffix[:100]!r}")
        if len(self._offsets) >= MAX_MEMBERS:
            raise NotIndexable(f"it has more than {MAX_MEMBERS} files")
        self._seen.add(number)
        self._offsets.append(offset)
        self._sizes.append(size)
        self._suffix_ids.append(number)
        self._firsts[-1] += 1

    def finished(self, length: int) -> SampleIndex:
        """The index of the archive, which is a shard of ``length`` bytes."""
        return SampleIndex(
            length, self._firsts, bytes(self._keys), self._key_ends, self._offsets, self._sizes, self._suffix_ids, list(self._ids),
            self._spelled, self._ordered, self._again, self._left_out,
        )  # fmt: skip

    def _begin(self, key: str) -> None:
        self._again += key in self._before
        if len(self._before) < _MOST_KEYS:
            self._before.add(key)
        self._keys += key.encode("utf-8", "surrogateescape")
        self._check_bytes(key)
        self._key_ends.append(len(self._keys))
        self._firsts.append(self._firsts[-1])
        self._key = key
        self._seen.clear()

    def _new_suffix(self, suffix: str, key: str) -> int:
        if suffix in RESERVED:
            raise NotIndexable(f"sample {key[:200]!r} has a file named {suffix!r}, which a sample calls something else")
        self._suffix_bytes += len(suffix.encode("utf-8", "surrogateescape"))
        self._check_bytes(suffix)
        if len(self._ids) >= _MAX_SUFFIXES:
            raise NotIndexable(f"its files have more than {_MAX_SUFFIXES} different suffixes")
        return self._ids.setdefault(suffix, len(self._ids))

    def _check_bytes(self, name: str) -> None:
        if len(name) > _MAX_NAME_BYTES // 4:  # characters, each up to four bytes
            raise NotIndexable(f"the name {name[:60]!r}… is longer than {_MAX_NAME_BYTES // 4} characters")
        names = len(self._keys) + self._suffix_bytes + 2 * len(self._ids)
        if _HEAD.size + names + len(self._key_ends) * _SAMPLE_BYTES + len(self._offsets) * _MEMBER_BYTES > MAX_INDEX_BYTES:
            raise NotIndexable(f"its index would be larger than {MAX_INDEX_BYTES} bytes")


def encode(index: SampleIndex) -> bytes:
    """``index`` in its one form: equal indexes, equal bytes."""
    suffixes = [suffix.encode("utf-8", "surrogateescape") for suffix in index.suffixes]
    named = b"".join(suffixes)
    head = _HEAD.pack(
        _MAGIC, 0, _SPELLED * index.spelled + _ORDERED * index.ordered, len(index), index.members, len(suffixes), index.again,
        index.left_out, len(index.keys), len(named), index.length,
    )  # fmt: skip  # the checksum comes last
    arrays = (index.offsets, index.sizes, index.firsts, index.key_ends, index.suffix_ids, array("H", map(len, suffixes)))
    body = b"".join((head[_CRC_END:], *map(_little, arrays), index.keys, named))
    return _MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def decode(data: "bytes | memoryview") -> SampleIndex:
    """What ``encode`` made. Raises ``InvalidIndex``."""
    view = memoryview(data)
    if len(view) < _HEAD.size or bytes(view[:8]) != _MAGIC:
        raise InvalidIndex("no sample index, or of another version")
    _, crc, flags, samples, members, suffix_count, again, left_out, key_bytes, suffix_bytes, length = _HEAD.unpack_from(view)
    size = _HEAD.size + members * _MEMBER_BYTES + samples * _SAMPLE_BYTES + 4 + suffix_count * 2 + key_bytes + suffix_bytes
    if size != len(view) or size > MAX_INDEX_BYTES + (1 << 20) or not samples <= members <= MAX_MEMBERS:
        raise InvalidIndex(f"a sample index of {len(view)} bytes, which says that it has {size}")
    if zlib.crc32(view[_CRC_END:]) != crc:
        raise InvalidIndex("a sample index whose checksum is wrong")
    parts = _Parts(view)
    offsets, sizes = parts.array("Q", members), parts.array("Q", members)
    firsts, key_ends = parts.array("I", samples + 1), parts.array("I", samples)
    suffix_ids, suffix_lengths = parts.array("H", members), parts.array("H", suffix_count)
    keys, named = parts.take(key_bytes), parts.take(suffix_bytes)
    ends_right = firsts[0] == 0 and firsts[-1] == members and (key_ends[-1] if samples else 0) == key_bytes
    if not ends_right or sum(suffix_lengths) != suffix_bytes or not _all_below(suffix_ids, suffix_count):
        raise InvalidIndex("a sample index whose parts do not fit")
    spelled, ordered = bool(flags & _SPELLED), bool(flags & _ORDERED)
    names = _split(named, suffix_lengths)
    return SampleIndex(length, firsts, keys, key_ends, offsets, sizes, suffix_ids, names, spelled, ordered, again, left_out)


def counts_in(encoded: "bytes | memoryview") -> "Tuple[int, int, int]":
    """How many samples an encoded index tells of, of them ``again``, and ``left_out``; it is taken for right."""
    head = _HEAD.unpack_from(encoded)
    return head[3], head[6], head[7]


def faults_text(again: Union[int, str], left_out: Union[int, str]) -> str:
    """What ``again`` and ``left_out`` of a shard mean, numbers or words, and what to do; "" where nothing is amiss."""
    said = []
    if again:
        said.append(
            f"{again} of its samples have a key that came before another key: the files of a sample do not lie side by side, and each part "
            "counts as a sample; write the tar in order of names (GNU tar: --sort=name)"
        )
    if left_out:
        said.append(
            f"{left_out} hard or symbolic links to no earlier file of the tar are left out of their samples; write the files themselves "
            "(GNU tar: --dereference --hard-dereference)"
        )
    return "; ".join(said)


class _Parts:
    """Takes an encoded index apart."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = _HEAD.size

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        return bytes(self._view[start : self._at])

    def array(self, code: str, count: int) -> "array[int]":
        found = array(code)
        start, self._at = self._at, self._at + count * found.itemsize
        found.frombytes(self._view[start : self._at])
        if sys.byteorder == "big":
            found.byteswap()
        return found


def _all_below(numbers: "array[int]", limit: int) -> bool:
    """Whether each of ``numbers``, of two bytes, is less than ``limit``; without an object for each where that is a byte."""
    if limit > 256:
        return not numbers or max(numbers) < limit
    raw = _little(numbers)
    return not raw[1::2].strip(b"\0") and not raw[::2].translate(None, bytes(range(limit)))


def _little(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def _split(joined: bytes, lengths: "array[int]") -> "list[str]":
    found, at = [], 0
    for length in lengths:
        found.append(sys.intern(joined[at : at + length].decode("utf-8", "surrogateescape")))
        at += length
    return found
