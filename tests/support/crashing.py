"""A cache directory after a kill, after a power cut, after a person's hand: copies of the directory, and damage to them.

``Instants`` makes the leaves of the store take turns, so that a copy taken between two of them is exactly what a kill at that instant
would leave: no file is looked at while another one changes. Holes stay holes in a copy.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forebay_proxy.cache.fetching import segment_storage
from forebay_proxy.cache.resident import open_files
from forebay_proxy.store import store as store_module
from forebay_proxy.store.files import file_io, shard_file
from forebay_proxy.store.files.thread_pools import Pool

__all__ = ["DAMAGES", "FILE_DAMAGES", "SAME_BOOT_DAMAGES", "Instants", "copy_tree", "damage"]


UNLIMITED_S = 1000.0  # a test's own limit comes first


class Instants:
    """Blocking calls of all pools, one at a time, with a copy of the directory in between whenever one is asked for.

    None is given up: a disk that is busy with other programs may keep one sync for seconds, and all the others wait for that here.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = threading.RLock()
        real: Any = Pool.run

        async def run(pool: Pool, function: Callable[..., Any], *args: Any, **how: Any) -> Any:
            def alone(*args: Any) -> Any:
                with self._turn:
                    return function(*args)

            return await real(pool, alone, *args, **how)

        monkeypatch.setattr(Pool, "run", run)
        append = file_io.append

        def appended(*args: Any) -> float:  # on the loop, too
            with self._turn:
                return append(*args)

        monkeypatch.setattr(file_io, "append", appended)
        patiences = [(module, "PATIENCE_S") for module in (store_module, open_files, shard_file)]
        for module, name in (*patiences, (segment_storage, "HUNG_S")):
            monkeypatch.setattr(module, name, UNLIMITED_S)

    def copy(self, source: Path, target: Path) -> Path:
        """``source`` as a kill would leave it now."""
        with self._turn:
            return copy_tree(source, target)

    def held_bytes(self, directory: Path) -> int:
        """Allocated bytes of ``directory`` and all in it."""
        with self._turn:
            return sum(os.lstat(path).st_blocks * 512 for path in (directory, *directory.rglob("*")))


def copy_tree(source: Path, target: Path) -> Path:
    """A copy of a cache directory: modes, holes and odd things (links, pipes) included."""
    target.mkdir(mode=0o700)
    for entry in os.scandir(source):
        place = target / entry.name
        if entry.is_symlink():
            place.symlink_to(os.readlink(entry.path))
        elif entry.is_dir():
            copy_tree(Path(entry.path), place)
        elif entry.is_file():
            _copy_file(Path(entry.path), place)
        else:
            os.mkfifo(place)
    return target


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        os.fchmod(written.fileno(), os.fstat(read.fileno()).st_mode & 0o777)
        size, position = os.fstat(read.fileno()).st_size, 0
        while position < size:
            try:
                first = os.lseek(read.fileno(), position, os.SEEK_DATA)
            except OSError:  # holes only
                break
            position = os.lseek(read.fileno(), first, os.SEEK_HOLE)
            os.pwrite(written.fileno(), os.pread(read.fileno(), position - first, first), first)
        os.ftruncate(written.fileno(), size)


# What may be done to any file of the directory before another boot: everything. ``DAMAGES`` maps a name to a function of (file, another
# file of the same folder, chance).

Damage = Callable[[Path, Path, random.Random], None]


def _flip(file: Path, other: Path, chance: random.Random) -> None:
    if size := file.stat().st_size:
        _put(file, at := chance.randrange(size), bytes([_get(file, at) ^ (1 << chance.randrange(8))]))


def _zero(file: Path, other: Path, chance: random.Random) -> None:
    size = file.stat().st_size
    first = chance.randrange(size + 1)
    _put(file, first, bytes(chance.randrange(size - first + 1)))


def _shorten(file: Path, other: Path, chance: random.Random) -> None:
    if size := file.stat().st_size:
        os.truncate(file, chance.randrange(size))


def _lengthen(file: Path, other: Path, chance: random.Random) -> None:
    os.truncate(file, file.stat().st_size + chance.choice([1, 4096, 100_000]))


def _cut_and_regrow(file: Path, other: Path, chance: random.Random) -> None:
    if size := file.stat().st_size:
        os.truncate(file, chance.randrange(size))
        os.truncate(file, size)


def _swap(file: Path, other: Path, chance: random.Random) -> None:
    if file != other:
        aside = file.with_name("aside")
        file.rename(aside)
        other.rename(file)
        aside.rename(other)


def _remove(file: Path, other: Path, chance: random.Random) -> None:
    file.unlink()


def _garbage(file: Path, other: Path, chance: random.Random) -> None:
    file.write_bytes(chance.randbytes(chance.choice([0, 1, 5000])))


def _directory(file: Path, other: Path, chance: random.Random) -> None:
    file.unlink()
    file.mkdir()


def _fifo(file: Path, other: Path, chance: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def _link(file: Path, other: Path, chance: random.Random) -> None:
    file.unlink()
    file.symlink_to(other)


def _second_name(file: Path, other: Path, chance: random.Random) -> None:
    if file != other:
        file.unlink()
        os.link(other, file)


def _get(file: Path, at: int) -> int:
    with file.open("rb") as opened:
        return os.pread(opened.fileno(), 1, at)[0]


def _put(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        os.pwrite(opened.fileno(), data, at)


DAMAGES: dict[str, Damage] = {
    "flip": _flip, "zero": _zero, "shorten": _shorten, "lengthen": _lengthen, "cut and regrow": _cut_and_regrow, "swap": _swap,
    "remove": _remove, "garbage": _garbage, "directory": _directory, "fifo": _fifo, "link": _link, "second name": _second_name,
}  # fmt: skip

# Under the same boot the page cache is trusted: nobody reads every byte again after a kill. So of a shard file is noticed what shows
# without reading it: it is gone, is no plain file, has a second name, another size, or a hole where something is claimed. Of the other
# files, whatever happens to them: an index that is damaged, older than the files, or gone, claims what can be seen to be there, or nothing.
SAME_BOOT_DAMAGES = ("shorten", "lengthen", "remove", "directory", "fifo", "link", "second name")

# Lock and key: a start goes on from all that a disk does to files. What only a person does is refused
# in one line: nothing outside is opened, locked or written.
FILE_DAMAGES = ("flip", "zero", "shorten", "lengthen", "cut and regrow", "swap", "remove", "garbage")


def damage(folder: Path, how: str, chance: random.Random) -> str:
    """Do ``how`` to one file of ``folder``, if there is one; what was done to what."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink() and path.name != "reserve")
    if not files:
        return ""
    file, other = chance.choice(files), chance.choice(files)
    with suppress(FileNotFoundError):
        DAMAGES[how](file, other, chance)
    return f"{how} {file.parent.name}/{file.name[:12]}"
