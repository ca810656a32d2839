"""Links have the bytes of the earlier file they point to, a Mac's twins are left out, what cannot be given is told: by every reader."""

from __future__ import annotations

import io
import logging
import posixpath
import tarfile
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.indexes import indexed, passed, samples_of
from support.lengths import examples
from webdataset import tariterators

import forebay_loader as fb
from forebay_loader.samples.ranged_samples import RangedSamples
from forebay_loader.takeover.tar_files import take_tars
from forebay_proxy.wire.tar.sample_index import faults_text

pytestmark = pytest.mark.webdataset

HARD, SYMBOLIC = tarfile.LNKTYPE, tarfile.SYMTYPE
FORMATS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
Entry = tuple[str, Any]


def tar_of(entries: Sequence[Entry], format: int = tarfile.PAX_FORMAT) -> bytes:
    """Contents are bytes, or (type, name that the link points to)."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format) as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            else:
                entry.type, entry.linkname = content
                tar.addfile(entry)
    return made.getvalue()


def read(opened: Any) -> list[dict[str, Any]]:
    return [dict(sample) for sample in samples_of([{"url": "u", "stream": opened}])]


def by_index(tar: bytes) -> list[dict[str, Any]]:
    index = indexed(tar)
    ranged = RangedSamples("u", index, lambda span: tar[span.first : span.end])
    found = [ranged.one(number) for number in range(len(index))]
    assert list(ranged.between(0, len(index))) == found
    return found


def as_unpacked(entries: Sequence[Entry]) -> list[tuple[str, bytes]]:
    """Files with bytes, in the order of the tar: what unpacking it up to each link would have left there."""
    known: dict[str, bytes] = {}
    found, sample = [], ("", set[str]())
    for name, content in entries:
        if not isinstance(content, bytes):
            kind, target = content
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if kind == SYMBOLIC else target
            if target == name or target not in known:
                continue
            known[name] = known[target]
            key, _, suffix = name.partition(".")
            if sample[0] == key and suffix in sample[1]:
                continue
        known[name] = content if isinstance(content, bytes) else known[name]
        key, _, suffix = name.partition(".")
        sample = sample if sample[0] == key else (key, set())
        sample[1].add(suffix)
        found.append((name, known[name]))
    return found


@st.composite
def linked(draw: Any) -> list[Entry]:
    """Files in some order of names; some are links to others, earlier or later or absent, or to themselves."""
    names = draw(
        st.lists(st.sampled_from([f"{folder}{n}.{end}" for folder in ("", "d/") for n in range(5) for end in ("a", "b")]), unique=True)
    )
    names += [f"d/{'n' * 120}.{n}" for n in range(draw(st.integers(0, 2)))]
    found: list[Entry] = []
    for number, name in enumerate(names):
        kind = draw(st.sampled_from([None, None, HARD, SYMBOLIC]))
        target = draw(st.sampled_from([*names, "absent.a"]))
        if kind == SYMBOLIC:
            target = posixpath.relpath(target, posixpath.dirname(name) or ".")
        found.append((name, b"%d" % number * draw(st.integers(0, 700)) if kind is None else (kind, target)))
    return found


@settings(max_examples=examples(100), deadline=None)
@given(linked(), st.sampled_from(FORMATS))
def test_every_reader_gives_links_alike(entries: list[Entry], format: int) -> None:
    """A file, a descriptor, webdataset taken over and the index: the bytes that unpacking gives."""
    tar = tar_of(entries, format)
    files = [(f"{s['__key__']}.{suffix}", value) for s in read(io.BytesIO(tar)) for suffix, value in s.items() if suffix[0] != "_"]
    assert files == as_unpacked(entries)
    ways = [read(io.BytesIO(tar)), read(passed(tar)), by_index(tar), by_stock(tar)]
    assert all(way == ways[0] for way in ways[1:])


def by_stock(tar: bytes) -> list[dict[str, Any]]:
    """By webdataset's own functions, as ``forebay run`` leaves them."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("tarfile", "tar_file_iterator"):
            patched.setattr(tariterators, name, getattr(tariterators, name))
        patched.setattr("forebay_loader.takeover.tar_files.enabled", lambda: True)
        take_tars(tariterators)
        files = tariterators.tar_file_expander([{"url": "u", "stream": io.BytesIO(tar)}])
        return [sample for sample in tariterators.group_by_keys(files) if sample]


TORN = [(f"d/{n}.{end}", f"{n}{end}".encode()) for end in "ab" for n in range(6)]
LATER = [("0.a", (HARD, "1.a")), ("0.b", b"0"), ("1.a", b"1"), ("1.b", (SYMBOLIC, "absent"))]
TWINS = [
    (f"{folder}{name}", b"\0\5\x16\7") for folder in ("d/", "__MACOSX/d/", "__MACOSX/d/e/") for name in ("._0.a", "._0.b", "._1.a", "._1.b")
]


READERS = {"file": lambda tar: read(io.BytesIO(tar)), "descriptor": lambda tar: read(passed(tar)), "taken over": by_stock}


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize(
    ("entries", "counter", "count", "words"), [(TORN, "torn_samples", 6, "side by side"), (LATER, "links_left_out", 2, "no earlier file")]
)
def test_what_cannot_be_given_is_told_once(
    way: str, entries: list[Entry], counter: str, count: int, words: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning a process, a counter, a line of the skips file a shard; the samples are webdataset's; the index has the same numbers."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr("forebay_loader.meter.skips.skip_pass.SKIPS_FILE.append", lines.append)
    tar = tar_of(entries)
    with caplog.at_level(logging.WARNING, "forebay_loader"):
        for _ in range(2):
            found = READERS[way](tar)
    index = indexed(tar)
    assert [sample["__key__"] for sample in found] == [index.key(number) for number in range(len(index))]
    assert sum(words in record.message for record in caplog.records) == 1
    assert fb.counters()[counter] == 2 * count
    assert (index.again, index.left_out) == ((count, 0) if counter == "torn_samples" else (0, count))
    assert words in faults_text(index.again, index.left_out)
    if way == "taken over":
        assert [line["then"] for line in lines] == ["told", "told"]


@pytest.mark.parametrize("way", [*READERS, "index"])
def test_a_macs_twins_are_left_out(way: str) -> None:
    """Beside their files and in ``__MACOSX``: two samples, whole."""
    files = [("d/0.a", b"0a"), ("d/0.b", b"0b"), ("d/1.a", b"1a"), ("d/1.b", b"1b")]
    mixed = [entry for pair in zip(TWINS, files, strict=False) for entry in pair] + TWINS[4:]
    found = {**READERS, "index": by_index}[way](tar_of(mixed))
    assert [(s["__key__"], s["a"], s["b"]) for s in found] == [("d/0", b"0a", b"0b"), ("d/1", b"1a", b"1b")]
    assert fb.counters()["torn_samples"] == 0


class Stream(io.RawIOBase):
    """No place can be gone back to."""

    def __init__(self, content: bytes) -> None:
        self._inner = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(size)


def test_a_stream_that_has_gone_by_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A command's output: the link is left out, counted, and the reason given."""
    with caplog.at_level(logging.WARNING, "forebay_loader"):
        found = read(Stream(tar_of([("0.a", b"0"), ("1.a", (HARD, "0.a")), ("1.b", b"1")])))
    assert [sorted(sample) for sample in found] == [["__key__", "__url__", "a"], ["__key__", "__url__", "b"]]
    assert "have gone by" in caplog.text
    assert fb.counters()["links_left_out"] == 1


def test_a_link_beside_the_file_it_spells_otherwise_changes_nothing() -> None:
    """``0.JPG`` and a link ``0.jpg`` to it are one file of the sample, as for webdataset; a file given to tar twice is there once."""
    tar = tar_of([("0.JPG", b"x"), ("0.jpg", (SYMBOLIC, "0.JPG")), ("1.jpg", b"y"), ("0.JPG", (HARD, "0.JPG"))])
    assert [(s["__key__"], s["jpg"]) for s in read(io.BytesIO(tar))] == [("0", b"x"), ("1", b"y")]
    assert by_index(tar) == read(io.BytesIO(tar)) == by_stock(tar)


@pytest.mark.parametrize("cut", [700, 5000])
@pytest.mark.parametrize("way", READERS)
def test_a_cut_tar_is_one_sentence(way: str, cut: int) -> None:
    """The shard, the byte, what to do; ``str()`` is no tuple, whatever webdataset adds to its arguments."""
    tar = tar_of([("0.a", bytes(3000)), ("1.a", bytes(3000))])[:cut]
    with pytest.raises(tarfile.ReadError) as told:
        READERS[way](tar)
    assert str(told.value).startswith("shard ")
    assert "unexpected end of data" in str(told.value)
    assert str(cut) in str(told.value)
    assert "upload it whole" in str(told.value)
