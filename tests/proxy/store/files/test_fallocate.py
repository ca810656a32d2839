"""fallocate(2): blocks are reserved and given back, and what the file system can do is found by trying."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay_proxy.store.files import fallocate
from forebay_proxy.store.files.fallocate import Abilities

KIB64 = 65536


@pytest.fixture
def fd(directory: int, tmp_path: Path) -> Iterator[int]:
    if fallocate.probe(directory) != Abilities(allocate=True, punch=True):
        pytest.skip("the file system of the temporary directory has no fallocate")
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 4 * KIB64)
    yield fd
    os.close(fd)


def allocated(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def answer(monkeypatch: pytest.MonkeyPatch, *codes: int) -> list[int]:
    """Make the system call answer with these errnos (0: success), and list the modes it was asked for."""
    asked: list[int] = []

    def call(fd: int, mode: int, offset: int, length: int) -> int:
        code = codes[min(len(asked), len(codes) - 1)]
        asked.append(mode)
        ctypes.set_errno(code)
        return -1 if code else 0

    monkeypatch.setattr(fallocate, "_fallocate", call)
    return asked


def test_allocate_takes_blocks_and_leaves_the_size(fd: int) -> None:
    """Reserved blocks count at once; the file's size is as before."""
    fallocate.allocate(fd, KIB64, KIB64)
    assert allocated(fd) >= KIB64
    assert os.fstat(fd).st_size == 4 * KIB64


def test_punch_gives_blocks_back(fd: int) -> None:
    """A punched range frees its blocks, reads as zeros, and its neighbours stay."""
    os.pwrite(fd, b"x" * 4 * KIB64, 0)
    os.fdatasync(fd)
    before = allocated(fd)
    fallocate.punch(fd, KIB64, KIB64)
    assert allocated(fd) <= before - KIB64
    assert os.pread(fd, 4 * KIB64, 0) == b"x" * KIB64 + bytes(KIB64) + b"x" * 2 * KIB64


def test_an_interrupted_call_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """EINTR is no failure."""
    asked = answer(monkeypatch, errno.EINTR, 0)
    fallocate.allocate(0, 0, 1)
    assert len(asked) == 2


def test_probe_without_nameless_files(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where O_TMPFILE is not known, a named file is used and unlinked; nothing is left either way."""
    expected = fallocate.probe(directory)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # what an old kernel sees: EISDIR
    assert fallocate.probe(directory) == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "allocate"),
    [(errno.EOPNOTSUPP, False), (0, True), (errno.ENOSPC, True), (None, False)],
    ids=["unsupported", "lies", "full", "no call"],
)
def test_probe_believes_only_what_it_sees(directory: int, monkeypatch: pytest.MonkeyPatch, code: int | None, allocate: bool) -> None:
    """An answer of 0 that left the blocks is no ability to punch; ENOSPC says that the call is known."""
    if code is None:
        monkeypatch.setattr(fallocate, "_fallocate", None)
    else:
        answer(monkeypatch, code)
    found = fallocate.probe(directory)
    assert not found.punch
    assert found.allocate is allocate or code == 0


def refuse(fd: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("flock", [None, lambda fd, operation: None, refuse], ids=["holds", "holds nothing", "refused"])
def test_probe_of_locks(directory: int, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None] | None) -> None:
    """A shared lock of one opening keeps another from an exclusive one; where it does not, no descriptor is passed."""
    if flock is not None:
        monkeypatch.setattr("fcntl.flock", flock)
    assert fallocate.probe(directory).lock is (flock is None)


def test_no_piece_of_a_punch_cuts_a_folio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel zeroes the part of a folio that a punch leaves, in place: a socket may hold these very pages."""
    fd, folio = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR), fallocate.FOLIO_BYTES
    punched: list[tuple[int, int]] = []
    monkeypatch.setattr(fallocate, "punch", lambda fd, first, length: punched.append((first, first + length)))
    try:
        os.ftruncate(fd, 9 * folio + 5)
        for first in (folio + 4096, 5 * folio - 4096, 9 * folio):  # data between holes
            os.pwrite(fd, b"x" * 4096 if first < 9 * folio else b"x" * 5, first)
        fallocate.punch_from_tail(fd, folio, 8 * folio + 5)
    finally:
        os.close(fd)
    assert all(first % folio == 0 and end % folio == 0 for first, end in punched)
    assert sorted(punched)[0][0] == folio
    assert sorted(punched)[-1][1] == 10 * folio
    assert all(one[1] == other[0] for one, other in zip(sorted(punched), sorted(punched)[1:], strict=False))
