"""What may befall the cache disk of a running sidecar, one case each: begun, mended, and how readers fared meanwhile.

Used by tests/faults/test_disk_faults.py and benchmarks/disk.py. In every case readers of all kinds (whole, ranged, concurrent, warm,
with a plan ahead of them) go on before, during and after; each compares every byte, and none may fail. ``shrink`` divides shards, segments
and the limit alike, so that as many of them come and go with so many fewer bytes.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from support.disk_sampler import Sampled, sampling
from support.disks import HANG, BadDisk, bad_disk, delay, file_system, inside, within
from support.nginx import Nginx
from support.readers import make_shard, many, read, spans
from support.sidecar import Sidecar, running, small_segments, wait_until

from forebay_proxy.core.segments import SEGMENT_BYTES

__all__ = ["CASES", "SIZES", "Case", "Told", "make_shards", "play"]

SIZES = [3_000_000, 12_000_000, 9_000_001, 17_000_000]
LIMIT = 100_000_000


@dataclass
class Told:
    """How a case went."""

    states: list[str] = field(default_factory=list)  # while it lasted, as far as anybody asked, without repetition
    reads: int = 0
    client_errors: int = 0
    bypass_meanwhile: int = 0
    hits_meanwhile: int = 0
    lines: int = 0  # of the log that speak of the disk, from beginning to end of the trouble
    seen: Sampled = field(default_factory=Sampled)
    log: str = ""


@dataclass(frozen=True)
class Case:
    """``begin`` brings the trouble about and returns what mends it. ``down``: whether the state must come to that."""

    name: str
    begin: Callable[[Stage], Callable[[], object]]
    disk: str = ""  # the kind of file system; "": the one of the test's own directory, with a library that fails on command
    down: bool = True
    cold: bool = False  # let go of all that is stored first: what comes must be written
    mended: bool = True  # whether it can be, without a restart
    stored_again: bool = True  # a quota is tried again only after a while
    rounds: int = 1
    rare: bool = False  # too much like another one to be played at every change
    akin: bool = False  # to another one: played in a long run
    limit: int = LIMIT
    before: str = ":"


class Stage:
    """One sidecar, its disk and its origin."""

    def __init__(self, files: Path, origin: Nginx, sidecar: Sidecar, disk: BadDisk | None, shrink: int) -> None:
        self.sidecar = sidecar
        self.bad = disk
        self._files = files
        self._origin = origin
        self._rng = random.Random(3)
        self._sizes = [size // shrink for size in SIZES]

    @property
    def cache(self) -> Path:
        return inside(self.sidecar)

    def url(self, number: int) -> str:
        return self.sidecar.proxied(self._origin.url(f"{number}.tar"))

    def everybody(self) -> int:
        """All kinds of readers at once; how many there were. AssertionError for a wrong byte or a short answer."""
        names = [self._origin.url(f"{number}.tar") for number in range(len(SIZES))]
        self.sidecar.plan("case/0/0/0", names)
        planned = {"Forebay-Reader": "case/0/0/0"}
        work = [partial(read, self.url(number), self._files / f"{number}.tar", headers=planned) for number in range(len(SIZES))]
        work += [partial(read, self.url(number), self._files / f"{number}.tar") for number in (3, 1, 0, 2)]
        for number, size in enumerate(self._sizes):
            work += [partial(read, self.url(number), self._files / f"{number}.tar", span=span) for span in spans(self._rng, size, 2)]
        answers = many(8, work)
        assert all(got.whole for got in answers), [(got.status, got.count) for got in answers if not got.whole]
        return len(answers)

    def state(self) -> str:
        return str(self.sidecar.status()["cache"]["disk_state"])

    def is_stored(self) -> bool:
        """Read a shard, and see whether it stays."""
        assert read(self.url(0), self._files / "0.tar").whole
        return bool(self.sidecar.shards().get(self._origin.url("0.tar"), {}).get("complete"))


def make_shards(folder: Path, shrink: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    for number, size in enumerate(SIZES):
        make_shard(folder / f"{number}.tar", size // shrink, number)
    return folder


def play(case: Case, place: Path, files: Path, origin: Nginx, shrink: int = 1) -> Told:
    """Readers before, trouble, readers, mended, readers; ends when the state is normal again and a shard is stored again."""
    told = Told()
    program, limit = small_segments(SEGMENT_BYTES // shrink), str(case.limit // shrink)
    with ExitStack() as stack:
        disk, how = None, dict[str, Any]()
        if case.disk:
            how = file_system(place, case.disk, "160m", case.before)
        else:
            disk = stack.enter_context(bad_disk(place))
            how = {"environ": disk.environ}
        sidecar = stack.enter_context(running(place, "--cache-size", limit, allow=[origin.base()], program=program, **how))
        stage = Stage(files, origin, sidecar, disk, shrink)
        told.seen = stack.enter_context(sampling(stage.cache, sidecar.process.pid))
        told.reads += stage.everybody()
        wait_until(lambda: not sidecar.status()["cache"]["in_flight"])  # what was read may not be stored yet
        if case.cold:
            sidecar.ask("/v1/evict", b'{"all": true}', "POST")
        before, lines = sidecar.status()["requests"], _of_the_disk(sidecar)
        mend = case.begin(stage)
        for _ in range(case.rounds):
            told.reads += stage.everybody()
            _note(told, stage.state())
        if case.down:
            wait_until(lambda: _note(told, stage.state()) == "down", 120, every_s=0.1)
        after = sidecar.status()["requests"]
        mend()
        if case.mended:
            # Looking is a read and a write: so often is soon enough.
            wait_until(lambda: (stage.is_stored() or not case.stored_again) and _note(told, stage.state()) == "normal", 150, every_s=0.5)
        told.reads += stage.everybody()
        told.bypass_meanwhile, told.hits_meanwhile = (after[kind] - before[kind] for kind in ("bypass", "hit"))
        told.client_errors = int(sidecar.status()["errors"])
        told.lines, told.log = _of_the_disk(sidecar) - lines, sidecar.log_text()
    return told


def _note(told: Told, state: str) -> str:
    if told.states[-1:] != [state]:
        told.states.append(state)
    return state


# The cases


def _calls(**kinds: int) -> Callable[[Stage], Callable[[], object]]:
    def begin(stage: Stage) -> Callable[[], object]:
        assert stage.bad is not None
        stage.bad.set(**kinds)
        return stage.bad.mend

    return begin


def _read_only(stage: Stage) -> Callable[[], object]:
    """Make ext4 read-only, as ext4 does at an error. Only a new mount mends it."""
    device = Path(within(stage.sidecar, "findmnt", "-n", "-o", "SOURCE", str(stage.sidecar.cache_dir.parent)).stdout.strip())
    Path(f"/sys/fs/ext4/{device.name}/trigger_fs_error").write_text("1")
    stage.sidecar.ask("/v1/evict", json.dumps({"shards": ["*/0.tar"]}).encode(), "POST")  # it shows when something is to be written
    return lambda: None


def _removed(stage: Stage) -> Callable[[], object]:
    shutil.rmtree(stage.cache)
    return lambda: None


def _emptied(stage: Stage) -> Callable[[], object]:
    for path in stage.cache.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return lambda: None


def _unmounted(stage: Stage) -> Callable[[], object]:
    root = str(stage.sidecar.cache_dir.parent)
    device = within(stage.sidecar, "findmnt", "-n", "-o", "SOURCE", root).stdout.strip()
    within(stage.sidecar, "umount", "-l", root)
    stage.sidecar.ask("/v1/evict", json.dumps({"shards": ["*/0.tar"]}).encode(), "POST")  # the index is written, where it has no path

    def mend() -> None:
        underneath = stage.sidecar.cache_dir
        assert not underneath.exists(), "the disk underneath is nobody's cache"
        within(stage.sidecar, "mount", device, root)

    return mend


def _cut(stage: Stage) -> Callable[[], object]:
    for path in (stage.cache / "shards").iterdir():
        os.truncate(path, path.stat().st_size // 3)
    return lambda: None


def _no_inodes(stage: Stage) -> Callable[[], object]:
    taken = stage.cache.parent / "taken"
    taken.mkdir()
    made = 0
    while True:
        try:
            (taken / str(made)).touch()
            made += 1
        except OSError:
            return lambda: shutil.rmtree(taken)


_ANY = ("read", "write", "allocate", "punch", "sync", "create", "look")
_WRITING = ("write", "allocate", "punch", "sync", "create")
CASES = [
    Case("write-eio", _calls(write=errno.EIO, sync=errno.EIO), cold=True),
    Case("allocate-eio", _calls(allocate=errno.EIO), cold=True, rare=True),
    Case("read-eio", _calls(read=errno.EIO)),
    Case("forbidden", _calls(create=errno.EACCES), cold=True, down=False, rare=True),
    Case("quota", _calls(allocate=errno.EDQUOT, write=errno.EDQUOT), cold=True, stored_again=False),
    Case("full", _calls(allocate=errno.ENOSPC, write=errno.ENOSPC), cold=True, stored_again=False, rare=True),
    Case("slow", _calls(write=delay(0.1), read=delay(0.03), sync=delay(0.5)), cold=True, down=False, akin=True),
    Case("hung", _calls(**dict.fromkeys(_ANY, HANG))),
    Case("write-hung", _calls(write=HANG), cold=True, akin=True),
    Case("punch-hung", _calls(punch=HANG), down=False, limit=40_000_000),
    Case("read-only", _read_only, disk="ext4", mended=False),
    Case("read-only-for-a-while", _calls(**dict.fromkeys(_WRITING, errno.EROFS)), cold=True, akin=True),
    Case("removed", _removed, disk="tmpfs", mended=False),
    Case("emptied", _emptied, disk="tmpfs", mended=False, akin=True),
    Case("unmounted", _unmounted, disk="ext4", mended=False, akin=True),
    Case("files-cut", _cut, disk="tmpfs", down=False),
    Case("no-inodes", _no_inodes, disk="tmpfs", rounds=2, cold=True, before='mount -o remount,nr_inodes=400 "$0"'),
]


def _of_the_disk(sidecar: Sidecar) -> int:
    """Lines of its log, but for those on readers who wait, which a busy machine has more of."""
    return sum(": waiting for " not in line and " go on: " not in line for line in sidecar.log_text().splitlines())
