"""The members of an archive: as ``tarfile`` lists them, and an error for every end but the marker."""

from __future__ import annotations

import contextlib
import io
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.tarmaking import END, archives, hand_header, members, padded, pax_block, written

from forebay_proxy.wire.tar.members import BadTar
from forebay_proxy.wire.tar.scan import scan

ONE = hand_header(b"a.x", 3) + padded(b"abc")


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(content=archives())
def test_members_are_those_of_tarfile(content: bytes) -> None:
    """Name, place and size of every regular file, in order."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        expected = [(entry.name, entry.offset_data, entry.size) for entry in tar if entry.isreg()]
    assert [(found.name, found.offset, found.size) for found in members(content)] == expected


def test_walking_can_start_at_any_member() -> None:
    """``start`` and ``end`` of a member are where headers begin."""
    content = written([("a" * 150 + ".x", b"1"), ("b.x", b"2"), ("c.x", b"3")], format=tarfile.GNU_FORMAT)
    found = list(members(memoryview(content)))
    assert [member.start for member in found[1:]] == [member.end for member in found[:-1]]
    assert [member.name for member in members(content, start=found[1].start)] == ["b.x", "c.x"]


@pytest.mark.parametrize(("content", "kind", "at"), [
    (b"", "start", 0), (b"no tar" * 200, "start", 0), (ONE, "no-end", 1024), (ONE + bytes(512), "no-end", 1024), (ONE[:1000], "cut", 1000),
    (ONE + hand_header(b"x", 9, kind=b"L"), "cut", 1536), (ONE + END + b"x", "after-end", 2048), (ONE + b"x" * 512 + END, "header", 1024),
    (ONE + hand_header(b"x", 9, kind=b"L") + padded(b"name") + END, "extended", 2048),
    (ONE + hand_header(b"x", 9, kind=b"S") + END, "sparse", 1024), (ONE + hand_header(b"x", 2**60, style="base256") + END, "cut", 2560),
])  # fmt: skip
def test_every_other_end_is_an_error_with_its_place(content: bytes, kind: str, at: int) -> None:
    """The kind and the byte."""
    with pytest.raises(BadTar) as raised:
        list(members(content))
    assert (raised.value.kind, raised.value.at) == (kind, at)


def repaired(content: bytes) -> bytes:
    """Every block that looks like a header gets a right checksum, so that damage in it is met and not only found."""
    blocks = [bytearray(content[at : at + 512]) for at in range(0, len(content), 512)]
    for block in blocks:
        if block[257:262] == b"ustar" and len(block) == 512:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
    return b"".join(blocks)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(content=archives(), places=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6), whole=st.booleans())
def test_damage_is_a_bad_tar_or_nothing(content: bytes, places: list[tuple[int, int]], whole: bool) -> None:
    """Whatever is written over an archive, walking ends, with members inside of it or with ``BadTar``."""
    damaged = bytearray(content)
    for place, value in places:
        damaged[place % len(damaged)] = value
    damaged = bytearray(repaired(bytes(damaged))) if whole else damaged
    last = 0
    with contextlib.suppress(BadTar):
        for member in members(bytes(damaged)):
            assert last <= member.start < member.offset <= member.offset + member.size <= len(damaged)
            last = member.offset


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    records=st.lists(st.tuples(st.sampled_from(["path", "size", "hdrcharset", "mtime", "x"]), st.text(max_size=8)), max_size=4),
    junk=st.binary(max_size=40),
)
def test_damaged_extended_headers_are_a_bad_tar_or_nothing(records: list[tuple[str, str]], junk: bytes) -> None:
    """Records of any length, number and charset."""
    text = pax_block(dict(records))[512:].rstrip(b"\0") + junk
    content = hand_header(b"pax", len(text), kind=b"x") + padded(text) + ONE + END
    with contextlib.suppress(BadTar):
        list(members(content))


def told(text: bytes, kind: bytes) -> bytes:
    """An extended header of ``text`` before an archive of one file."""
    return hand_header(b"pax", len(text), kind=kind) + padded(text) + ONE + END


@pytest.mark.parametrize("text", [b"1" * (1 << 20), b"x" + b"1 hdrcharset=" * (1 << 16)])
def test_a_hostile_extended_header_is_read_once(text: bytes) -> None:
    """A megabyte of digits took the search for a charset hours, in which the sidecar's other threads stood."""
    assert [member.name for member in members(told(text, b"x"))] == ["a.x"]


def test_a_record_that_ends_before_its_key_is_bad() -> None:
    """Each byte of such a header began another record, with all the rest as its key: a megabyte of them took all memory."""
    with pytest.raises(BadTar, match="invalid header"):
        list(members(told(b"3 \n" * 1000 + b"=\n", b"x")))


def test_global_headers_have_a_bound() -> None:
    """For the sidecar, which scans whatever comes: they are remembered to the archive's end, and looked at for each file."""
    content = pax_block({"a": "x" * 40_000}, kind=b"g") + pax_block({"b": "x" * 40_000}, kind=b"g") + ONE + END
    with pytest.raises(BadTar, match="global headers of more than"):
        list(scan(lambda offset, size: content[offset : offset + size], len(content)))
    assert [member.name for member in members(content)] == ["a.x"]
