"""Where pages lie: files in memory, in a directory of this user's alone, named by pid namespace, pid and start time.

In ``/dev/shm``, else beside the run file. Not on a disk where that can be helped: a store into a mapped file waits while the kernel writes
that page out, and so on the very disk whose slowness is to be measured. The room is allocated at once: a file system that is full later
would end the process with SIGBUS. A page goes with its process; what a killed one left is removed by the training that begins next.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import Iterator, NamedTuple, Optional

from forebay_loader.meter.page import PAGE_BYTES, MeterPage, WrongPage
from forebay_proxy.wire.protocol.runfile import private_directory, process_start_time

__all__ = ["PageName", "create_page", "open_page", "pages", "remove_page", "sweep_pages"]

SUFFIX = ".page"
_MOST_SWEPT = 4096
_FOREIGN_DEAD_S = 600.0  # without a heartbeat, of a process that we cannot look up: of another pid namespace


class PageName(NamedTuple):
    """Of which process a page is."""

    namespace: int
    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Optional[PageName]:
        """That of a process of this one's namespace; None where there is none, or no ``/proc``."""
        started = process_start_time(pid)
        return None if started is None else cls(_namespace(), pid, started)

    @classmethod
    def parse(cls, name: str) -> Optional[PageName]:
        parts = name[: -len(SUFFIX)].split("-") if name.endswith(SUFFIX) else []
        return cls(*map(int, parts)) if len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts) else None

    def __str__(self) -> str:
        return f"{self.namespace}-{self.pid}-{self.start_time}{SUFFIX}"


def create_page(name: PageName) -> MeterPage:
    """A new page, all zero. Raises ``OSError`` where no directory can be written."""
    failure = OSError("no directory for it")
    for directory in _directories():
        try:
            _own(directory)
            return _created(os.path.join(directory, str(name)))
        except OSError as error:
            failure = error
    raise failure


def open_page(name: PageName) -> Optional[MeterPage]:
    """The page of a process, to read; None where it has none (yet)."""
    for directory in _directories():
        with suppress(OSError, WrongPage):
            return _opened(os.path.join(directory, str(name)))
    return None


def pages() -> Iterator[PageName]:
    """All pages of this user's on this machine, of living processes and of dead ones."""
    for directory in _directories():
        yield from _named(directory)


def remove_page(name: PageName) -> None:
    for directory in _directories():
        with suppress(OSError):
            os.unlink(os.path.join(directory, str(name)))


def sweep_pages() -> None:
    """Remove what the dead left."""
    here = _namespace()
    for directory in _directories():
        for name in _named(directory):
            path = os.path.join(directory, str(name))
            dead = process_start_time(name.pid) != name.start_time if name.namespace == here else _is_forsaken(path)
            if dead:
                with suppress(OSError):
                    os.unlink(path)


def _directories() -> "list[str]":
    beside = private_directory()
    found = [f"/dev/shm/forebay-{os.getuid()}"] if os.path.isdir("/dev/shm") else []  # noqa: S108  # owner and mode are checked
    return [*found, *([os.path.join(beside, "meter")] if beside else [])]


def _own(directory: str) -> None:
    """Have it, for this user alone. Raises ``OSError``."""
    with suppress(FileExistsError):
        os.mkdir(directory, mode=0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} is not this user's alone")


def _created(path: str) -> MeterPage:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, PAGE_BYTES)
        return MeterPage(file, writable=True)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(file)


def _opened(path: str) -> MeterPage:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(path)
        return MeterPage(file)
    finally:
        os.close(file)


def _named(directory: str) -> Iterator[PageName]:
    try:
        found = os.listdir(directory)
    except OSError:
        return
    for name in found[:_MOST_SWEPT]:
        parsed = PageName.parse(name)
        if parsed is not None:
            yield parsed


def _is_forsaken(path: str) -> bool:
    try:
        page = _opened(path)
    except (OSError, WrongPage):
        return False  # one that is being made
    try:
        silent_s = (time.monotonic_ns() - page.word("heartbeat_ns")) / 1e9
        return not 0 <= silent_s < _FOREIGN_DEAD_S  # ahead of our clock: of an earlier boot
    finally:
        page.close()


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
