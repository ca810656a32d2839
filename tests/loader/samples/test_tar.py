"""What ``samples_of`` does beyond webdataset: faults said aloud, notices, and a file that is let go of."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from support.indexes import passed, samples_of
from support.seams import swapped
from support.tarmaking import END, hand_header, padded, pax_block, written

from forebay_loader.base.counters import counters
from forebay_loader.samples import tar as module
from forebay_loader.samples.tar import TarFault

TWO = [("a.x", b"1"), ("a.y", b"2"), ("b.x", b"3")]
PLAIN = b"".join(hand_header(name.encode(), len(data)) + padded(data) for name, data in TWO)
SAMPLES = [{"__key__": "a", "__url__": "u", "x": b"1", "y": b"2"}, {"__key__": "b", "__url__": "u", "x": b"3"}]
BAD = hand_header(b"c.x", 0).replace(b"c.x", b"d.x")


def stream(content: bytes, *, whole: bool = True) -> Any:
    """A file-like; ``whole``: its end is known to be the shard's."""
    made = io.BytesIO(content)
    return made if whole else Unsure(content)


class Unsure:
    """Bytes of which nobody knows whether they are all, like a pipe's."""

    def __init__(self, content: bytes) -> None:
        self.read = io.BytesIO(content).read


def read(content: bytes, *, whole: bool = True, **options: Any) -> list[dict[str, Any]]:
    return list(samples_of([{"url": "u", "stream": stream(content, whole=whole)}], **options))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (PLAIN, "ends at byte 3072 without the end marker"),
        (PLAIN + bytes(512), "a lone block of zeros"),
        (PLAIN + END + bytes(512) + b"more", "data after the end marker, at byte 4608"),
        (PLAIN + END + PLAIN + END, "data after the end marker, at byte 4096"),
        (PLAIN + BAD + END, "unreadable tar header at byte 3072: bad checksum"),
        (PLAIN + b"\xff" * 512 + END, "unreadable tar header at byte 3072"),
    ],
)
def test_three_faults_are_errors_that_say_what_webdataset_would_have_done(content: bytes, cause: str) -> None:
    """No end marker, data after it, a bad header: an error with the byte, and a counter."""
    with pytest.raises(TarFault, match=cause) as raised:
        read(content)
    assert "webdataset would have" in str(raised.value)
    assert "silently" in str(raised.value)
    assert "on_tar_fault='warn'" in str(raised.value)
    assert counters()["tar_faults"] == 1


@pytest.mark.parametrize("content", [PLAIN, PLAIN + END + b"more", PLAIN + BAD + END], ids=["no end", "more", "header"])
def test_warn_reads_on_as_webdataset_does(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """With ``on_tar_fault="warn"`` the samples up to the fault come, the last one included, and one warning."""
    assert read(content, on_tar_fault="warn") == SAMPLES
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "on_tar_fault='warn'" in caplog.text


def test_warn_takes_a_missing_marker_only_where_all_bytes_came() -> None:
    """A stream of unknown length that ends at a header may have been cut there."""
    with pytest.raises(TarFault, match="without the end marker"):
        read(PLAIN, whole=False, on_tar_fault="warn")
    assert read(PLAIN + END, whole=False) == SAMPLES


def test_a_fault_reaches_the_handler_with_stream_and_url() -> None:
    """As every error of reading: the handler decides, and what came before the fault stays."""
    told: list[Any] = []
    source = {"url": "u", "stream": io.BytesIO(PLAIN)}
    got = list(samples_of([source, {"url": "u", "stream": io.BytesIO(PLAIN + END)}], handler=lambda error: told.append(error) or True))
    assert got == SAMPLES * 2
    assert [error.args[1:] for error in told] == [(source["stream"], "u")]
    assert isinstance(told[0], tarfile.ReadError)


def test_what_a_given_up_shard_left_open_takes_nothing_from_the_next() -> None:
    """Two shards with the same keys, the first cut: webdataset 1.x would make one sample of both."""
    contents = [hand_header(b"a.x", 1) + padded(b"1") + BAD + END, written([("a.y", b"2")])]
    got = list(samples_of([{"url": "u", "stream": io.BytesIO(content)} for content in contents], handler=lambda error: True))
    assert got == [{"__key__": "a", "__url__": "u", "x": b"1"}, {"__key__": "a", "__url__": "u", "y": b"2"}]


def test_an_unknown_rule_is_refused_when_it_is_given() -> None:
    """``on_tar_fault`` has two values."""
    with pytest.raises(ValueError, match="'raise' or 'warn'"):
        samples_of([], on_tar_fault="ignore")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"<html>\n<body>Access denied</body>" + bytes(600), "not a tar archive.*<html>.*web page"),
        (b'{"error": "no"}', "not a tar archive: truncated header.*JSON"),
        (b"PK\x03\x04" + bytes(600), "zip archive"),
        (b"", "empty file.*holds no byte"),
    ],
)
def test_not_a_tar_says_what_it_looks_like(content: bytes, cause: str) -> None:
    """What is no tar at all is an error under either rule, with its first bytes."""
    with pytest.raises(TarFault, match=f"(?s){cause}"):
        read(content, on_tar_fault="warn")


@pytest.mark.parametrize(
    "content",
    [
        hand_header(b"a.x", 0, kind=b"S") + END,
        pax_block({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.x"}) + hand_header(b"a.x", 0) + END,
        pax_block({"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"}) + hand_header(b"a.x", 0) + END,
    ],
    ids=["gnu", "pax 1.0", "pax 0.1"],
)
def test_sparse_members_are_refused(content: bytes) -> None:
    """Their bytes are not their file's; the error says what to do."""
    with pytest.raises(TarFault, match=r"sparse.*write the tar without"):
        read(content, on_tar_fault="warn")


def test_a_member_of_dots_keeps_its_key_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """``..`` in a name is only a name here, as in webdataset; one notice says not to build paths from it."""
    got = read(written([("../a.x", b"1"), ("b/../c.x", b"2")]))
    assert [sample["__key__"] for sample in got] == ["../a", "b/../c"]
    assert len([record for record in caplog.records if "'..'" in record.message]) == 1


@pytest.mark.parametrize("entries", [[], [("README", b"1")], [("__meta__/index.json", b"1")]], ids=["empty", "no suffix", "meta"])
def test_a_shard_without_samples_is_told(entries: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """No error, as in webdataset, but a warning with its name."""
    assert read(written(entries)) == []
    assert "shard u: holds no sample" in caplog.text


def test_duplicates_name_the_file_its_key_and_the_shard() -> None:
    """The error is webdataset's; where that leaves two places empty stand key and URL."""
    with pytest.raises(ValueError, match=r"a\.x: duplicate file name in tar file x") as raised:
        read(written([("a.x", b"1"), ("a.x", b"2")]))
    assert raised.value.args[1:] == ("a", "u")


@pytest.mark.parametrize("content", [PLAIN + END, PLAIN, b"no tar"], ids=["whole", "fault", "no tar"])
def test_a_file_is_closed_as_soon_as_its_shard_is_done(content: bytes) -> None:
    """Before the next shard is opened: a lease is room in the cache."""
    held = passed(content)

    def sources() -> Iterator[dict[str, Any]]:
        yield {"url": "u", "stream": held}
        assert held.closed

    list(samples_of(sources(), handler=lambda error: True))
    assert held.closed


def test_a_file_is_closed_when_reading_is_given_up() -> None:
    """A loop left half-way leaves no lease behind."""
    held = passed(PLAIN + END)
    samples = samples_of([{"url": "u", "stream": held}])
    next(samples)
    samples.close()  # type: ignore[attr-defined]  # a generator
    assert held.closed


def test_a_local_file_is_closed_too() -> None:
    """As webdataset's opener gives it: nobody else would before the garbage collector comes."""
    held = io.BufferedReader(io.BytesIO(PLAIN + END))  # type: ignore[arg-type]
    assert list(samples_of([{"url": "file:///nas/a.tar", "stream": held}]))
    assert held.closed


def test_no_text_of_ours_holds_what_may_be_secret() -> None:
    """Messages name a shard without the query and the command of its URL."""
    for url in ("https://o/a.tar?token=secret", "pipe:curl -H 'Authorization: secret' https://o/a.tar", "https://u:secret@o/a.tar"):
        with pytest.raises(TarFault) as raised:
            list(samples_of([{"url": url, "stream": Unsure(b"x")}]))
        assert "secret" not in str(raised.value)


class Hiccup:
    """A stream that fails once, after ``at`` bytes, and goes on."""

    def __init__(self, content: bytes, at: int) -> None:
        self._inner, self._at, self._failed = io.BytesIO(content), at, False

    def read(self, size: int = -1) -> bytes:
        if self._inner.tell() < self._at:
            return self._inner.read(min(size, self._at - self._inner.tell()))
        if not self._failed:
            self._failed = True
            raise OSError("broken")
        return self._inner.read(size)


@pytest.mark.parametrize(
    ("at", "left"),
    [
        (600, ["b"]),  # in the first file: it is left out, the next header is where it ends
        (1536 + 600, ["a"]),  # in the header before the second one, which says only times: what lies behind it is not known
        (1536 + 1536 + 600, ["a"]),  # in the second file
    ],
)
def test_what_lies_in_a_file_is_no_header_after_a_failure(at: int, left: list[str]) -> None:
    """A stream breaks once and goes on, and the handler lets it: reading goes on behind the file, never inside it, where a tar may lie."""
    inner = written([("evil.x", b"")])[:1024]
    content = hand_header(b"a.x", 700) + padded(b"1" * 700) + pax_block({"mtime": "1.5"}) + hand_header(b"b.x", 1024) + inner + END
    source = {"url": "u", "stream": Hiccup(content, at)}
    assert [sample["__key__"] for sample in samples_of([source], handler=lambda error: True)] == left


def test_an_index_is_not_asked_where_names_are_read_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index has names as UTF-8; a process with another locale reads them as tarfile does there, by index or not."""
    asked: list[Any] = []
    swapped(monkeypatch, module, INDEX_FROM_BYTES=0, indexed_samples=lambda *_, **__: asked.append(1))
    for encoding in ("iso8859-1", "utf-8"):
        monkeypatch.setattr(module, "ENCODING", encoding)
        assert len(list(samples_of([{"url": "u", "stream": passed(PLAIN + END)}]))) == 2
    assert asked == [1]
