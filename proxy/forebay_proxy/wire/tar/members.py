"""The members of a tar archive, as ``tarfile`` reads them: ustar, GNU long names, pax, base-256 sizes. Pure, stdlib only.

POSIX.1-2001 and GNU tar. ``tarfile`` in a stream ends an archive silently at the first header it cannot read, wherever that is; here every
end but the marker (two blocks of zeros) is a ``BadTar`` that says what it was. Sparse members are refused.
"""

from __future__ import annotations

import posixpath
import re
from itertools import chain
from typing import Callable, Dict, NamedTuple, Optional, Tuple

from forebay_proxy.wire.tar.header import BLOCK_BYTES, ENCODING, ZEROS, BadTar, Header, at_start, blocks, decoded, number, parsed

__all__ = ["BLOCK_BYTES", "BadTar", "Links", "Member", "Walk", "blocks", "decoded", "links_before", "number", "plain_path"]


MARKER_BYTES = 2 * BLOCK_BYTES
_REGULAR = frozenset(b"0\x007")  # and the old "contiguous", which is the same on every system there is
_WITHOUT_DATA = frozenset(b"123456")  # links, devices, folders, pipes: whatever their size says
_PAX_RECORD = re.compile(rb"(\d+) ([^=]+)=")
_CHARSET = b" hdrcharset="
_SLICE_BYTES = 1 << 20  # of zeros compared at a time

Read = Callable[[int, int], bytes]


class Member(NamedTuple):
    """One entry: its data is ``size`` bytes at ``offset``; ``start`` is its first header, ``end`` where the next one begins.

    ``target``: of a hard or symbolic link to another member, that one's name, as ``plain_path`` writes it.
    """

    name: str
    offset: int
    size: int
    start: int
    end: int
    regular: bool
    target: str = ""


class Walk:
    """Walks headers. ``read(offset, n)`` gives n bytes, fewer only where the archive's bytes end. Global pax headers are remembered."""

    def __init__(self, read: Read, most_global: Optional[int] = None) -> None:
        """``most_global``: characters of global headers that are remembered, for who reads any archive; more of them are a ``BadTar``."""
        self._read = read
        self._most_global = most_global
        self.globals: Dict[str, str] = {}

    def member(self, at: int) -> Optional[Member]:
        """The member whose first header is at ``at``; None at the end marker, behind which nothing but zeros is allowed."""
        block = self._read(at, BLOCK_BYTES)
        if block == ZEROS:
            self._check_marker(at)
            return None
        try:
            return self._member(at, block)
        except BadTar as bad:
            if at == 0 and bad.kind in ("header", "no-end"):
                raise at_start(bad, block) from None
            raise

    def _member(self, at: int, block: bytes) -> Member:
        start, pax = at, dict(self.globals)
        name: Optional[str] = None
        size: Optional[int] = None
        link: Optional[str] = None
        extended = False
        while True:
            header = self._header(at, block, extended)
            data = at + BLOCK_BYTES
            if header.kind not in b"LKxgX":
                break
            text = self._payload(data, header.size)
            if header.kind == ord("L") and name is None:  # the first one stands, as it is the outermost
                name = decoded(text)
            elif header.kind == ord("K") and link is None:
                link = decoded(text)
            elif header.kind in b"xX":
                own = {**self.globals, **self._pax(text, at)}
                _refuse_sparse(own, at)
                if name is None and "path" in own:
                    name = own["path"].rstrip("/")
                size = _size(own) if size is None and "size" in own else size
                link = own.get("linkpath") if link is None else link
            elif header.kind == ord("g"):
                self.globals.update(self._pax(text, at))
                if self._most_global is not None and sum(map(len, chain.from_iterable(self.globals.items()))) > self._most_global:
                    raise BadTar("header", at, f"global headers of more than {self._most_global} characters")
                pax = dict(self.globals)
            at, extended = data + blocks(header.size), True
            block = self._read(at, BLOCK_BYTES)
        found = self._finished(start, data, header, name, size, pax)
        if header.kind not in b"12":
            return found
        return found._replace(target=_target(found.name, decoded(block[157:257]) if link is None else link, header.kind == ord("2")))

    def _finished(self, start: int, data: int, header: Header, name: Optional[str], size: Optional[int], pax: Dict[str, str]) -> Member:
        _refuse_sparse(pax, start)
        if header.kind == ord("S"):
            raise BadTar("sparse", start, f"sparse member {name or header.name!r}")
        found_name = name if name is not None else pax.get("path", header.name).rstrip("/") if "path" in pax else header.name
        # A global size gives the length of the data, but does not move the next header: tarfile reads it so.
        found_size = size if size is not None else _size(pax) if "size" in pax else header.size
        stride = size if size is not None else header.size
        holds_data = header.kind not in _WITHOUT_DATA
        if min(found_size, stride) < 0:
            raise BadTar("header", start, "negative size")
        return Member(found_name, data, found_size, start, data + (blocks(stride) if holds_data else 0), header.kind in _REGULAR)

    def _header(self, at: int, block: bytes, extended: bool) -> Header:
        try:
            return parsed(at, block)
        except BadTar as bad:
            if extended:
                raise BadTar("extended", at, str(bad)) from None
            raise

    def _payload(self, at: int, size: int) -> bytes:
        if size < 0:
            raise BadTar("header", at, "negative size")
        text = self._read(at, blocks(size))
        if len(text) < blocks(size):
            raise BadTar("cut", at + len(text), "unexpected end of data")
        return text

    def _pax(self, text: bytes, at: int) -> Dict[str, str]:
        """The records of an extended header ("length key=value\\n" each)."""
        found: Dict[str, str] = {}
        charset = _charset(text)
        named = charset.decode("utf-8", "replace") if charset else self.globals.get("hdrcharset")
        encoding = ENCODING if named == "BINARY" else "utf-8"
        if charset:
            found["hdrcharset"] = named or ""
        position = 0
        while True:
            record = _PAX_RECORD.match(text, position)
            if record is None:
                return found
            length = int(record[1][:20])
            if record.end() > position + length:  # older Pythons go on, and take a megabyte apart anew at each of its bytes
                raise BadTar("header", at, "invalid header")
            value = text[record.end() : record.start() + length - 1]
            found[_decoded_as(record[2], "utf-8")] = _decoded_as(value, encoding if record[2] == b"path" else "utf-8")
            position += length

    def _check_marker(self, at: int) -> None:
        """Two blocks of zeros, then nothing but zeros."""
        if len(self._read(at, MARKER_BYTES)) < MARKER_BYTES:
            raise BadTar("no-end", at, "a lone block of zeros at its end")
        at += BLOCK_BYTES
        zeros = bytes(_SLICE_BYTES)
        while True:
            part = self._read(at, _SLICE_BYTES)
            if not part:
                return
            if part != zeros[: len(part)]:
                raise BadTar("after-end", at + len(part) - len(part.lstrip(b"\0")), "data after the end marker")
            at += len(part)


def plain_path(name: str) -> str:
    """``name`` without what says nothing in a path: "./a//b" and "a/b" are one file."""
    return posixpath.normpath(name) if "./" in name or "//" in name else name


def _target(name: str, link: str, symbolic: bool) -> str:
    """The member that ``name`` is a link to; "" for a link to itself, which GNU tar writes for a file that it is given twice."""
    target = posixpath.join(posixpath.dirname(name), link) if symbolic else link
    target = posixpath.normpath(target) if target else ""
    return "" if target == posixpath.normpath(name) else target


def _charset(text: bytes) -> Optional[bytes]:
    """What ``\\d+ hdrcharset=([^\\n]+)\\n`` finds first, in one pass: over 40 KB of digits that one took 3 s, four times that over 80."""
    at = text.find(_CHARSET)
    while at >= 0:
        value = at + len(_CHARSET)
        end = text.find(b"\n", value)
        if end < 0:
            return None
        if end > value and text[at - 1 : at].isdigit():
            return text[value:end]
        at = text.find(_CHARSET, value)
    return None


def _refuse_sparse(pax: Dict[str, str], at: int) -> None:
    if any(key.startswith("GNU.sparse.") for key in pax):
        raise BadTar("sparse", at, f"sparse member {pax.get('GNU.sparse.name', pax.get('path', ''))!r}")


def _size(pax: Dict[str, str]) -> int:
    try:
        return int(pax["size"])
    except ValueError:
        return 0  # what tarfile makes of it


def _decoded_as(value: bytes, encoding: str) -> str:
    try:
        return value.decode(encoding)
    except UnicodeDecodeError:
        return value.decode("utf-8" if encoding == "utf-8" else ENCODING, "surrogateescape")


Place = Tuple[int, int]  # offset and size of data

_MOST_BYTES = 64 << 20  # of names with their places: some 200,000 members; what comes behind is no target of a link
_PLACE_BYTES = 256  # of one, beside its name
_AHEAD_BYTES = 1 << 20  # read at once, for the headers in it


class Links:
    """Where the members of one archive lie, so far.

    A hard or symbolic link has no data of its own, and webdataset leaves it out in silence. Here it has the bytes of the earlier member
    that it points to. The reader of samples and their index share the rule, so that both count alike.
    """

    def __init__(self) -> None:
        self._places: Dict[str, Place] = {}
        self._left_bytes = _MOST_BYTES

    def note(self, name: str, offset: int, size: int) -> None:
        """One regular file. A later one of the same name counts, as when the archive is unpacked."""
        name = plain_path(name)
        if name not in self._places:
            self._left_bytes -= _PLACE_BYTES + len(name)
            if self._left_bytes < 0:
                return
        self._places[name] = offset, size

    def place(self, member: Member) -> Optional[Place]:
        """Where the bytes of ``member`` lie, a regular file or a link, which is noted; None where it points to no earlier file."""
        found = (member.offset, member.size) if member.regular else self._places.get(member.target)
        if found is not None:
            self.note(member.name, *found)
        return found


def links_before(read: Callable[[int, int], bytes], at: int) -> Links:
    """Those of the members before byte ``at``, which was walked to already; ``read(offset, n)`` reads them again."""
    links, walk, here = Links(), Walk(_Pieces(read, at)), 0
    while here < at:
        member = walk.member(here)
        if member is None:
            break
        if member.regular or member.target:
            links.place(member)
        here = member.end
    return links


class _Pieces:
    """``read`` up to byte ``end``, a piece at a time."""

    def __init__(self, read: Callable[[int, int], bytes], end: int) -> None:
        self._read, self._end = read, end
        self._at, self._piece = 0, b""

    def __call__(self, offset: int, size: int) -> bytes:
        begin = offset - self._at
        if not 0 <= begin <= begin + size <= len(self._piece):
            self._at, self._piece, begin = offset, self._read(offset, min(max(size, _AHEAD_BYTES), self._end - offset)), 0
        return self._piece[begin : begin + size]
