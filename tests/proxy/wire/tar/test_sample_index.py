"""The sample index on the wire: the same samples as webdataset's rules give, and nothing decoded that was not encoded."""

from __future__ import annotations

import itertools
import random
import re
import struct
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.seams import swapped
from support.tarmaking import archives, members, written

from forebay_proxy.wire.tar import sample_index
from forebay_proxy.wire.tar.members import BadTar
from forebay_proxy.wire.tar.sample_index import IndexBuilder, InvalidIndex, NotIndexable, SampleIndex, decode, encode, is_meta, split_name
from forebay_proxy.wire.tar.scan import scan

WEBDATASETS = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
names = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6)


def read_of(tar: bytes):  # type: ignore[no-untyped-def]
    return lambda offset, size: tar[offset : offset + size]


def indexed(tar: bytes) -> SampleIndex:
    builder = IndexBuilder()
    for member in scan(read_of(tar), len(tar)):
        builder.add(*member)
    return builder.finished(len(tar))


def told(index: SampleIndex) -> list[tuple[str, list[tuple[str, int, int]]]]:
    return [(key, [tuple(file) for file in files]) for key, files in index]


def test_names_are_split_as_webdataset_does() -> None:
    """All names of up to six of the characters that count. The expression itself is not used: a long name would stop everything."""
    for length in range(7):
        for name in map("".join, itertools.product("A./\n", repeat=length)):
            found = WEBDATASETS.match(name)
            assert split_name(name) == ((found[1], found[2].lower()) if found else (None, "")), name
    for other in (7, None, b"a.b"):
        with pytest.raises(TypeError, match=r"string|bytes-like"):
            split_name(other)  # type: ignore[arg-type]


@settings(max_examples=examples(60))
@given(archives())
def test_the_scan_sees_what_the_walk_sees(tar: bytes) -> None:
    """Every member of every kind of archive, also of the same one cut anywhere."""
    for tried in (tar, tar[: random.Random(len(tar)).randrange(len(tar))]):
        by_walk = outcome((found.name, found.offset, found.size) for found in members(tried))
        assert outcome(found[:3] for found in scan(read_of(tried), len(tried)) if not found[3]) == by_walk


def outcome(found: Iterable[tuple[str, int, int]]) -> tuple[list[tuple[str, int, int]], str]:
    """Members up to the end, and how it ended."""
    seen = []
    try:
        for member in found:
            seen.append(member)
    except BadTar as bad:
        return seen, bad.kind
    return seen, ""


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(names, names, st.integers(0, 2**40), st.integers(0, 2**40)), max_size=40), st.integers(0, 2**50))
def test_what_is_encoded_is_decoded(files: list[tuple[str, str, int, int]], length: int) -> None:
    """Any samples, any names, equal bytes for equal indexes."""
    builder, expected = IndexBuilder(), list[tuple[str, list[tuple[str, int, int]]]]()
    for base, ending, offset, size in files:
        name = f"{base}.{ending}"
        key, suffix = split_name(name)
        if is_meta(name) or key is None:
            continue
        if not expected or expected[-1][0] != key:
            expected.append((key, []))
        if any(suffix == other for other, _, _ in expected[-1][1]):
            return
        expected[-1][1].append((suffix, offset, size))
        builder.add(name, offset, size)
    encoded = encode(builder.finished(length))
    found = decode(encoded)
    assert told(found) == expected
    assert (found.length, len(found), found.members) == (length, len(expected), sum(len(files) for _, files in expected))
    assert encode(found) == encoded


@given(st.binary(max_size=300))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    """Neither as they come, nor behind a right beginning with a right checksum."""
    for tried in (data, sample_index._MAGIC + data, sample_index._MAGIC + struct.pack("<I", zlib.crc32(data)) + data):
        try:
            list(decode(tried))
        except (InvalidIndex, IndexError):
            continue


def test_each_flipped_bit_and_every_cut_is_found() -> None:
    """At any byte; and what is too long."""
    encoded = encode(indexed(written([("a.jpg", b"x" * 700), ("a.cls", b"1"), ("b.jpg", b"y")])))
    for at in range(len(encoded)):
        flipped = [encoded[:at] + bytes([encoded[at] ^ 1 << bit]) + encoded[at + 1 :] for bit in range(8)]
        for tried in (*flipped, encoded[:at], encoded + bytes(at + 1)):
            with pytest.raises(InvalidIndex):
                decode(tried)


def test_a_header_that_claims_much_reserves_nothing() -> None:
    """Counts are compared with what came before anything is made of them."""
    body = struct.pack("<IIIIIIQQQ", 0, 2**32 - 1, 2**32 - 1, 2**32 - 1, 0, 0, 2**63, 2**63, 0)
    with pytest.raises(InvalidIndex, match="says that it has"):
        decode(sample_index._MAGIC + struct.pack("<I", zlib.crc32(body)) + body)


@pytest.mark.parametrize("second", ["a.jpg", "a.JPG", "a.__key__", "a.__bad__", "a.__url__", "a.__local_path__"])
def test_samples_that_webdataset_disputes_have_no_index(second: str) -> None:
    """Two files of one name, and names that a sample uses itself: reading goes through the handler, an index cannot."""
    with pytest.raises(NotIndexable, match="sample 'a' has"):
        indexed(written([("a.jpg", b"x"), (second, b"y")]))


def test_an_index_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members, bytes of names, different suffixes."""
    swapped(monkeypatch, sample_index, MAX_MEMBERS=3, _MAX_SUFFIXES=2)
    with pytest.raises(NotIndexable, match="more than 3 files"):
        indexed(written([(f"{number}.a", b"") for number in range(4)]))
    with pytest.raises(NotIndexable, match="different suffixes"):
        indexed(written([("a.a", b""), ("a.b", b""), ("a.c", b"")]))
    with pytest.raises(NotIndexable, match="longer than 4096 characters"):
        indexed(written([("k" * 5000 + ".a", b"")], format=1))
    monkeypatch.setattr(sample_index, "MAX_INDEX_BYTES", 100)
    with pytest.raises(NotIndexable, match="larger than 100 bytes"):
        indexed(written([("k" * 90 + ".a", b"")]))


def test_a_sample_has_a_number_from_zero() -> None:
    """No other is answered, negative ones neither."""
    index = indexed(written([("d/a.jpg", b"x" * 700), ("d/a.cls", b"1"), ("__meta__", b""), ("plain", b""), ("d/b.jpg", b"y")]))
    assert [index.key(0), index.key(1)] == ["d/a", "d/b"]
    assert [file.suffix for file in index.files(0)] == ["jpg", "cls"]
    assert index.files(0)[0] == ("jpg", 512, 700)
    for number in (-1, 2):
        with pytest.raises(IndexError):
            index.key(number)
        with pytest.raises(IndexError):
            index.files(number)


@pytest.mark.parametrize("count", [1, 3, 256, 257])
def test_a_file_of_a_suffix_that_is_not_listed_is_refused(count: int) -> None:
    """One past the last; as many suffixes as a byte tells apart are looked through in another way than more."""
    builder = IndexBuilder()
    for number in range(count):
        builder.add(f"k.s{number}", number * 1024, 1)
    index = builder.finished(count * 1024)
    assert decode(encode(index)).suffixes == index.suffixes
    index.suffix_ids[count // 2] = count
    with pytest.raises(InvalidIndex, match="parts do not fit"):
        decode(encode(index))
    index.suffix_ids[count // 2] = 0xFF00
    with pytest.raises(InvalidIndex, match="parts do not fit"):
        decode(encode(index))
