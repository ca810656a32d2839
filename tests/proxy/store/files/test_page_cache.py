"""Bytes that are sent from the page cache: what is in memory, what a socket takes, and that what it took stays as it was."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay_proxy.store.files import fallocate, page_cache
from forebay_proxy.store.files.fallocate import FOLIO_BYTES

SIZE = FOLIO_BYTES + 12_345
DATA = os.urandom(SIZE)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, SIZE)
    yield fd
    os.close(fd)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.fixture(params=["cachestat", "mincore"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to ask the kernel."""
    if request.param == "mincore":
        monkeypatch.setattr(page_cache, "_CACHESTAT", ctypes.c_long(100_000))  # what an older kernel knows of it: nothing
    return str(request.param)


def test_what_was_written_is_in_memory(fd: int, way: str) -> None:
    """From any byte on, to any other."""
    os.pwrite(fd, DATA, 0)
    assert page_cache.in_memory(fd, 0, SIZE)
    assert page_cache.in_memory(fd, 4097, 1)


def test_a_hole_is_not_in_memory(fd: int, way: str) -> None:
    """Nor is a range with one."""
    assert not page_cache.in_memory(fd, 0, 4096)
    os.pwrite(fd, DATA[:4096], 0)
    assert page_cache.in_memory(fd, 0, 4096)
    assert not page_cache.in_memory(fd, 0, 4097)


def test_what_the_kernel_let_go_of_is_not_in_memory(fd: int, way: str) -> None:
    """It would have to be read from the disk."""
    os.pwrite(fd, DATA, 0)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if os.preadv(fd, [bytearray(4)], 0) and page_cache._can_read(fd, SIZE - 1):
        pytest.skip("the file system of the temporary directory keeps everything in memory")
    assert not page_cache.in_memory(fd, 0, SIZE)


def test_a_page_that_is_being_read_is_not_in_memory(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as cached before it can be read."""
    os.pwrite(fd, DATA, 0)
    monkeypatch.setattr(page_cache, "_can_read", lambda fd, offset: offset < 8191)
    assert not page_cache.in_memory(fd, 0, 8192)
    assert page_cache.in_memory(fd, 0, 8191)


def test_a_socket_takes_what_it_has_room_for(fd: int, ends: tuple[socket.socket, socket.socket]) -> None:
    """Then 0 bytes, and these very bytes reach the other end."""
    os.pwrite(fd, DATA, 0)
    ours, theirs = ends
    sent = 0
    while taken := page_cache.send(ours.fileno(), fd, 5 + sent, SIZE - 5 - sent):
        sent += taken
    assert taken == 0
    assert 0 < sent < SIZE
    ours.shutdown(socket.SHUT_WR)
    with theirs.makefile("rb") as received:
        assert received.read() == DATA[5 : 5 + sent]


def test_beyond_the_end_of_the_file_there_is_nothing_to_send(fd: int, ends: tuple[socket.socket, socket.socket]) -> None:
    """A file that somebody cut is no full socket: the caller must not wait for room."""
    assert page_cache.send(ends[0].fileno(), fd, SIZE, 10) is None


def test_a_client_that_left_is_an_error(fd: int, ends: tuple[socket.socket, socket.socket]) -> None:
    """And no fault of the file."""
    os.pwrite(fd, DATA, 0)
    ends[1].close()
    with pytest.raises(ConnectionError):
        page_cache.send(ends[0].fileno(), fd, 0, SIZE)


def test_probe_finds_that_it_can(directory: int, tmp_path: Path) -> None:
    """And leaves nothing."""
    assert page_cache.probe(directory)
    assert list(tmp_path.iterdir()) == []


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("module", "name", "how"),
    [
        # A socket holds the file's own pages: where freeing them zeroes them first, the client would get zeros.
        (fallocate, "punch_from_tail", lambda fd, offset, length: os.pwrite(fd, bytes(length), offset)),
        (page_cache, "in_memory", lambda *_: True),  # the loop would wait for the disk
        (os, "pwrite", full),
    ],
    ids=["punch changes what was sent", "all counts as cached", "no file can be made"],
)
def test_probe_refuses(directory: int, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, how: object) -> None:
    """Then nothing is sent from there, and the start goes on."""
    monkeypatch.setattr(module, name, how)
    assert not page_cache.probe(directory)


def test_segments_begin_where_folios_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a punch of one would cut a folio whose other half is sent; of larger pages larger ones are made."""
    assert page_cache.can_send(8 << 20)
    assert not page_cache.can_send(65536)
    monkeypatch.setattr("mmap.PAGESIZE", 65536)
    assert not page_cache.can_send(8 << 20)
