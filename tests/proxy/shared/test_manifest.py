"""Manifests of the shared tier: what is read is what was written, or it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples

from forebay_proxy.core.shard import Pin, PinKind, Version
from forebay_proxy.shared.manifest import Manifest, NotOurs, object_name

SEGMENT = 1 << 16
texts = st.text(st.characters(exclude_categories=["Cc"]), max_size=20)
etags = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(lambda text: f'"{text}"')


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    length = draw(st.integers(1, 5 * SEGMENT))
    count = -(-length // SEGMENT)
    sums = tuple(draw(st.lists(st.integers(1, 2**64 - 1), min_size=count, max_size=count)))
    return Manifest(f"https://o/{draw(texts)}", f"etag:{draw(etags)}", length, SEGMENT, sums, draw(etags))


def version_of(manifest: Manifest) -> Version:
    return Version(manifest.identity, Pin(PinKind.ETAG, '"a"'), manifest.length)


def read(data: bytes, manifest: Manifest) -> Manifest:
    return Manifest.decoded(data, manifest.shard, version_of(manifest), SEGMENT)


@settings(max_examples=examples(100))
@given(manifests())
def test_what_is_read_is_what_was_written(manifest: Manifest) -> None:
    assert read(manifest.encoded(), manifest) == manifest


@settings(max_examples=examples(200))
@given(manifests(), st.data())
def test_no_cut_and_no_changed_byte_is_believed(manifest: Manifest, data: st.DataObject) -> None:
    """Of the etag, too: a checksum of the whole is in it."""
    written = manifest.encoded()
    at = data.draw(st.integers(0, len(written) - 1))
    changed = written[:at] + bytes([written[at] ^ data.draw(st.integers(1, 255))]) + written[at + 1 :]
    for spoilt in (written[:at], changed, written + b" "):
        with pytest.raises(NotOurs):
            read(spoilt, manifest)


@settings(max_examples=examples(100))
@given(
    st.binary(max_size=60)
    | st.sampled_from([b"null", b"[]", b"{}", b'"x"', b"1e999", b"[" * 100_000, b'{"sums": 3}', b'{"sums": "\\ud800"}'])
)
def test_any_other_object_is_refused(data: bytes) -> None:
    with pytest.raises(NotOurs):
        read(data, Manifest("https://o/a", 'etag:"a"', 1, SEGMENT, (1,), '"x"'))


def test_a_manifest_of_something_else_is_refused() -> None:
    """Of another shard, version, length or size of segments, be it as whole as it may."""
    mine = Manifest("https://o/a", 'etag:"a"', SEGMENT + 1, SEGMENT, (1, 2), '"x"')
    others = (
        replace(mine, shard="https://o/b"), replace(mine, identity='etag:"b"'), replace(mine, length=SEGMENT + 2),
        replace(mine, segment_bytes=2 * SEGMENT), replace(mine, sums=(1,)), replace(mine, sums=(1, 2, 3)),
    )  # fmt: skip
    for other in others:
        with pytest.raises(NotOurs):
            read(other.encoded(), mine)


def test_the_name_says_shard_version_and_segments() -> None:
    """A name's meaning never changes, and sidecars of two segment sizes have objects of their own."""
    version = Version('etag:"a"', Pin(), 10)
    others = (("b", version, 8), ("a", replace(version, identity='etag:"b"'), 8), ("a", replace(version, length=11), 8), ("a", version, 16))
    assert len({object_name("a", version, 8), *(object_name(*other) for other in others)}) == 5
    assert object_name("a", replace(version, content_type="x/y", modified="yesterday"), 8) == object_name("a", version, 8)
