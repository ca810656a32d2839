"""A file that grows by whole lines, whatever happens to it."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay_proxy.telemetry.logs.append_file import AppendFile


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes meanwhile: a full disk, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


@pytest.fixture
def file(path: Path) -> Iterator[AppendFile]:
    made = AppendFile(path)
    yield made
    made.close()


def test_it_is_its_owners_alone(file: AppendFile, path: Path) -> None:
    """Made with 0600; it says who read what."""
    file.open()
    file.write(b"one\n")
    file.write(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_there_stays(file: AppendFile, path: Path) -> None:
    """Lines of an earlier run, and the mode somebody gave it."""
    path.write_bytes(b"old\n")
    path.chmod(0o640)
    file.write(b"new\n")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"old\nnew\n", 0o640)


def test_a_moved_file_is_begun_anew(file: AppendFile, path: Path) -> None:
    """Rotation needs no signal: the next write notices."""
    file.write(b"one\n")
    path.rename(path.with_suffix(".1"))
    file.write(b"two\n")
    path.unlink()
    file.write(b"three\n")
    assert path.read_bytes() == b"three\n"
    assert path.with_suffix(".1").read_bytes() == b"one\n"


def test_a_truncated_file_goes_on_at_its_start(file: AppendFile, path: Path) -> None:
    """As logrotate's copytruncate leaves it: no hole of zeros."""
    file.write(b"one\n")
    os.truncate(path, 0)
    file.write(b"two\n")
    assert path.read_bytes() == b"two\n"


def test_a_torn_line_is_ended(file: AppendFile, path: Path) -> None:
    """What a kill left of a line does not swallow the next one."""
    path.write_bytes(b"whole\nhal")
    file.write(b"new\n")
    assert path.read_bytes() == b"whole\nhal\nnew\n"


def test_half_a_write_is_taken_back(file: AppendFile, path: Path) -> None:
    """All of the lines or none; and as soon as there is room, it goes on."""
    file.write(b"x" * 99 + b"\n")
    with at_most(150), pytest.raises(OSError, match="too large"):
        file.write(b"y" * 99 + b"\n")
    file.write(b"z\n")
    assert path.read_bytes() == b"x" * 99 + b"\nz\n"


def _link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"")
    path.symlink_to("elsewhere")


def _second_name(path: Path) -> None:
    path.write_bytes(b"")
    os.link(path, path.with_name("other"))


@pytest.mark.parametrize("make", [_link, _second_name, os.mkfifo, Path.mkdir, lambda path: path.parent.rmdir()])
def test_what_is_no_file_of_ours_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """A link, a second name, a pipe (without waiting for its reader), a directory, a directory that is missing."""
    path = tmp_path / "inner" / "a.log"
    path.parent.mkdir()
    make(path)
    file = AppendFile(path)
    with pytest.raises(OSError, match=r"."):
        file.open()
    assert "closed" in repr(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can give a file away")
def test_a_strangers_file_is_refused(file: AppendFile, path: Path) -> None:
    """Whoever owns it could read what is written."""
    path.write_bytes(b"")
    os.chown(path, 12345, 12345)
    with pytest.raises(OSError, match="another user"):
        file.open()


def test_one_writer_at_a_time(file: AppendFile, path: Path) -> None:
    """Two would take back each other's lines on a full disk; a writer that has gone leaves no lock."""
    file.open()
    with pytest.raises(OSError, match="another process writes it"):
        AppendFile(path).open()
    file.close()
    second = AppendFile(path)
    second.open()
    second.close()
