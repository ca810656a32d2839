"""The samples of ``samples_of`` are webdataset's own: same order, types, exceptions and handler calls, over a file and over a stream."""

from __future__ import annotations

import bz2
import gzip
import inspect
import io
import lzma
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.indexes import passed, samples_of
from support.lengths import examples
from support.tarmaking import END, archives, hand_header, pax_block, shards, written
from webdataset import tariterators

pytestmark = pytest.mark.webdataset

MARKERS = "eof_value" in inspect.signature(tariterators.tar_file_expander).parameters
EXAMPLES = int(os.environ.get("FOREBAY_EXAMPLES", examples(100)))
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
Shards = list[bytes]


class Trickle(io.RawIOBase):
    """Gives a few bytes at a time."""

    def __init__(self, content: bytes, step: int) -> None:
        self._inner, self._step = io.BytesIO(content), step

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(min(size, self._step) if size >= 0 else size)


class Told:
    """A handler that keeps what it was told, and answers from a list, then True; "raise" raises."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = list(answers)
        self.calls: list[Any] = []

    def __call__(self, error: Exception) -> bool:
        self.calls.append(simple(error))
        answer = self.answers.pop(0) if self.answers else True
        if answer == "raise":
            raise error
        return bool(answer)


def simple(error: BaseException) -> Any:
    """An exception without what is an object, or ours alone: the name of the stream, the text behind a fault, a group error's key."""
    args = [arg.split(" @ ")[0] if isinstance(arg, str) else None for arg in error.args]
    if isinstance(error, (ValueError, TypeError)):  # of a group: webdataset leaves both places empty
        args[1:] = [None] * len(args[1:])
    return type(error).__name__, args


def outcome(stages: Callable[[Told], Iterator[Any]], answers: list[Any]) -> Any:
    """What came out: samples as lists of pairs, in order, then what was raised, and what the handler was told."""
    told, got = Told(answers), []
    try:
        for sample in stages(told):
            assert type(sample) is dict
            assert all(type(value) in (bytes, str) for value in sample.values())
            got.append(list(sample.items()))
    except Exception as error:
        got.append([("raised", simple(error))])
    return got, told.calls


def theirs(contents: Shards, answers: list[Any], **files: Any) -> Any:
    def stages(told: Told) -> Iterator[Any]:
        sources = [{"url": f"u{n}", "stream": io.BytesIO(content), "local_path": f"/{n}"} for n, content in enumerate(contents)]
        expanded = tariterators.tar_file_expander(iter(sources), handler=told, **files)
        found: Iterator[Any] = tariterators.group_by_keys(expanded, handler=told)
        return found

    return outcome(stages, answers)


def ours(contents: Shards, answers: list[Any], opened: Callable[[bytes], Any], **files: Any) -> Any:
    def stages(told: Told) -> Iterator[Any]:
        paths = [{"local_path": f"/{n}"} if MARKERS else {} for n in range(len(contents))]
        sources = [{"url": f"u{n}", "stream": opened(content), **paths[n]} for n, content in enumerate(contents)]
        return samples_of(iter(sources), handler=told, markers=MARKERS, **files)

    return outcome(stages, answers)


WAYS: dict[str, Callable[[bytes], Any]] = {
    "descriptor": passed,
    "file": io.BytesIO,
    "trickle": lambda content: Trickle(content, 700),
}
# A global path holds for a member whose outermost extended header names none, whatever an inner one says.
GLOBAL = pax_block({"path": "g.x"}, b"g") + pax_block({"mtime": "1"}) + pax_block({"path": "a.y"}) + hand_header(b"b.z", 0) + END
answers = st.lists(st.sampled_from([True, True, False, "raise"]), max_size=6)


@pytest.mark.parametrize("way", WAYS)
@many
@given(contents=shards(), answers=answers)
@example(contents=[written([("a.x", b"1"), ("a.x", b"2"), ("a.y", b"3")])], answers=["raise"])
@example(contents=[written([("a.x", b"1")]), written([("a.y", b"2")])], answers=[])
@example(contents=[written([("a.__bad__", b"1"), ("b.y", b"2"), ("b.__bad__", b"")])], answers=[])
@example(contents=[written([("a.__key__", b"1"), ("a.x", b"2"), ("a.y", b"3")])], answers=[])  # its path comes with the first that fits
@example(contents=[GLOBAL], answers=[])
@example(contents=[written([("__x__.png", b"1"), ("__x__.a__", b"2"), ("__x.a", b"3"), ("__x.__", b"4")])], answers=[])
def test_same_samples_and_handler_calls_as_webdataset(way: str, contents: Shards, answers: list[Any]) -> None:
    """Random well-formed shards, read in a row with any answers of the handler, give what webdataset gives."""
    assert ours(contents, answers, WAYS[way]) == theirs(contents, answers)


@many
@given(content=archives(), answers=answers, way=st.sampled_from(sorted(WAYS)), ends=st.sets(st.sampled_from("0ablxg")))
def test_same_with_files_selected_and_renamed(content: bytes, answers: list[Any], way: str, ends: set[str]) -> None:
    """``rename_files`` runs before ``select_files``; what either raises reaches the handler as in webdataset."""
    contents = [content, written([("next.x", b"1")])]  # a key of its own: webdataset would join it to what a given-up shard left open

    def select(name: str) -> bool:
        if name.endswith("s"):
            raise KeyError(name)
        return name[-1:] not in ends

    def rename(name: str) -> Any:
        if name.endswith(".é"):
            raise RuntimeError("no", name)
        return 7 if name.endswith("b.cls") else name.replace("0", "a")

    for files in ({"select_files": select}, {"rename_files": rename}, {"select_files": select, "rename_files": rename}):
        if "rename_files" in files and "select_files" in files:
            files["select_files"] = lambda name: select(str(name))
        assert ours(contents, answers, WAYS[way], **files) == theirs(contents, answers, **files)


@many
@given(content=archives(), cut=st.integers(0, 6000), way=st.sampled_from(sorted(WAYS)))
def test_a_cut_shard_gives_the_same_samples_and_an_error(content: bytes, cut: int, way: str) -> None:
    """Cut anywhere: what is delivered is what webdataset delivers, and where it is silent about the cut, we are not."""
    contents = [content[:cut], written([("next.x", b"1")])]
    got, told = ours(contents, [], WAYS[way])
    expected, _ = theirs(contents, [])
    assert got == expected
    if cut < len(content) and content[:cut][-1024:] != END:
        assert any(name in ("TarFault", "ReadError") for name, _ in told)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: lzma.compress(data, lzma.FORMAT_ALONE)])
@settings(many, max_examples=max(EXAMPLES // 5, 20))
@given(content=archives(), answers=answers)
def test_same_when_compressed(pack: Callable[[bytes], bytes], content: bytes, answers: list[Any]) -> None:
    """gz, bz2, xz and lzma, told by their first bytes; over a file and over a stream."""
    for way in ("descriptor", "trickle"):
        assert ours([pack(content)], answers, WAYS[way]) == theirs([pack(content)], answers)


def test_a_member_larger_than_the_window() -> None:
    """A member of several windows comes whole, and its neighbours too."""
    content = written([("a.x", b"1"), ("b.x", os.urandom(3_000_000)), ("c.x", b"2" * 700_000), ("d.x", b"")])
    for way in WAYS.values():
        assert ours([content], [], way) == theirs([content], [])
