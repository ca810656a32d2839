"""Tars of every kind, well formed and not: by ``tarfile`` in each of its formats, and header by header by hand."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from forebay_proxy.wire.tar.members import BadTar, Member, Walk
from forebay_proxy.wire.tar.sample_index import is_twin

__all__ = [
    "END",
    "archives",
    "hand_header",
    "members",
    "names",
    "numbered_clips",
    "padded",
    "pax_block",
    "shard_of_samples",
    "shards",
    "written",
]


END = bytes(1024)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
Entry = tuple[str, bytes]

_keys = st.one_of(
    st.sampled_from(["000", "001", "001", "a", "b", "A", "__x__", "__x", "_x", "..", "", "é", "日本"]),
    st.text(alphabet="ab0_é", min_size=1, max_size=4),
    st.text(alphabet="ab", min_size=90, max_size=160),
)
_folders = st.sampled_from(["", "", "", "", "./", "d/", "d/e/", "v1.0/", "../", "a/../", "__m__/", "d/__m__/", "l" * 120 + "/", "d\nn/"])
_endings = st.sampled_from([".jpg", ".JPG", ".cls", ".json", ".seg.png", "", ".", "..", ".__key__", ".__url__", ".__bad__", ".t\nx", ".é"])


def names() -> st.SearchStrategy[str]:
    """File names, also those that belong to no sample, are about the shard, or need a long name; no Mac's twins, which webdataset gives."""
    return st.builds(lambda folder, key, ending: folder + key + ending, _folders, _keys, _endings).filter(lambda name: not is_twin(name))


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def hand_header(name: bytes, size: int, *, kind: bytes = b"0", style: str = "octal", signed: bool = False, prefix: bytes = b"") -> bytes:
    """One header block. ``style`` is how numbers are written: octal, spaced, unended (twelve digits), base256."""
    spelled = {
        "octal": b"%011o\0" % size,
        "spaced": b"%11o " % size,
        "unended": b"%012o" % size,
        "base256": b"\x80" + size.to_bytes(11, "big"),
        "short": (b"%o\0" % size).ljust(12, b"\0"),
    }[style]
    block = bytearray(512)
    block[: len(name)] = name
    block[100:124] = b"0000644\0" * 3
    block[124:136] = spelled
    block[136:148] = b"14371573300\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[345 : 345 + len(prefix)] = prefix
    total = sum(block) - (256 * sum(byte > 127 for byte in block) if signed else 0)
    block[148:156] = b"%06o\0 " % total if style != "spaced" else b"%7o\0" % total
    return bytes(block)


def pax_block(records: dict[str, str], kind: bytes = b"x") -> bytes:
    """An extended header with its data."""
    text = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode("utf-8", "surrogateescape")
        length = len(rest)
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        text += str(length).encode() + rest
    return hand_header(b"PaxHeader", len(text), kind=kind) + padded(text)


def written(entries: Sequence[tuple[str, Any]], format: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> bytes:
    """By ``tarfile``; content None makes a folder, a string a symbolic link. Names that the format has no room for are left out."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format) as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.mtime = mtime  # type: ignore[assignment]  # webdataset's own writer gives a float
            if not isinstance(content, bytes):
                entry.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
                entry.linkname = content or ""
            else:
                entry.size = len(content)
            try:
                tar.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
            except (ValueError, UnicodeError):
                continue
    return made.getvalue()


@st.composite
def _by_hand(draw: Any) -> bytes:
    parts = []
    for name in draw(st.lists(names(), max_size=8)):
        data = draw(_contents)
        raw = name.encode("utf-8")
        before = b""
        way = draw(st.sampled_from(["plain", "plain", "plain", "times", "path", "size", "long", "comment", "prefix", "global", "other"]))
        style = draw(st.sampled_from(["octal", "octal", "octal", "spaced", "unended", "base256", "short"]))
        kind = draw(st.sampled_from([b"0", b"0", b"0", b"0", b"\0", b"7", b"5", b"1", b"V"]))
        size, prefix = len(data), b""
        if way == "times":
            before = pax_block({"mtime": "1700000000.5", "atime": "1700000001"})
        elif way == "path":
            before, raw = pax_block({"path": name}), b"short"
        elif way == "size":
            before, size = pax_block({"size": str(size)}), 0
        elif way == "long":
            before = hand_header(b"././@LongLink", len(raw) + 1, kind=b"L") + padded(raw + b"\0")
        elif way == "comment":
            before = pax_block({"comment": "path=x size=3", "SCHILY.xattr.user.x": "y"})
        elif way == "prefix":
            prefix = b"p/q"
        elif way == "global":
            before = pax_block({"comment": "x"}, b"g")
        elif way == "other":
            before = hand_header(b"volume", 0, kind=b"V")
        if len(raw) > 100 and way != "long":
            raw = raw[:100].decode("utf-8", "ignore").encode()
        signed = draw(st.booleans())
        holds = kind not in b"15" and not (kind == b"\0" and raw.endswith(b"/"))
        header = hand_header(raw[:100], size, kind=kind, style=style, signed=signed, prefix=prefix)
        parts.append(before + header + (padded(data) if holds else b""))
    return b"".join(parts) + END


_contents = st.one_of(st.binary(max_size=40), st.integers(0, 3000).map(lambda n: bytes(range(256)) * (n // 256) + bytes(n % 256)))
_entries = st.lists(st.tuples(names(), st.one_of(_contents, _contents, _contents, st.none(), st.just("target"))), max_size=10)


def archives() -> st.SearchStrategy[bytes]:
    """Whole, well-formed archives."""
    return st.one_of(
        st.builds(written, _entries, st.sampled_from(FORMATS), st.sampled_from([0, 1700000000.123])),
        _by_hand(),
    )


def shards() -> st.SearchStrategy[list[bytes]]:
    """A few shards; keys meet at their borders."""
    return st.lists(archives(), min_size=1, max_size=3)


def shard_of_samples(*samples: dict[str, bytes], first: int = 0) -> bytes:
    """A tar of ``samples``, by suffix; their keys are numbers from ``first``, of four digits."""
    return written(
        [(f"{number:04}.{suffix}", content) for number, sample in enumerate(samples, first) for suffix, content in sample.items()]
    )


def numbered_clips(clips: Sequence[bytes], first: int = 0) -> bytes:
    """A tar of a sample for each of ``clips``: ``mp4``, and ``json`` with its ``number``."""
    samples = [{"mp4": clip, "json": json.dumps({"number": number}).encode()} for number, clip in enumerate(clips, first)]
    return shard_of_samples(*samples, first=first)


def members(view: bytes | memoryview, start: int = 0) -> Iterator[Member]:
    """The regular files of a whole archive, in order. ``start`` is the first header to read. Raises ``BadTar``."""
    walk = Walk(lambda offset, size: bytes(view[offset : offset + size]))
    member = walk.member(start)
    while member is not None:
        if member.end > len(view):
            raise BadTar("cut", len(view), "unexpected end of data")
        if member.regular:
            yield member
        member = walk.member(member.end)
